"""Small runs of the whole pipeline, and what makes two of them equal."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import tomli_w

from lineage.ids import content_hash
from lineage.storage.folder import Folder
from pipeline import process
from pipeline.phases.phase import RunState
from pipeline.phases.progress import ProgressReporter
from pipeline.plan import RunPlan
from pipeline.recipe.load import load
from pipeline.recipe.tables import PipelineRecipe, RayTable, RunTable, SourceTable
from tests.support.outputs.logical_digest import logical_digest
from tests.support.stores.s3_process import s3_process

MADE_FROM_BYTES = ("shards/", "documents/", "dedup/", "index.json", "excerpts.parquet")
"""What must be equal byte for byte; the lineage tables are compared by their rows."""


ON_RAY = {"address": "local", "num_cpus": 2}
"""The table [ray] of a run that is about Ray: the fixture `small_ray` where it is there, else one of its
own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """A folder of inputs and the patterns of its sources."""

    folder: Path
    sources: dict[str, tuple[str, ...]]


def recipe(out: str, sources: dict[str, tuple[str, ...]], **tables: dict[str, Any]) -> dict[str, Any]:
    """A recipe as TOML would say it, more tables as given. For speed it says resiliparse, and no Ray, whose
    start takes longer than many small runs (see `ON_RAY`)."""
    plain: dict[str, Any] = {
        "run": {"name": "test", "output": out},
        "source": [{"name": name, "inputs": list(inputs)} for name, inputs in sources.items()],
        "parse": {"extractor": "resiliparse"},
        "language": {"keep": ["en", "de", "fr", "es"]},
        "tokenize": {"shard_tokens": 20_000},
        "ray": {"address": "none"},
    }
    for name, table in tables.items():
        plain[name] = {**plain.get(name, {}), **table}
    return plain


def write_recipe(path: Path, plain: dict[str, Any]) -> Path:
    """The recipe as a file."""
    path.write_text(tomli_w.dumps(plain))
    return path


def run(folder: Path, plain: dict[str, Any], from_output: str | None = None) -> dict[str, Any]:
    """Carry the recipe out in this process; the content of run.json."""
    folder.mkdir(parents=True, exist_ok=True)
    loaded = load(write_recipe(folder / "recipe.toml", plain))
    return process.run(loaded, ProgressReporter(quiet=True), from_output=from_output).to_json()


def run_in(folder: Path, **ray: Any) -> RunState:
    """A run into this folder whose inputs are nobody's concern, for phases of other units than input
    files."""
    source = SourceTable(name="none", inputs=("none",))
    whole = PipelineRecipe(
        run=RunTable(name="test", output=str(folder)), source=(source,), ray=RayTable(**ray)
    )
    plan = RunPlan(recipe=whole, out=Folder(str(folder)), units=(), identity={}, key="")
    return RunState(plan=plan, reporter=ProgressReporter(quiet=True))


def fingerprint(out: str) -> dict[str, str]:
    """What law 1 speaks of: the hash of each file made from bytes, and the digest of each lineage table."""
    folder = Folder(out)
    files = {
        name: content_hash(folder.read(name)).hex()
        for name in folder.names()
        if name.startswith(MADE_FROM_BYTES)
    }
    return files | {f"lineage/{name}": digest for name, digest in logical_digest(folder).items()}


def summary_of(out: str) -> dict[str, Any]:
    """run.json of an output."""
    plain: dict[str, Any] = json.loads(Folder(out).read("run.json"))
    return plain


@contextmanager
def s3_server(bucket: str, versioned: bool = False) -> Iterator[None]:
    """A local server that speaks S3, its address and keys in the environment, with one bucket."""
    with s3_process() as settings:
        before = {name: os.environ.get(name) for name in settings}
        os.environ.update(settings)
        try:
            client = boto3.client("s3")
            client.create_bucket(Bucket=bucket)
            if versioned:
                client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
