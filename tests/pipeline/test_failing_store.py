"""OUT on a store that fails and lies: a run that is called again until it ends leaves the same bytes as on
disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lineage.storage.folder import Folder
from lineage.verify.output import verify
from pipeline.inspect.hooks import verify_hooks
from tests.support.checkout import ROOT
from tests.support.inputs.tiny_crawl import make_tiny_crawl
from tests.support.outputs import runs
from tests.support.outputs.runs import fingerprint, recipe, run, write_recipe
from tests.support.stores.failing_store import FaultPlan, failing_store, noted

PLANS = {
    "errors": FaultPlan(seed=1, error=0.02, busy=0.02, outage=0.002, outage_requests=12),
    "slow": FaultPlan(seed=2, slow=0.2, outage=0.002, outage_requests=12),
    "cut bodies": FaultPlan(seed=3, cut=0.01, outage=0.002, outage_requests=12),
    "resets": FaultPlan(seed=4, reset=0.03, outage=0.002, outage_requests=12),
    "lost answers": FaultPlan(seed=5, lost=0.03),
    "all": FaultPlan(
        seed=6,
        error=0.01,
        busy=0.01,
        slow=0.05,
        cut=0.01,
        reset=0.01,
        lost=0.01,
        outage=0.002,
        outage_requests=12,
    ),
}
MOST_CALLS = 40


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, ...]]:
    return make_tiny_crawl(tmp_path_factory.mktemp("crawl"))


@pytest.fixture(scope="module")
def on_disk(
    address: str, sources: dict[str, tuple[str, ...]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("on-disk")
    run(folder, recipe(str(folder / "out"), sources))
    return fingerprint(str(folder / "out"))


@pytest.mark.slow
@pytest.mark.timeout(2 * 3600)
@pytest.mark.parametrize("name", PLANS)
def test_a_run_to_a_store_that_fails_and_lies_ends_with_the_bytes_of_a_run_to_disk(
    name: str, address: str, sources: dict[str, tuple[str, ...]], on_disk: dict[str, str], tmp_path: Path
) -> None:
    path = write_recipe(tmp_path / "recipe.toml", recipe("s3://plain/out", sources, ray={"address": address}))
    notes = tmp_path / "notes"
    with runs.s3_server("plain"):
        with failing_store(os.environ["AWS_ENDPOINT_URL"], PLANS[name], notes) as endpoint:
            calls = called_until_it_ends(path, settings(endpoint))
        told = noted(notes)
        print(f"{name}: {calls} calls, {told.total()} requests, {dict(told)}")
        assert told.total() - told["fine"] > 20, "the store hardly failed"
        assert fingerprint("s3://plain/out") == on_disk
        out = Folder("s3://plain/out")
        assert not out.names("work")
        assert not verify(out, verify_hooks(out)).problems


def settings(endpoint: str) -> dict[str, str]:
    """How the calls reach the store: by clients that try twice and not five times, so that more failures are
    ours."""
    return {**os.environ, "AWS_ENDPOINT_URL": endpoint, "AWS_MAX_ATTEMPTS": "2"}


def called_until_it_ends(path: Path, settings: dict[str, str]) -> int:
    """The same call again and again: each that fails says why in one line. How many it took."""
    told: list[str] = []
    while len(told) < MOST_CALLS:
        done = subprocess.run(
            [sys.executable, "-m", "pipeline", "run", str(path)],
            env=settings,
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
        if done.returncode == 0:
            return len(told) + 1
        told.append(done.stderr)
        assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr[-6000:]
        assert "s3://plain/out" in done.stderr, done.stderr[-6000:]
    raise AssertionError("the run did not end: " + "\n".join(error[-300:] for error in told))
