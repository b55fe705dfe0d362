"""Two of MADLAD-400's rules of sentences (Kudugunta et al. 2023, section 2.3), as Dolma 3 applies them.

allenai/datamap-rs, src/map_fxn.rs (Madlad400SentenceAnnotator, Madlad400RuleFilter) as
configs/all_dressed/all_dressed_config.yaml calls them, at commit f771794. A sentence ends behind `.`, `!` or
`?` and white space. It is suspect by rule 2, where more than half of its words, of 12 at least, begin with a
capital; or by rule 5, where it holds one of the paper's "cursed" phrases. 28 of these are looked for letter
by letter, among them some that were meant as expressions; the last four are expressions."""

from __future__ import annotations

import re
from typing import Final

from stages.quality.rules import Limits, RuleSet, RuleSpec, Threshold, in_all
from stages.quality.text_view import TextView, share, uax29_words_of

_SOURCE: Final = "allenai/datamap-rs, configs/all_dressed/all_dressed_config.yaml (Dolma 3)"

_SENTENCE_END: Final = re.compile(r"[.!?]+\s+")
_LEAST_WORDS: Final = 12
_CAPITALS: Final = 0.5
_CURSED: Final = (
    " №", "���", "\\|\\s*$", " nr\\.$", "aute irure dolor ", " sunt in culpa qui ", "orem ipsum ", " quis nostrud ",
    " adipisicing ", " dolore eu ", " cupidatat ", "autem vel eum", "wisi enim ad", " sex ", " porn ", "黄色电影",
    "mp3", "ownload", "Vol\\.", " Ep\\.", "Episode", " г\\.\\s*$", " кг\\.\\s*$", " шт\\.", "Develop", "Facebook",
    " crusher ", " xxx ",
)  # fmt: skip
_CURSED_EXPRESSIONS: Final = re.compile(
    r" ... ... ... ... ... ... ... ... ...| .... .... .... .... .... .... .... .... ...."
    r"| [^ ] [^ ] [^ ] [^ ] [^ ] [^ ] [^ ] [^ ] [^ ]|, ..,,? ..,,? ..,,? ..,,?"
)


def sentences(view: TextView) -> list[str]:
    """The sentences that are not white space alone."""
    return [sentence for sentence in _SENTENCE_END.split(view.text) if sentence and not sentence.isspace()]


def is_suspect(sentence: str) -> bool:
    """Whether rule 2 or rule 5 meets a sentence."""
    if any(phrase in sentence for phrase in _CURSED) or _CURSED_EXPRESSIONS.search(sentence) is not None:
        return True
    words = uax29_words_of(sentence)
    if len(words) < _LEAST_WORDS:
        return False
    return sum(word[0].isupper() for word in words) > len(words) * _CAPITALS


def _num_sentences(view: TextView) -> float:
    return len(view.once(sentences))


def _suspects(view: TextView) -> float:
    found = view.once(sentences)
    return share(sum(map(is_suspect, found)), len(found))


ROWS: Final = (
    RuleSpec(
        name="madlad.too_few_sentences",
        side="below",
        threshold=Threshold(
            key="madlad_min_sentences",
            help="sentences a page has at least",
            source=_SOURCE,
            unit="sentences",
            default=5,
        ),
        help="sentences",
        measures=in_all(_num_sentences),
    ),
    RuleSpec(
        name="madlad.too_many_suspect_sentences",
        side="at least",
        threshold=Threshold(
            key="madlad_max_suspect_sentences",
            help="share of sentences that are suspect: from it on a page goes",
            source=_SOURCE,
            default=0.2,
        ),
        help="share of sentences in title case, or with one of the paper's phrases",
        measures=in_all(_suspects),
    ),
)


def rule_set(limits: Limits) -> RuleSet:
    """The rules in order."""
    return RuleSet(name="madlad", rules=tuple(row.rule("dclm", limits) for row in ROWS))
