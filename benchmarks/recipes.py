"""FineWeb and FineWeb-2 by their names beside datatrove's own blocks, text by text: verdict, reason, clean
text.

    python -m benchmarks.recipes CRAWL [--texts FILE.jsonl] [--made 3] [--part 1/8] [--near 2000] [--show]

Both sides get equal texts: those of the pages of the WARC files in CRAWL, parsed once by trafilatura for
precision without its memory of earlier pages; of --texts, lines of JSON with `text` and, where it is known,
`language`; and with --made so many for each language of FineWeb-2, made of its stop words, its script and
what stands at the edges of rules; --part K/N makes them for every N-th language, from the K-th on; with
--near so many near the thresholds of rules, for each of twelve languages. FineWeb judges each text that
lid.176 takes for English, and FineWeb-2 each in a language that it has a configuration for and whose words
datatrove can split here.

Rule and edited text must be the same on both sides: one that is not is printed, and the exit status is 1.
Personal data is found by other patterns, which docs/recipes.md names: where the clean texts differ the pieces
are counted that only one side replaced (--show prints them)."""

from __future__ import annotations

import argparse
import difflib
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from benchmarks.peers.recipes import Judged, RecipeName, judged_by_datatrove, splits_words
from benchmarks.support.near_thresholds import SENTENCES, near_thresholds
from benchmarks.support.texts import extracted, predicted
from lineage.recipe import parse_table
from pipeline.recipe.tables import PipelineRecipe
from pipeline.recipe_help.named import template
from stages.composition import clean_text
from stages.document import Document, Place, Rejection
from stages.pii.step import PiiStep
from stages.quality.fineweb2.configurations import Configuration, configuration_of, configurations
from stages.quality.judged_languages import table_of
from stages.quality.languages import has_white_space, language_code
from stages.quality.options import limits
from stages.quality.step import QualityStep, quality_step

RECIPES: Final[tuple[RecipeName, ...]] = ("fineweb", "fineweb2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A text in a language that is known."""

    text: str
    language: str


def from_file(path: Path) -> Iterator[Text]:
    """The texts of a file of JSON lines; the language of one that names none is lid.176's."""
    with path.open(encoding="utf-8") as file:
        for row in map(json.loads, file):
            yield Text(text=row["text"], language=row.get("language") or language_of(row["text"]))


def language_of(text: str) -> str:
    """lid.176's likeliest label."""
    return predicted(text)[0].removeprefix("__label__")


# Made texts: what rules count, in the words and the script of a language.

_MARKS: Final = (
    "...", "…", "#", "-", "•", "{", "|", "(", ")", '"', "'", "’", "«", "»", "“", "–", "—", ":", ";", ",", "!", "?", "/",
    "。", "、", "؟", "،", "।", "॥", "።", "։", "‽", "@", "&", "%", "*", "_", "~", "^", "=", "+", "<", ">", "[1]", ":)",
)  # fmt: skip
_ODD: Final = (
    "\u00a0", "\u200b", "\u200d", "\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c", "\x1f", "\x7f", "\u3000",
    "\ufeff", "\u00ad", "\u202e", "\u0301", "\ufffd", "\U0001f642", "\U0001f468\u200d\U0001f469", "\U00020000",
    "\ue000", "\t", "  ",
)  # fmt: skip
_ALIKE: Final = (
    "12.5", "1,234", "10km", "3-4", "a.b.c", "U.S.", "z.B.", "p.m.", "don't", "l'eau", "C++", "ab_cd", "rock'n'roll",
    "http://example.org/a?b=c#d", "jane.doe@example.net", "8.8.8.8", "IS_ALPHA", "x" * 70, "1" * 25, "&amp;", "<br>",
    "Ã©", "â€™", "$5", "5€", "№7", "12:30", "(a)", "a/b", "a--b", "lorem ipsum", "[edit]", "javascript", "EE. UU.",
    "d.h.", "т.е.",
)  # fmt: skip
_ENDS: Final = (".", ".", ".", "!", "?", "…", "...", "。", "؟", "।", "", ":", ".”", " .")


def made_texts(configuration: Configuration, num: int) -> Iterator[Text]:
    """Texts in one language, a few of them odd in every way; the same in every run."""
    rng = random.Random(configuration.label)
    stop_words = list(configuration.stop_words)
    letters = "".join(sorted({char for word in stop_words for char in word if char.isalpha()})) or "a"
    join = " " if has_white_space(configuration.label) else ""
    for number in range(num):
        vocabulary = [
            "".join(rng.choices(letters, k=rng.choice((1, 2, 3, 5, 6, 8, 13))))
            for _ in range(rng.choice((20, 90, 400)))
        ]
        oddity = rng.choice((0.0, 0.02, 0.1, 0.3))
        lines: list[str] = []
        for _ in range(rng.choice((1, 4, 9, 20))):
            words = [_word(rng, vocabulary, stop_words, oddity) for _ in range(rng.choice((2, 6, 12, 40)))]
            lines.append(rng.choice(("", "", "", "- ", "• ", "| ")) + join.join(words) + rng.choice(_ENDS))
            if lines and rng.random() < oddity:
                lines += rng.choices(lines, k=rng.choice((1, 1, 3)))
            if rng.random() < oddity:
                lines.append(rng.choice(("", "", " ", "|", "| | |", "{", "lorem ipsum", "...")))
        text = rng.choice(("\n", "\n", "\n\n", "\n\n\n")).join(lines)
        if number and rng.random() < 0.1:
            text = rng.choice(("", " ", "\n", "|\n|", "…")) + text[: rng.choice((0, 1, 40))]
        yield Text(text=text, language=configuration.label)


def _word(rng: random.Random, vocabulary: Sequence[str], stop_words: Sequence[str], oddity: float) -> str:
    if rng.random() < oddity:
        kind = rng.choice((_MARKS, _MARKS, _ODD, _ALIKE))
        odd = rng.choice(kind)
        return rng.choice((odd, odd + rng.choice(vocabulary), rng.choice(vocabulary) + odd))
    word = rng.choice(stop_words) if stop_words and rng.random() < 0.3 else rng.choice(vocabulary)
    return word.capitalize() if rng.random() < 0.1 else word + rng.choice(("", "", "", "", ",", "."))


# Ours.


@cache
def _steps(recipe: RecipeName) -> tuple[QualityStep, PiiStep]:
    """The steps of a named recipe that judge and edit a text in a known language."""
    tables = parse_table(PipelineRecipe, template(recipe).tables)
    return quality_step(tables.quality), PiiStep(tables.pii)


def judged_by_us(recipe: RecipeName, text: str, language: str) -> Judged:
    """The steps of the named recipe on one text."""
    quality, pii = _steps(recipe)
    place = Place(file="x", offset=0, length=0)
    document = Document(doc_id=b"", source="x", place=place, raw_hash=b"", text=text, language=language)
    edited = quality(document)
    if isinstance(edited, Rejection):
        return Judged(rule=edited.finding.rule)
    clean = pii(edited)
    assert isinstance(clean, Document)  # it replaces, and turns nothing down
    return Judged(rule=None, edited=edited.text, clean=clean.text)


def is_judged(recipe: RecipeName, language: str) -> bool:
    """Whether the recipe judges texts in a language, with words that both sides can split here."""
    if recipe == "fineweb":
        return language_code(language) == "en"
    configuration = configuration_of(language)
    table = parse_table(PipelineRecipe, template(recipe).tables).quality
    return (
        configuration is not None
        and table_of(table, language) is not None
        and splits_words(configuration.label)
    )


# Both.


class Comparison:
    """What came of the texts of one recipe on both sides."""

    def __init__(self, recipe: RecipeName) -> None:
        self.recipe = recipe
        self.languages = Counter[str]()
        self.rules = Counter[str]()
        self.pieces = Counter[str]()
        self.faults: list[str] = []
        self.replaced: list[str] = []
        self.num_kept = self.num_edited = self.num_replaced = self.num_apart = self.num_raised = 0

    def add(self, given: Text) -> None:
        """Judge one text on both sides."""
        ours = judged_by_us(self.recipe, given.text, given.language)
        try:
            theirs = judged_by_datatrove(self.recipe, given.text, given.language)
        except (ZeroDivisionError, ValueError, IndexError):
            self.num_raised += 1
            return
        self.languages[language_code(given.language)] += 1
        self.rules[theirs.rule or "kept"] += 1
        if ours.rule != theirs.rule:
            self.faults.append(
                f"{given.language}: {ours.rule} here, {theirs.rule} there: {given.text[:300]!r}"
            )
            return
        if ours.rule is not None:
            return
        self.num_kept += 1
        self.num_edited += theirs.edited != given.text
        if ours.edited != theirs.edited:
            self.faults.append(
                f"{given.language}: edited otherwise: {_apart(ours.edited, theirs.edited)[:3]}"
            )
            return
        self.num_replaced += theirs.clean != theirs.edited
        if ours.clean != theirs.clean:
            self.num_apart += 1
            self._personal_data(ours, theirs)

    def _personal_data(self, ours: Judged, theirs: Judged) -> None:
        """The pieces of a text that one side took for personal data and the other did not."""
        of_us, of_them = _replaced(ours), _replaced(theirs)
        for who, pieces in (("here alone", of_us - of_them), ("there alone", of_them - of_us)):
            self.pieces[who] += pieces.total()
            self.replaced += [f"{who}: {piece!r}" for piece in pieces.elements()]


def _replaced(judged: Judged) -> Counter[str]:
    """Pieces between white space of the edited text that the clean one does not have."""
    return Counter(judged.edited.split()) - Counter(judged.clean.split())


def _apart(ours: str, theirs: str) -> list[tuple[str, str]]:
    """Stretches in which two texts differ."""
    matcher = difflib.SequenceMatcher(None, ours, theirs, autojunk=False)
    return [(ours[a:b], theirs[c:d]) for tag, a, b, c, d in matcher.get_opcodes() if tag != "equal"]


def told(found: Comparison, show: bool) -> dict[str, object]:
    """What is printed of a comparison."""
    return {
        "recipe": found.recipe,
        "texts": found.languages.total(),
        "languages": dict(found.languages.most_common())
        if len(found.languages) < 100
        else len(found.languages),
        "rules": dict(found.rules.most_common()),
        "kept": found.num_kept,
        "edited": found.num_edited,
        "datatrove_raises": found.num_raised,
        "disagreements": len(found.faults),
        "personal_data": found.num_replaced,
        "other_personal_data": {"texts": found.num_apart, **found.pieces},
        **({"pieces": found.replaced} if show else {}),
    }


def _part(text: str) -> tuple[int, int]:
    """K/N as (K, N)."""
    part, _, parts = text.partition("/")
    if not 1 <= int(part) <= int(parts):
        raise ValueError
    return int(part), int(parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("crawl", type=Path)
    parser.add_argument("--texts", type=Path, help="further texts, as lines of JSON")
    parser.add_argument("--made", type=int, default=0, help="texts made for each language of FineWeb-2")
    parser.add_argument(
        "--part",
        type=_part,
        default=(1, 1),
        metavar="K/N",
        help="of --made: every N-th language from the K-th",
    )
    parser.add_argument(
        "--near", type=int, default=0, help="texts near the thresholds for each of 12 languages"
    )
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=RECIPES)
    parser.add_argument(
        "--show", action="store_true", help="print what one side alone took for personal data"
    )
    options = parser.parse_args()
    texts = [
        Text(text=text, language=language_of(text))
        for text in extracted(options.crawl, "trafilatura", 1_000_000)
    ]
    if options.texts:
        texts += from_file(options.texts)
    first, step = options.part
    for configuration in list(configurations().values())[first - 1 :: step] if options.made else ():
        texts += made_texts(configuration, options.made)
    for label in SENTENCES if options.near else ():
        recipe: RecipeName = "fineweb" if label == "eng_Latn" else "fineweb2"
        bounds = limits(parse_table(PipelineRecipe, template(recipe).tables).quality, label)
        texts += (Text(text=text, language=label) for text in near_thresholds(label, bounds, options.near))
    texts = [Text(text=clean_text(each.text)[0], language=each.language) for each in texts]
    num_faults = 0
    for recipe in options.recipes:
        found = Comparison(recipe)
        for each in texts:
            if is_judged(recipe, each.language):
                found.add(each)
        print(json.dumps(told(found, options.show), ensure_ascii=False), flush=True)
        for fault in found.faults[:20]:
            print(fault)
        num_faults += len(found.faults)
    sys.exit(1 if num_faults else 0)


if __name__ == "__main__":
    main()
