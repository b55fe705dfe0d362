"""Two commands at once on one output: each waits, or refuses with one clear line, or both end right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import tomli_w

from lineage.index.output_index import read_index
from lineage.storage.folder import Folder
from lineage.verify.output import verify
from pipeline.inspect.hooks import verify_hooks
from tests.support.checkout import ROOT
from tests.support.inputs.tiny_crawl import make_tiny_crawl, tiny_tokenizer
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import fingerprint, recipe, write_recipe

DEADLINE = 600.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.usefixtures("address")]

Process = subprocess.Popen[str]
Sources = dict[str, tuple[str, ...]]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    return make_tiny_crawl(tmp_path_factory.mktemp("crawl"))


def recipe_to(out: Path, sources: Sources, address: str) -> Path:
    """The recipe of a run to `out`, beside it."""
    web = sources["web"][0]
    plain = recipe(str(out), sources, ray={"address": address})
    plain["tokenize"]["encoding"] = tiny_tokenizer(Path(web).parent)
    out.parent.mkdir(parents=True, exist_ok=True)
    return write_recipe(out.parent / "recipe.toml", plain)


@pytest.fixture(scope="module")
def undisturbed(address: str, sources: Sources, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a run that nobody disturbed."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    assert ended(start("run", str(recipe_to(out, sources, address))))[0] == 0
    return out


def start(*words: str, module: str = "pipeline") -> Process:
    settings = {name: value for name, value in os.environ.items() if name != "WORLD_SIZE"} | {
        "OMP_NUM_THREADS": "1"
    }
    return subprocess.Popen(
        [sys.executable, "-m", module, *words],
        env=settings,
        cwd=ROOT,
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def ended(process: Process) -> tuple[int, str]:
    """The exit code, and what it said to stderr; it ended with a word and not with a traceback."""
    _, told = process.communicate(timeout=DEADLINE)
    assert process.returncode in (0, 1) and "Traceback" not in told, told
    return process.returncode, told


def wait_until(has_come: Callable[[], object], *alive: Process) -> None:
    deadline = time.monotonic() + DEADLINE
    while not has_come():
        for process in alive:
            assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.005)


def a_kept_document(out: Path) -> str:
    rows = query(
        Folder(str(out)), "SELECT doc_id FROM documents WHERE status = 'kept' ORDER BY doc_id LIMIT 1"
    ).rows
    return str(rows[0][0])


def purge_call(out: Path, doc_id: str) -> Sequence[str]:
    return ("purge", str(out), "--doc", doc_id, "--reason", "takedown", "--by", "a test", "--apply")


def assert_whole(out: Path) -> None:
    assert not verify(Folder(str(out)), verify_hooks(Folder(str(out)))).problems
    assert not (out / "work").exists()


def test_of_two_runs_to_one_output_one_is_refused_and_the_other_ends_right(
    address: str, sources: Sources, undisturbed: Path, tmp_path: Path
) -> None:
    path = recipe_to(tmp_path / "out", sources, address)
    first = start("run", str(path))
    wait_until((tmp_path / "out" / "work" / "plan.json").exists, first)
    code, told = ended(start("run", str(path)))
    progress, error = told.strip().splitlines()
    assert code == 1 and "checking" in progress and "is held by another process" in error, told
    assert ended(first)[0] == 0
    assert fingerprint(str(tmp_path / "out")) == fingerprint(str(undisturbed))
    assert_whole(tmp_path / "out")


def test_runs_that_are_started_at_the_same_moment_leave_one_whole_output(
    address: str, sources: Sources, undisturbed: Path, tmp_path: Path
) -> None:
    path = recipe_to(tmp_path / "out", sources, address)
    both = [start("run", str(path)) for _ in range(2)]
    codes = [ended(process)[0] for process in both]
    assert 0 in codes
    assert fingerprint(str(tmp_path / "out")) == fingerprint(str(undisturbed))
    assert_whole(tmp_path / "out")


def test_a_purge_of_an_output_that_a_run_is_still_writing_is_refused(
    address: str, sources: Sources, undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = start("run", str(recipe_to(out, sources, address)))
    wait_until(lambda: list(out.glob("work/units/*/unit.json")), first)
    code, told = ended(start(*purge_call(out, a_kept_document(undisturbed))))
    assert code == 1 and str(out) in told and len(told.strip().splitlines()) == 1, told
    assert ended(first)[0] == 0
    assert fingerprint(str(out)) == fingerprint(str(undisturbed))
    assert_whole(out)


def test_a_finished_run_called_again_beside_its_purge_does_not_undo_it(
    address: str, sources: Sources, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    path = recipe_to(out, sources, address)
    assert ended(start("run", str(path)))[0] == 0
    doc_id = a_kept_document(out)
    purge, again = start(*purge_call(out, doc_id)), start("run", str(path))
    assert ended(purge)[0] == 0
    code, told = ended(again)
    assert code == 0 or "is held by another process" in told
    assert read_index(Folder(str(out))).version == 2
    purged = query(Folder(str(out)), f"SELECT doc_id FROM purged WHERE doc_id = '{doc_id}'").rows
    assert len(purged) == 1
    assert_whole(out)


def training(data: Path, output: Path, **changes: object) -> Path:
    """The recipe of a training, beside its output."""
    table = {
        "data": str(data),
        "output": str(output),
        "model": "debug",
        "seq_len": 64,
        "global_batch": 2,
        "micro_batch": 1,
        "steps": 60,
        "workers": 1,
        "dtype": "float64",
        "checkpoint": {"every": 10},
        "record_batches": True,
        **changes,
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    path = output.parent / f"{output.name}.toml"
    path.write_text(tomli_w.dumps({"run": {"name": str(output)}, "train": table}))
    return path


def losses(output: Path) -> dict[int, float]:
    """The newest attempt's loss of each step."""
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["loss"] for row in sorted(rows, key=lambda row: row["attempt"])}


def test_a_purge_beside_a_training_on_the_same_output_takes_the_document_out_and_both_end(
    address: str, sources: Sources, tmp_path: Path
) -> None:
    out, output = tmp_path / "out", tmp_path / "training"
    assert ended(start("run", str(recipe_to(out, sources, address))))[0] == 0
    doc_id = a_kept_document(out)
    trainer = start(str(training(out, output)), module="trainer")
    wait_until(lambda: (output / "metrics.jsonl").exists() and len(losses(output)) > 5, trainer)
    assert ended(start(*purge_call(out, doc_id)))[0] == 0
    code, told = ended(trainer)
    # The training may read on (it holds what it read), or stop where its data changed; then it is called
    # again.
    assert code == 0 or "purge" in told, told
    if code:
        assert ended(start(str(training(out, output)), module="trainer"))[0] == 0
    assert sorted(losses(output)) == list(range(60))
    assert_whole(out)


def test_of_two_trainings_to_one_output_the_later_goes_on_and_the_earlier_says_so(
    address: str, undisturbed: Path, tmp_path: Path
) -> None:
    plain = training(undisturbed, tmp_path / "plain")
    assert ended(start(str(plain), module="trainer"))[0] == 0
    path = training(undisturbed, tmp_path / "twice")
    first = start(str(path), module="trainer")
    wait_until(lambda: list((tmp_path / "twice").glob("checkpoints/*/complete.json")), first)
    second = start(str(path), module="trainer")
    told = {}
    for name, process in (("first", first), ("second", second)):
        told[name] = ended(process)
    assert told["second"][0] == 0, told
    assert told["first"][0] == 0 or "has been superseded" in told["first"][1], told
    assert losses(tmp_path / "twice") == losses(tmp_path / "plain")
    assert_whole(undisturbed)
