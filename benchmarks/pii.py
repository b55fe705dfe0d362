"""What the personal-data rules find in labelled lines: recall by kind, and how many other lines they take for
personal.

    python -m benchmarks.pii [LABELLED]

A line of LABELLED is a JSON object: `kind` of personal data, `about` (what is special), `text`, and where a
document has them `language` and `url`. In the text ⟦ and ⟧ stand around personal data; a line without them
has none, and only looks like its kind. A ¦ is taken out: it keeps scanners of repositories from taking the
lines' secrets for real ones. A line counts as found where each piece is replaced, and nothing else is."""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lineage.pages import page_of
from stages.pii.options import KINDS
from stages.pii.regions import region_of
from stages.pii.scrub import PLACEHOLDERS, scrub

LABELLED: Final = Path(__file__).resolve().parents[1] / "tests" / "stages" / "pii" / "labelled.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledLine:
    """A text, and what is to be left of it."""

    kind: str
    about: str
    text: str
    expected: str
    region: str | None

    @property
    def is_personal(self) -> bool:
        """Whether there is anything to find."""
        return self.text != self.expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Lines by kind that are as they should be, and those that are not with what became of them."""

    num_lines: Counter[tuple[str, bool]]
    num_right: Counter[tuple[str, bool]]
    wrong: tuple[tuple[LabelledLine, str], ...]

    @property
    def num_false(self) -> int:
        """Lines without personal data of which something was taken for it."""
        return sum(not line.is_personal for line, _ in self.wrong)

    def recall(self, kind: str) -> float:
        """The share of a kind's lines that were found whole."""
        return self.num_right[kind, True] / self.num_lines[kind, True]


def read_lines(file: Path) -> list[LabelledLine]:
    """The lines of a labelled file."""
    found = []
    for row in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
        marked = row["text"].replace("¦", "")
        page = page_of(row.get("url"))
        found.append(
            LabelledLine(
                kind=row["kind"],
                about=row["about"],
                text=re.sub("[⟦⟧]", "", marked),
                expected=re.sub("⟦.*?⟧", PLACEHOLDERS["named"][row["kind"]][0].decode("ascii"), marked),
                region=region_of(row.get("language"), None if page is None else page.host),
            )
        )
    return found


def judge(lines: Iterable[LabelledLine]) -> Judged:
    """What the rules make of the lines."""
    num_lines, num_right = Counter[tuple[str, bool]](), Counter[tuple[str, bool]]()
    wrong = []
    for line in lines:
        num_lines[line.kind, line.is_personal] += 1
        left = scrub(line.text, KINDS, line.region).text
        if left == line.expected:
            num_right[line.kind, line.is_personal] += 1
        else:
            wrong.append((line, left))
    return Judged(num_lines=num_lines, num_right=num_right, wrong=tuple(wrong))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("labelled", type=Path, nargs="?", default=LABELLED)
    judged = judge(read_lines(parser.parse_args().labelled))
    print(f"{'kind':12} {'found':>9} {'recall':>7} {'left alone':>11}")
    for kind in KINDS:
        right, of = judged.num_right[kind, True], judged.num_lines[kind, True]
        alone, of_others = judged.num_right[kind, False], judged.num_lines[kind, False]
        print(f"{kind:12} {f'{right}/{of}':>9} {judged.recall(kind):7.1%} {f'{alone}/{of_others}':>11}")
    num_others = sum(num for (_, is_personal), num in judged.num_lines.items() if not is_personal)
    print(f"false finds: {judged.num_false} of {num_others} lines")
    for line, left in judged.wrong:
        print(f"  {'missed' if line.is_personal else 'false'}: {line.kind}, {line.about}: {left}")


if __name__ == "__main__":
    main()
