"""Source files at hand, judged by the rules of code and by the default ones: kept and rejected by rule.

    python -m benchmarks.source_files --real DIR… --generated DIR… [--number 300]

Files of equal text count once. Of each group so many are drawn, by the hash of their text, in turns by
language so that no language fills the sample. What was kept of the generated ones and rejected of the real
ones is listed, to be looked at: who wrote a file is not in its bytes, so the two groups are what the call
says they are."""

from __future__ import annotations

import argparse
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from time import process_time

from lineage.ids import content_hash
from stages.document import Document, Place, Rejection
from stages.quality.code.language import language_of
from stages.quality.options import QualityTable
from stages.quality.step import quality_step

_MOST_BYTES = 1_000_000
_LEAST_CHARS = 100


def documents(folders: Sequence[str], number: int) -> list[Document]:
    """So many files of known languages below the folders (or the files themselves)."""
    by_language: dict[str, dict[bytes, Document]] = defaultdict(dict)
    for path in itertools.chain.from_iterable(map(_files, folders)):
        if not 0 < path.stat().st_size <= _MOST_BYTES:
            continue
        try:
            text = path.read_text("utf-8").strip()
        except UnicodeDecodeError:
            continue
        language = language_of(str(path), text)
        if language is not None and len(text) >= _LEAST_CHARS:
            found = _document(str(path), text, language)
            by_language[language][found.raw_hash] = found
    drawn = [[each[key] for key in sorted(each)] for _, each in sorted(by_language.items())]
    in_turns = itertools.chain.from_iterable(itertools.zip_longest(*drawn))
    return list(itertools.islice((found for found in in_turns if found is not None), number))


def _files(folder: str) -> Iterable[Path]:
    path = Path(folder)
    return [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())


def _document(path: str, text: str, language: str) -> Document:
    return Document(
        doc_id=bytes(16), source="code", place=Place(file=path, offset=0, length=len(text)),
        raw_hash=content_hash(text.encode()), record_id=path, text=text, language=language,
    )  # fmt: skip


def verdicts(files: Sequence[Document], table: QualityTable) -> Iterator[str]:
    """The rule that turns each file down, or `kept`. Rules of prose take each for English."""
    step = quality_step(table)
    for file in files:
        outcome = step(file if table.variant == "code" else _as_english(file))
        yield outcome.finding.rule if isinstance(outcome, Rejection) else "kept"


def _as_english(file: Document) -> Document:
    return Document(
        doc_id=file.doc_id,
        source=file.source,
        place=file.place,
        raw_hash=file.raw_hash,
        text=file.text,
        language="en",
    )


def main() -> None:
    """Prints the counts and the disagreements."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--real", nargs="+", required=True, metavar="DIR")
    parser.add_argument("--generated", nargs="+", required=True, metavar="DIR")
    parser.add_argument("--number", type=int, default=300)
    options = parser.parse_args()
    for name, folders in (("real", options.real), ("generated", options.generated)):
        files = documents(folders, options.number)
        by_default = Counter(verdicts(files, QualityTable()))
        started = process_time()
        found = list(verdicts(files, QualityTable(variant="code")))
        each = (process_time() - started) * 1e3 / max(1, len(files))
        print(f"{name}: {len(files)} files, {Counter(file.language for file in files).most_common()}")
        print(f"  rules of code ({each:.2f} ms a file): {dict(Counter(found).most_common())}")
        print(f"  default rules: {by_default['kept']} kept")
        for file, rule in zip(files, found, strict=True):
            if (rule == "kept") != (name == "real"):
                print(f"  {name}, {rule}: {file.record_id}")


if __name__ == "__main__":
    main()
