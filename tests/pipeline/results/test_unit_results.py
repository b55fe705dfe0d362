"""What a phase returns: the same from its marker as from its task, and nothing misspelt in either."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any

import pytest

from lineage.index.output_index import PartFile, Shard
from lineage.json_record import JsonRecord
from lineage.store.write import TableFile
from pipeline.cluster.metrics import Rejections, StageFlow
from pipeline.phases.join import join_phase
from pipeline.phases.phase import RunState
from pipeline.phases.progress import ProgressReporter
from pipeline.phases.read import read_job, read_phase
from pipeline.plan import plan_run
from pipeline.recipe.load import load
from pipeline.results.faults import FaultRow
from pipeline.results.unit_results import (
    BucketCuts,
    BucketResult,
    BucketSize,
    CleanPart,
    CutResult,
    InputFile,
    JoinResult,
    PartResult,
    PartSize,
    ReadResult,
    RepeatSize,
    RuleCount,
    ShortenedResult,
    ShuffleResult,
    TokenizeResult,
    UnreadableStretch,
)
from tests.support.outputs.runs import recipe, write_recipe

FAULT = FaultRow(
    stage="parse",
    error="KeyError",
    where="a, line 3",
    num=2,
    file="a.warc.gz",
    offset=7,
    doc_id="ab" * 16,
    traceback="Traceback of \u017c",
    message="'x'",
)
READ = ReadResult(
    key="k",
    source="web",
    file="a.warc.gz",
    url="/crawl/a.warc.gz",
    num_bytes=2**40,
    num_records=9,
    by_type={"response": 8, "warcinfo": 1},
    by_mime={"text/html": 9},
    by_status={"200": 9},
    unreadable=(UnreadableStretch(10, 20, "clipped"), UnreadableStretch(50, 1, "again")),
    num_documents=8,
    digest="f" * 32,
    rejected=(RuleCount("url", "url.blocked", 2, "0" * 32), RuleCount("parse", "parse.empty", 1, "1" * 32)),
    num_survivors=5,
    num_chars=500,
    html_bytes=5000,
    faults=(FAULT,),
    seconds={"all": 1.25, "parse": 0.1, "url": 0.000001},
    part=CleanPart(file="documents/web/part-00000.parquet", num_rows=5, hash="2" * 32),
)
RESULTS: list[Any] = [
    READ,
    replace(READ, unreadable=(), rejected=(), faults=(), seconds={}),
    ShortenedResult(
        part=CleanPart(file="work/units/1/shortened.parquet", num_rows=5, hash="3" * 32),
        num_documents=2,
        num_cuts=3,
        num_chars=700,
    ),
    InputFile(
        url="/crawl/notes/a.txt",
        num_bytes=12,
        num_records=1,
        num_documents=1,
        by_type={"file": 1},
        by_mime={},
        by_status={},
        notes={"binary": 1},
    ),
    TokenizeResult(num_documents=5, num_tokens=90, num_chars=500),
    CutResult(num_shards=3),
    BucketCuts(name="edu", column="score_edu", cuts=(0.25, 0.5)),
    BucketSize(source="web", bucket="edu-0", num_documents=5, num_tokens=90),
    PartSize(bucket="edu-0", repeats=2, num_documents=5, num_tokens=90),
    PartResult(parts=(PartSize(bucket="edu-0", repeats=None, num_documents=5, num_tokens=90),)),
    RepeatSize(source="web", first=2, times=1.5, num_documents=5, num_tokens=90, num_readings=8),
    RepeatSize(
        source="web", language="it", first=2, times=1.5, num_documents=5, num_tokens=90, num_readings=8
    ),
    Shard(
        source="web",
        shard=4,
        file="shards/web/00004.bin",
        num_tokens=90,
        num_documents=5,
        hash="3" * 32,
        blocks_file="shards/web/00004.blocks",
        blocks_hash="4" * 32,
        index_file="shards/web/00004.idx.parquet",
        index_hash="5" * 32,
    ),
    JoinResult(
        dedup=PartFile(source="web", part=0, file="dedup/web/part-00000.parquet", num_rows=4, hash="6" * 32),
        dropped=(RuleCount("dedup.near", "dedup.near", 1, "7" * 32),),
        num_rows=8,
        num_kept=4,
    ),
    ShuffleResult(tables=("documents", "edits")),
    BucketResult(files=(TableFile(path="part-0.parquet", size=10, num_rows=2, stats="{}"),)),
]


def test_every_result_of_a_phase_is_tried_here() -> None:
    kinds = {kind for kind in map(type, RESULTS) if kind is not Shard}
    from pipeline.results import unit_results

    defined = {
        kind for kind in vars(unit_results).values() if is_dataclass(kind) and hasattr(kind, "from_json")
    }
    assert {kind for kind in defined if kind.__module__ == unit_results.__name__} == kinds


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: type(result).__name__)
def test_a_result_read_from_its_marker_is_the_one_that_was_written(result: JsonRecord) -> None:
    again = type(result).from_json(json.loads(json.dumps(result.to_json())))
    assert again == result
    for field in fields(result):  # type: ignore[arg-type]
        assert type(getattr(again, field.name)) is type(getattr(result, field.name))


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: type(result).__name__)
def test_a_marker_with_a_key_too_many_or_too_few_is_refused(result: JsonRecord) -> None:
    plain = result.to_json()
    with pytest.raises(TypeError, match="num_documentz"):
        type(result).from_json({**plain, "num_documentz": 1})
    optional = {
        field.name
        for field in fields(result)  # type: ignore[arg-type]
        if field.default is not MISSING or field.default_factory is not MISSING
    }
    for name in plain.keys() - optional:
        with pytest.raises((TypeError, KeyError), match=name):
            type(result).from_json({key: value for key, value in plain.items() if key != name})


def test_a_misspelt_field_fails_where_the_result_is_made() -> None:
    with pytest.raises(TypeError, match="num_shard"):
        CutResult(num_shard=3)  # type: ignore[call-arg]


def test_each_phase_says_what_the_metrics_count(tmp_path: Any) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    plain = recipe(str(tmp_path / "out"), {"web": (str(tmp_path / "a.jsonl"),)})
    plan = plan_run(load(write_recipe(tmp_path / "recipe.toml", plain)))
    counts = read_phase(
        RunState(plan=plan, reporter=ProgressReporter(quiet=True)),
        read_job(plan.recipe),
        plan.units,
        lambda result: None,
    ).counts(READ)
    assert (counts.num_documents, counts.num_bytes, counts.page_bytes) == (8, 2**40, 5000)
    assert counts.stages == (StageFlow("url", 8, 0.000001), StageFlow("parse", 6, 0.1))
    assert counts.rejections == (Rejections("url", "url.blocked", 2), Rejections("parse", "parse.empty", 1))
    joined = next(result for result in RESULTS if isinstance(result, JoinResult))
    counts = join_phase(plan, [], []).counts(joined)
    assert (counts.num_documents, counts.stages) == (0, ())
    assert counts.rejections == (Rejections("dedup.near", "dedup.near", 1),)
