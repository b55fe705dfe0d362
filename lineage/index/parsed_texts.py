"""texts/texts.json: names the files of a run that kept the text of every page after parse (`run.keep_text`).

texts/<source>/part-NNNNN.parquet              tables.PARSED_TEXTS: a row for each document of a unit that had a text
texts/facts/<source>/part-NNNNN.zip            what became of each document of the unit, and of its records; no text

They are apart from what is kept for good: a purge cleans them, or removes them as a whole. checksums.json
covers them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from lineage.index.checksums import FileSum, seal, unseal_format
from lineage.index.output_index import part_name
from lineage.json_record import JsonRecord, left_out_at
from lineage.storage.folder import Folder

FOLDER: Final = "texts"
TEXTS_FILE: Final = f"{FOLDER}/texts.json"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedPart(JsonRecord):
    """The parsed texts of `num_files` input files, the next ones of the source by name. `name` is the first
    one's and `input_bytes` are those of all; `hash` and
    `facts_hash` are the BLAKE3-128 (hex) of `file` and of `facts`, `bytes` and `facts_bytes` their
    lengths."""

    source: str
    part: int
    name: str
    input_bytes: int
    file: str
    hash: str
    num_rows: int
    bytes: int
    facts: str
    facts_hash: str
    facts_bytes: int
    num_files: int = left_out_at(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedTexts(JsonRecord):
    """The parsed texts of a run, in order of (source, part). `removed` names the purge that took them all
    away. Where they are not `kept`, the parts have facts alone (`tokenize.off` without run.keep_text), and
    `file` is empty."""

    kept: bool = True
    removed: str | None = None
    parts: tuple[ParsedPart, ...]

    def files(self) -> dict[str, str]:
        """The hash (hex) of every file of texts, by name."""
        return {part.file: part.hash for part in self.parts if self.kept}

    def sums(self) -> list[FileSum]:
        """The sum of every file of texts and facts, as it was written."""
        texts = [
            FileSum(file=part.file, hash=part.hash, bytes=part.bytes) for part in self.parts if self.kept
        ]
        return texts + [
            FileSum(file=part.facts, hash=part.facts_hash, bytes=part.facts_bytes) for part in self.parts
        ]

    @property
    def num_rows(self) -> int:
        """Documents that had a text."""
        return sum(part.num_rows for part in self.parts)

    @property
    def num_bytes(self) -> int:
        """What it costs to keep them, with their facts."""
        return sum(part.bytes + part.facts_bytes for part in self.parts)

    def parts_of(self, inputs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], ParsedPart]:
        """The part that holds the texts of each input file (source and name): parts lie in the order of the
        files' names."""
        of_source = {source: self.of_source(source) for source in {part.source for part in self.parts}}
        first = {source: [part.name for part in parts] for source, parts in of_source.items()}
        return {
            (source, name): of_source[source][at - 1]
            for source, name in inputs
            if (at := bisect_right(first.get(source, []), name))
        }

    def of_source(self, source: str) -> list[ParsedPart]:
        """The parts of one source, by number."""
        return [part for part in self.parts if part.source == source]


def texts_name(source: str, part: int, generation: int = 0) -> str:
    """The name of a file of parsed texts; `generation` counts the purges that rewrote it."""
    return part_name(FOLDER, source, part, generation)


def facts_name(source: str, part: int) -> str:
    """The name of the file that says what became of the documents of an input file."""
    return f"{FOLDER}/facts/{source}/part-{part:05d}.zip"


def publish_texts(
    out: Folder, parts: Iterable[ParsedPart], *, kept: bool = True, removed: str | None = None
) -> None:
    """Make these the parsed texts of `out`, atomically. Every file that is named must be there already."""
    ordered = tuple(sorted(parts, key=lambda part: (part.source, part.part)))
    texts = ParsedTexts(kept=kept, removed=removed, parts=ordered)
    out.publish(TEXTS_FILE, seal({"format": _FORMAT, **texts.to_json()}))


def read_parsed_texts(out: Folder) -> ParsedTexts | None:
    """The parsed texts of an output, None if its run kept neither them nor facts. DamagedFileError if a byte
    of texts.json is not as written, StorageError for one of a later version."""
    try:
        data = out.read(TEXTS_FILE)
    except FileNotFoundError:
        return None
    return ParsedTexts.from_json(unseal_format(data, out.at(TEXTS_FILE), _FORMAT))


def parsed_text_files(out: Folder) -> dict[str, str]:
    """The hash (hex) of every file of parsed texts that `out` names; none where its run kept none."""
    texts = read_parsed_texts(out)
    return {} if texts is None else texts.files()
