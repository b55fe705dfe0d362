"""Two commands at once on one output in S3, on a store that fails and lies: each is called until it ends, and
nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lineage.storage.folder import Folder
from lineage.verify.output import verify
from pipeline.inspect.hooks import verify_hooks
from tests.support.checkout import ROOT
from tests.support.outputs import runs
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import fingerprint, recipe, run, write_recipe
from tests.support.stores.disk_cases import few_documents
from tests.support.stores.failing_store import FaultPlan, failing_store, noted

PLANS = {
    "errors": FaultPlan(seed=1, error=0.02, busy=0.02),
    "slow": FaultPlan(seed=2, slow=0.2),
    "cut bodies": FaultPlan(seed=3, cut=0.01),
    "late listings": FaultPlan(seed=4, late=0.3),
}
MOST_CALLS = 40
NONE = {"address": "none"}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * 3600)]

Sources = dict[str, tuple[str, ...]]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    return few_documents(tmp_path_factory.mktemp("crawl"))


@pytest.fixture(scope="module")
def on_disk(sources: Sources, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("on-disk")
    run(folder, recipe(str(folder / "out"), sources, ray=NONE))
    return folder / "out"


def called_until_it_ends(arguments: tuple[str, ...], endpoint: str) -> list[str]:
    """What each call that failed said: in a sentence with the place."""
    settings, told = {**os.environ, "AWS_ENDPOINT_URL": endpoint, "AWS_MAX_ATTEMPTS": "2"}, []
    while len(told) < MOST_CALLS:
        call = [sys.executable, "-m", "pipeline", *arguments]
        done = subprocess.run(call, env=settings, capture_output=True, text=True, check=False, cwd=ROOT)
        if done.returncode == 0:
            return told
        assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr[-6000:]
        assert "s3://plain/out" in done.stderr, done.stderr[-6000:]
        told.append(done.stderr.strip().splitlines()[-1])
    raise AssertionError("it did not end: " + "\n".join(told))


def both(first: tuple[str, ...], second: tuple[str, ...], plan: FaultPlan, notes: Path) -> list[str]:
    """Both at once until both have ended; what the calls that failed said."""
    with (
        failing_store(os.environ["AWS_ENDPOINT_URL"], plan, notes) as endpoint,
        ThreadPoolExecutor(2) as at_once,
    ):
        begun = [at_once.submit(called_until_it_ends, call, endpoint) for call in (first, second)]
        told = [line for each in begun for line in each.result()]
    print(f"{noted(notes).total()} requests, {dict(noted(notes))}", *told, sep="\n")
    return told


@pytest.mark.parametrize("name", PLANS)
def test_two_runs_at_once_leave_the_bytes_of_one(
    name: str, sources: Sources, on_disk: Path, tmp_path: Path
) -> None:
    path = write_recipe(tmp_path / "recipe.toml", recipe("s3://plain/out", sources, ray=NONE))
    with runs.s3_server("plain"):
        both(("run", str(path)), ("run", str(path)), PLANS[name], tmp_path / "notes")
        out = Folder("s3://plain/out")
        assert fingerprint(out.url) == fingerprint(str(on_disk))
        assert not out.names("work") and not verify(out, verify_hooks(out)).problems


@pytest.mark.parametrize("name", PLANS)
def test_two_purges_at_once_are_both_carried_out(name: str, sources: Sources, tmp_path: Path) -> None:
    out = Folder("s3://plain/out")
    with runs.s3_server("plain"):
        run(tmp_path, recipe(out.url, sources, ray=NONE))
        kept = query(out, "SELECT doc_id FROM documents WHERE status = 'kept' ORDER BY doc_id LIMIT 2").rows
        calls = [
            ("purge", out.url, "--doc", str(row[0]), "--reason", "a test", "--by", "a test", "--apply")
            for row in kept
        ]
        both(calls[0], calls[1], PLANS[name], tmp_path / "notes")
        purged = {row[0] for row in query(out, "SELECT doc_id FROM purged").rows}
        assert purged >= {row[0] for row in kept}
        assert len(query(out, "SELECT purge_id FROM purges").rows) == 2
        assert not out.names("work") and not verify(out, verify_hooks(out)).problems
