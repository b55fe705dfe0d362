"""Mutated files of every format go through readers and steps: nothing is raised, not even as a caught
fault."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.chain import DEFAULT_STEPS, Chain, build_chain
from stages.document import Document, Outcome, Place
from stages.reading.options import ReadOptions, Unreadable
from stages.reading.reader import read_documents
from stages.reading.warc.body import decode_body
from stages.steps.catalogue import StepTables
from stages.steps.language import LanguageTable
from stages.steps.parse import ParseTable
from tests.support.inputs.mutations import KINDS, NUMBERS, Made, Mutator

pytestmark = pytest.mark.hostile("stages")

MOST_BYTES = 1 << 20
FAST = {
    "WARC": ("warc", "record"),
    "ARC and WACZ": ("arc", "wacz"),
    "gzip": ("gzip",),
    "JSONL": ("jsonl", "row"),
    "Parquet": ("parquet",),
    "HTTP heads": ("http", "body"),
}


def chain_of(extractor: str) -> Chain:
    tables = StepTables(
        max_document_bytes=MOST_BYTES,
        parse=ParseTable(extractor=extractor),  # type: ignore[arg-type]
        language=LanguageTable(keep=("en",), prefilter=True),
    )
    return build_chain(DEFAULT_STEPS, tables)


class Fuzz:
    """Sends files through readers and steps, and holds what was raised on any of them, by kind and number. A
    document that was met before, like the neighbours of damaged ones, is not judged again."""

    def __init__(self, extractor: str = "resiliparse") -> None:
        self._chain = chain_of(extractor)
        self._met: set[int] = set()
        self.raised: list[str] = []
        self.num_files = self.num_unreadable = self.num_judged = 0

    def run(self, kind: str, seed: int, num: int) -> None:
        mutator = Mutator(seed)
        for number in range(num):
            name = f"{kind} {number} of seed {seed}"
            made = mutator.made(kind)
            self.num_files += 1
            documents = list(self._fresh(made, name))
            for outcome in self._chain.run([documents], {}):
                self.num_judged += 1
                self._note(name, outcome)

    def _fresh(self, made: Made, name: str) -> Iterator[Document]:
        for item in read_documents(io.BytesIO(made.data), options(made)):
            if isinstance(item, Unreadable):
                self.num_unreadable += 1
                self._note(name, item)
                continue
            key = hash(replace(item, doc_id=b"", place=Place(file="", offset=0, length=0)))
            if key not in self._met:
                self._met.add(key)
                yield item

    def _note(self, name: str, item: Outcome | Unreadable) -> None:
        fault = getattr(item, "fault", None)
        # An extractor of others' may choke on a page: that is what the rule is for.
        if fault is not None and getattr(getattr(item, "finding", None), "rule", "") != "parse.error":
            self.raised.append(f"{name}: {fault.summary}: {fault.message}")


def options(made: Made) -> ReadOptions:
    return ReadOptions(source="fuzz", file=made.name, max_document_bytes=MOST_BYTES)


@pytest.mark.parametrize("family", FAST)
def test_a_thousand_mutated_files_raise_nothing_in_readers_and_steps(family: str) -> None:
    fuzz, kinds = Fuzz(), FAST[family]
    for kind in kinds:
        fuzz.run(kind, seed=1, num=1000 // len(kinds))
    assert fuzz.raised == []
    assert fuzz.num_files == 1000
    assert fuzz.num_judged > 20, "too few mutated documents came through to say anything of the steps"
    assert fuzz.num_unreadable > 100 or family == "HTTP heads", "the mutations do not damage the files"


@pytest.mark.slow
@pytest.mark.parametrize("extractor", ["resiliparse", "trafilatura"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.timeout(6 * 3600)
def test_a_hundred_thousand_mutated_files_raise_nothing_in_readers_and_steps(
    kind: str, extractor: str
) -> None:
    num = 100_000 // len(KINDS) + 1
    fuzz = Fuzz(extractor)
    # trafilatura takes ten times as long: a tenth of the files
    fuzz.run(kind, seed=2, num=num if extractor == "resiliparse" else num // 10)
    assert fuzz.raised == []


@given(
    lengths=st.lists(
        st.sampled_from([number.decode("latin-1") for number in NUMBERS]) | st.text("0123456789abcdefF;")
    ),
    pieces=st.lists(st.binary(max_size=40)),
)
def test_chunks_of_any_length_are_read_as_far_as_they_go(lengths: list[str], pieces: list[bytes]) -> None:
    lines = zip(lengths, [*pieces, *[b"x"] * len(lengths)], strict=False)
    payload = b"".join(length.encode("latin-1") + b"\r\n" + piece + b"\r\n" for length, piece in lines)
    assert len(decode_body(payload, "chunked", MOST_BYTES)) <= len(payload)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(
    row=st.fixed_dictionaries(
        {"text": st.text() | VALUES},
        optional=dict.fromkeys(("id", "url", "date", "captured_at", "x"), VALUES),
    )
)
def test_rows_of_any_values_are_documents_or_unreadable_and_pass_the_steps(row: dict[str, object]) -> None:
    data = io.BytesIO(json.dumps(row).encode())
    (item,) = read_documents(data, ReadOptions(source="fuzz", file="x.jsonl", max_document_bytes=MOST_BYTES))
    outcome = CHAIN(item) if isinstance(item, Document) else item
    assert getattr(outcome, "fault", None) is None


CHAIN = chain_of("resiliparse")
