"""From the lineage store back to the crawl and forward to the tokens: what a history says can be done
again."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import blake3
import numpy as np
import pytest
from fastwarc.warc import ArchiveIterator

from lineage.index.output_index import Index, read_index
from lineage.storage.folder import Folder
from lineage.trace.document_history import DocumentHistory
from lineage.trace.tracer import Tracer
from pipeline.demo.crawl import Truth
from pipeline.inspect.trace.tracing import make_tracer
from pipeline.phases.steps import step_tables
from pipeline.recipe.load import load
from stages.chain import build_chain
from stages.document import Document, Rejection
from stages.reading.options import ReadOptions
from stages.reading.reader import read_one
from stages.tokens.tokenizer import load_tokenizer
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import ON_RAY, recipe, run

pytestmark = [pytest.mark.usefixtures("small_ray"), pytest.mark.slow]

SAMPLE = 200
DEMO = {"web": "web-*.warc.gz", "news": "news-*.warc.gz", "boards": "boards-*.jsonl.gz"}


@pytest.fixture(scope="module", params=["demo", "crawl"])
def finished(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, demo_crawl: tuple[Path, Truth]
) -> tuple[Path, Path]:
    """(folder of the recipe and the output, folder of the input files): a demo crawl, then the real one."""
    folder = tmp_path_factory.mktemp(str(request.param))
    crawl, _ = demo_crawl
    sources = {name: (str(crawl / pattern),) for name, pattern in DEMO.items()}
    if request.param == "crawl":
        crawl = request.getfixturevalue("real_data") / "crawl"
        sources = {"crawl": (str(crawl / "*.warc.gz"),)}
    run(folder, recipe(str(folder / "out"), sources, parse={"extractor": "trafilatura"}, ray=ON_RAY))
    return folder, crawl


def chosen(out: Folder, where: str) -> list[str]:
    ids = sorted(
        str(row[0]) for row in query(out, f"SELECT DISTINCT doc_id FROM documents WHERE {where}").rows
    )
    return random.Random(11).sample(ids, min(SAMPLE, len(ids)))


def read_again(history: DocumentHistory, crawl: Path) -> Document:
    """The document from its bytes in the crawl: of a WARC file nothing but the member that the history
    names."""
    row = history.row
    options = ReadOptions(source=row.source, file=row.warc_file)
    with open(crawl / row.warc_file, "rb") as stream:
        if ".warc" not in row.warc_file:
            found = read_one(stream, row.warc_offset, options)
        else:
            stream.seek(row.warc_offset)
            found = read_one(io.BytesIO(stream.read(row.warc_length)), 0, options)
    assert isinstance(found, Document)
    return found


def payload_by_fastwarc(history: DocumentHistory, crawl: Path) -> bytes:
    """The same payload by somebody else's reader."""
    with open(crawl / history.row.warc_file, "rb") as stream:
        stream.seek(history.row.warc_offset)
        member = io.BytesIO(stream.read(history.row.warc_length))
    payload: bytes = next(iter(ArchiveIterator(member))).reader.read()
    return payload


def test_the_crawl_s_own_bytes_give_the_same_hashes_and_the_same_end(finished: tuple[Path, Path]) -> None:
    folder, crawl = finished
    out = Folder(str(folder / "out"))
    wanted = load(folder / "recipe.toml", [])
    chains = {source.name: build_chain(source.steps, step_tables(wanted)) for source in wanted.source}
    ids = chosen(out, "rule IS DISTINCT FROM 'identity.repeated'")
    assert len(ids) == SAMPLE
    seen = set()
    for history in make_tracer(out.url).histories([bytes.fromhex(doc_id) for doc_id in ids]):
        row, document = history.row, read_again(history, crawl)
        assert (document.doc_id, document.raw_hash, document.url) == (row.doc_id, row.raw_hash, row.url)
        if ".warc" in row.warc_file:
            assert blake3.blake3(payload_by_fastwarc(history, crawl)).digest(16) == row.raw_hash
        outcome = chains[row.source](document)
        left = outcome.document if isinstance(outcome, Rejection) else outcome
        assert left.text_hash == row.text_hash
        seen.add(row.status)
        if row.status == "rejected":
            assert isinstance(outcome, Rejection)
            assert (outcome.finding.stage, outcome.finding.rule) == (row.stage, row.rule)
            assert (outcome.finding.value, outcome.finding.threshold) == (row.value, row.threshold)
        else:
            assert isinstance(outcome, Document)
            assert blake3.blake3(left.text.encode()).digest(16) == row.clean_hash
            assert len(left.text) == row.num_chars
    assert {"kept", "rejected"} <= seen


def tokens_of(out: Folder, index: Index) -> dict[tuple[str, int], Any]:
    return {(shard.source, shard.shard): np.frombuffer(out.read(shard.file), "<u4") for shard in index.shards}


def test_a_token_range_decodes_to_the_clean_text_and_every_direction_leads_back(
    finished: tuple[Path, Path],
) -> None:
    out = Folder(str(finished[0] / "out"))
    tokenizer, tracer, tokens = (
        load_tokenizer("cl100k_base"),
        make_tracer(out.url),
        tokens_of(out, read_index(out)),
    )
    ids = chosen(out, "status = 'kept'")
    for history in tracer.histories([bytes.fromhex(doc_id) for doc_id in ids]):
        row = history.row
        assert row.shard is not None and row.start is not None and row.num_tokens is not None
        placed = tokens[row.source, row.shard][row.start : row.start + row.num_tokens]
        assert blake3.blake3(placed.tobytes()).digest(16) == row.tokens_hash
        assert placed[-1] == tokenizer.eot_id
        assert blake3.blake3(tokenizer.decode_bytes(placed[:-1])).digest(16) == row.clean_hash
        for offset in (row.start, row.start + row.num_tokens // 2, row.start + row.num_tokens - 1):
            assert leads_to(tracer, row.source, row.shard, offset) == row.doc_id
        assert row.doc_id in {found.doc_id for found in tracer.by_place(row.warc_file, row.warc_offset)}
        assert row.doc_id in {found.doc_id for found in tracer.by_hash(row.clean_hash)}
        assert row.url is None or row.doc_id in {found.doc_id for found in tracer.by_url(row.url)}


def leads_to(tracer: Tracer, source: str, shard: int, offset: int) -> bytes:
    (history,) = tracer.by_token(source, shard, offset)
    return history.doc_id


def test_placements_and_shards_say_the_same_of_every_document(finished: tuple[Path, Path]) -> None:
    import pyarrow.parquet as pq

    out = Folder(str(finished[0] / "out"))
    by_shards = set()
    for shard in read_index(out).shards:
        placed = pq.read_table(io.BytesIO(out.read(shard.index_file))).to_pylist()
        ends = [row["start"] + row["num_tokens"] for row in placed]
        assert [row["start"] for row in placed] == [0, *ends[:-1]], "placements tile the shard"
        assert ends[-1] == shard.num_tokens
        by_shards |= {
            (
                r["doc_id"].hex(),
                shard.source,
                shard.shard,
                r["start"],
                r["num_tokens"],
                r["tokens_hash"].hex(),
            )
            for r in placed
        }
    asked = query(out, "SELECT doc_id, source, shard, start, num_tokens, tokens_hash FROM placements").rows
    assert {tuple(row) for row in asked} == by_shards
    assert len(asked) == len(by_shards)
