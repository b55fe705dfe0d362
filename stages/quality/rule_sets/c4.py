"""C4's line and page rules (Raffel et al. 2020, section 2.2), in four variants. The one rule set that edits a
text.

- `datatrove`: datatrove 0.10.1, filters/c4_filters.py (C4QualityFilter). Lines of fewer than 3 words, counted
  before citations go, are removed; at least 5 sentences (spaCy's sentencizer) remain; ' ends a line too.
  FineWeb turns the rule of terminal punctuation off.
- `paper`: TensorFlow Datasets, text/c4_utils.py (clean_page): 5 words, counted after citations went; 3
  sentences. Its sentences are NLTK's, ours spaCy's; its word list of bad words is left to the url and
  classifier steps.
- `dclm`: mlfoundations/dclm, baselines_configs/c4.yaml, which is `paper`, and the rule of its RefinedWeb
  pipeline that a page goes when line removal took more than 5% of its words (word_removal_ratio_filter; DCLM
  tests it after other line rules than these).
- `dolma`: allenai/dolma, python/dolma/taggers/c4.py: 3 words; the word "javascript", lorem ipsum or a curly
  bracket on any line, kept or not, rejects the page; no citations, policies, sentence counts or word lengths.

A line is removed for: a word too long, no terminal punctuation (or an ellipsis), too few words, javascript, a
policy phrase. A page is rejected for: lorem ipsum, a curly bracket, too few sentences left."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from stages.quality.offending import lines_that
from stages.quality.rules import Limits, RuleSet, RuleSpec, Threshold, Variant, in_all
from stages.quality.text_view import TextView, all_lines, share
from stages.quality.words import Splitter
from stages.rules import Lines

PageFault = Literal["lorem_ipsum", "curly_bracket", "javascript"]

_C4: Final = "TensorFlow Datasets, text/c4_utils.py"
_DCLM: Final = "mlfoundations/dclm, baselines_configs/dclm_baseline_refinedweb.yaml"

_CITATION: Final = re.compile(r"\[\d*]|\[edit]|\[citation needed]")
_POLICIES: Final = (
    "terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies",
)  # fmt: skip
_LOREM: Final = "lorem ipsum"
_ENDS: Final[dict[Variant, tuple[str, ...]]] = {
    "datatrove": (".", "?", "!", '"', "'"),
    "paper": (".", "?", "!", '"'),
    "dclm": (".", "?", "!", '"'),
    "dolma": (".", "?", "!", '"'),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedLines:
    """What the line rules leave of a page: lines, how many lines with text went, how many citations went from
    those left. `fault` is the first reason on the way to reject the page whole."""

    lines: list[str]
    num_removed: int = 0
    num_citations: int = 0
    fault: PageFault | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaner:
    """The line rules of C4 in one variant: a text in, its lines out."""

    variant: Variant
    terminal_punctuation: bool
    min_words: float
    max_word_chars: float

    def __call__(self, view: TextView) -> CleanedLines:
        if self.variant == "dolma":
            return self._as_dolma(view)
        suspects = _suspects(view.text)
        kept: list[str] = []
        num_citations = 0
        lines = [line.strip() for line in view.once(all_lines)]
        for line in lines:
            text = self._passing(line)
            if text is None:
                continue
            lowered = text.lower() if suspects else ""
            if _LOREM in suspects and _LOREM in lowered:
                return CleanedLines(lines=kept, fault="lorem_ipsum")
            if "javascript" in suspects and "javascript" in lowered:
                continue
            if "{" in suspects and "{" in text:
                return CleanedLines(lines=kept, fault="curly_bracket")
            if any(policy in lowered for policy in _POLICIES if policy in suspects):
                continue
            kept.append(text)
            num_citations += 0 if text is line else len(_CITATION.findall(line))
        return CleanedLines(
            lines=kept, num_removed=_num_written(lines) - _num_written(kept), num_citations=num_citations
        )

    def _passing(self, line: str) -> str | None:
        """The line without citations, or None where its words or its end remove it."""
        words = line.split()
        if len(line) > self.max_word_chars and any(len(word) > self.max_word_chars for word in words):
            return None
        text = _CITATION.sub("", line) if "[" in line else line
        if self.terminal_punctuation and (not text.endswith(_ENDS[self.variant]) or text.endswith("...")):
            return None
        num_words = len(words) if self.variant == "datatrove" or text is line else len(text.split())
        return None if num_words < self.min_words else text

    def _as_dolma(self, view: TextView) -> CleanedLines:
        lines = view.text.split("\n")
        kept: list[str] = []
        for line in lines:
            lowered = line.lower().strip()
            words = lowered.split()
            if "javascript" in words:
                return CleanedLines(lines=kept, fault="javascript")
            if _LOREM in lowered:
                return CleanedLines(lines=kept, fault="lorem_ipsum")
            if "{" in lowered:
                return CleanedLines(lines=kept, fault="curly_bracket")
            ended = not self.terminal_punctuation or lowered.endswith(_ENDS["dolma"])
            if ended and len(words) >= self.min_words:
                kept.append(line)
        return CleanedLines(lines=kept, num_removed=_num_written(lines) - _num_written(kept))


def _num_written(lines: list[str]) -> int:
    return sum(not (line.isspace() or not line) for line in lines)


def _suspects(text: str) -> frozenset[str]:
    """The phrases that the text may hold once citations are gone, so that lines need not look for the
    others."""
    lowered = (_CITATION.sub("", text) if "[" in text else text).lower()
    return frozenset(phrase for phrase in (_LOREM, "javascript", "{", *_POLICIES) if phrase in lowered)


def _has_fault(view: TextView, *, cleaner: Cleaner, fault: PageFault) -> float:
    return view.once(cleaner).fault == fault


def _num_lines(view: TextView, *, cleaner: Cleaner) -> float:
    """Never above `_num_sentences`: a line is a sentence at least."""
    return len(view.once(cleaner).lines)


def _num_sentences(view: TextView, *, cleaner: Cleaner) -> float:
    return sum(map(view.splitter.num_sentences, view.once(cleaner).lines))


def _removed_words(view: TextView, *, cleaner: Cleaner) -> float:
    before = len(view.text.split())
    after = sum(len(line.split()) for line in view.once(cleaner).lines)
    return share(before - after, before)


def _any_words_removed(view: TextView, *, cleaner: Cleaner) -> float:
    """Never below `_removed_words`, which is a share."""
    cleaned = view.once(cleaner)
    return bool(cleaned.num_removed or cleaned.num_citations or cleaned.fault)


def _edit(view: TextView, *, cleaner: Cleaner) -> tuple[str, tuple[tuple[str, int], ...]]:
    cleaned = view.once(cleaner)
    text = "\n".join(cleaned.lines).strip()
    changes = (("c4.lines_removed", cleaned.num_removed), ("c4.citations_removed", cleaned.num_citations))
    counted = tuple((kind, count) for kind, count in changes if count)
    return text, counted or ((("c4.white_space", 1),) if text != view.text else ())


def _mark_removed(variant: Variant, *, cleaner: Cleaner) -> Lines:
    no_splitter = Splitter(None, ())
    return lines_that(lambda line: not cleaner(TextView(line, no_splitter)).lines)


def _mark_any_case(variant: Variant, *, cleaner: Cleaner, word: str) -> Lines:
    return lines_that(lambda line: word in line.lower())


_WITH_SENTENCES: Final[tuple[Variant, ...]] = ("datatrove", "paper", "dclm")

SETTINGS: Final = (
    Threshold(
        key="c4_min_words_per_line",
        help="words a line has at least, or it goes",
        source=_C4,
        unit="words",
        default=5,
        own={"datatrove": 3, "dolma": 3},
    ),
    Threshold(
        key="c4_max_word_chars",
        help="characters of a line's longest word, or it goes (not dolma)",
        source=_C4,
        unit="characters",
        default=1000,
        own={"dolma": None},
    ),
)
"""What the line rules go by."""

ROWS: Final = (
    RuleSpec(
        name="c4.lorem_ipsum",
        help="`lorem ipsum` on a line",
        measures=in_all(partial(_has_fault, fault="lorem_ipsum")),
        lines=partial(_mark_any_case, word=_LOREM),
        datatrove="lorem_ipsum",
    ),
    RuleSpec(
        name="c4.curly_bracket",
        help="`{` on a line",
        measures=in_all(partial(_has_fault, fault="curly_bracket")),
        lines=partial(_mark_any_case, word="{"),
        datatrove="curly_bracket",
    ),
    RuleSpec(
        name="c4.javascript",
        help="the word `javascript` on a line",
        measures={"dolma": partial(_has_fault, fault="javascript")},
        lines=partial(_mark_any_case, word="javascript"),
    ),
    RuleSpec(
        name="c4.too_few_sentences",
        side="below",
        threshold=Threshold(
            key="c4_min_sentences",
            help="sentences that the lines left have at least (not dolma)",
            source=_C4,
            unit="sentences",
            default=3,
            own={"datatrove": 5},
        ),
        help="sentences of the lines that stay",
        measures=dict.fromkeys(_WITH_SENTENCES, _num_sentences),
        quick=_num_lines,
        lines=_mark_removed,
        datatrove="too_few_sentences",
    ),
    RuleSpec(
        name="c4.too_many_words_removed",
        side="above",
        threshold=Threshold(
            key="c4_max_removed_words",
            help="share of a page's words in lines that went (only dclm sets it)",
            source=_DCLM,
            default=1,
            own={"dclm": 0.05},
        ),
        help="share of the words in lines that are removed",
        measures=in_all(_removed_words),
        quick=_any_words_removed,
        lines=_mark_removed,
    ),
)
"""The rules that reject a page."""


def rule_set(variant: Variant, limits: Limits, *, terminal_punctuation: bool) -> RuleSet:
    """The page rules, and the edit that leaves a page with the lines that passed."""
    cleaner = Cleaner(
        variant=variant,
        terminal_punctuation=terminal_punctuation,
        min_words=limits["c4_min_words_per_line"],
        max_word_chars=limits.get("c4_max_word_chars", 0.0),
    )
    rules = tuple(row.rule(variant, limits, cleaner=cleaner) for row in ROWS if row.is_in(variant, limits))
    return RuleSet(name="c4", rules=rules, edit=partial(_edit, cleaner=cleaner))
