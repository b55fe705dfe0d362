"""`ray.address = "none"`: the units of a run in its own process, without Ray, to the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lineage.json_record import JsonRecord
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.verify.output import verify
from pipeline.cluster.dataset import run_units
from pipeline.cluster.session import ray_session
from pipeline.cluster.tasks import TaskResources
from pipeline.inspect.hooks import verify_hooks
from pipeline.phases.phase import BEGUN, Phase, RunState, publish_result, run_phase
from pipeline.phases.progress import ProgressReporter
from pipeline.plan import RunPlan
from pipeline.recipe.load import load
from pipeline.recipe.tables import PipelineRecipe, RayTable, RunTable
from tests.support.checkout import ROOT
from tests.support.inputs.tiny_crawl import make_tiny_crawl
from tests.support.outputs.runs import ON_RAY, fingerprint, recipe, run, write_recipe
from tests.support.processes.killed_runs import Moment, command, wait_for

CALL = """
import sys
from pipeline.cli.main import main
code = main(sys.argv[1:])
print("loaded:", *sorted({"ray", "torch"} & sys.modules.keys()))
sys.exit(code)
"""
"""A call in a process of its own, which says at its end whether Ray or torch was loaded."""
NONE = {"address": "none"}

Sources = dict[str, tuple[str, ...]]


def call(*words: str) -> tuple[int, str, str]:
    """The exit code, stdout and stderr."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-c", CALL, *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    return ended.returncode, ended.stdout, ended.stderr


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    return make_tiny_crawl(tmp_path_factory.mktemp("crawl"))


@pytest.fixture(scope="module")
def undisturbed(sources: Sources, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a run without Ray that keeps its texts."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run(folder, recipe(str(folder / "out"), sources, ray=NONE, run={"keep_text": True}))
    return folder / "out"


def test_a_run_never_imports_ray_and_says_what_works(
    sources: Sources, undisturbed: Path, tmp_path: Path
) -> None:
    plain = recipe(str(tmp_path / "out"), sources, ray=NONE, run={"keep_text": True})
    code, printed, told = call("run", str(write_recipe(tmp_path / "recipe.toml", plain)), "--json")
    assert code == 0, told
    assert printed.splitlines()[-1] == "loaded:"
    assert "without Ray" in told.splitlines()[0]
    assert "starting Ray" not in told
    assert json.loads(printed[: printed.rindex("loaded:")])["datasets"] == []
    assert fingerprint(str(tmp_path / "out")) == fingerprint(str(undisturbed))
    assert not verify(Folder(str(tmp_path / "out")), verify_hooks(Folder(str(tmp_path / "out")))).problems


def test_a_refilter_never_imports_ray_and_gives_the_bytes_of_a_run_from_the_inputs(
    sources: Sources, undisturbed: Path, tmp_path: Path
) -> None:
    stricter = {"quality": {"min_words": 100}, "ray": NONE}
    path = write_recipe(tmp_path / "recipe.toml", recipe(str(tmp_path / "texts"), sources, **stricter))
    code, printed, told = call("run", str(path), "--from", str(undisturbed))
    assert (code, printed.splitlines()[-1]) == (0, "loaded:"), told
    run(tmp_path, recipe(str(tmp_path / "crawl"), sources, **stricter))
    assert fingerprint(str(tmp_path / "texts")) == fingerprint(str(tmp_path / "crawl"))


BY = {"Ray": ON_RAY, "none": NONE}
OTHER = {"Ray": "none", "none": "Ray"}
TRAFILATURA = {"extractor": "trafilatura"}


@pytest.mark.slow
@pytest.mark.parametrize("first", BY)
def test_both_engines_give_the_same_bytes_and_either_ends_what_the_other_began(
    first: str, sources: Sources, undisturbed: Path, tmp_path: Path, small_ray: None
) -> None:
    kept = {"run": {"keep_text": True}}
    run(tmp_path / "a", recipe(str(tmp_path / "a" / "out"), sources, ray=ON_RAY, **kept))
    assert fingerprint(str(tmp_path / "a" / "out")) == fingerprint(str(undisturbed))
    out = tmp_path / "b" / "out"
    out.parent.mkdir()
    path = write_recipe(out.parent / "recipe.toml", recipe(str(out), sources, ray=BY[first], **kept))
    with command(path) as driver:
        wait_for(Moment("work/units/*/unit.json", 3), out, driver)
    run(tmp_path / "b", recipe(str(out), sources, ray=BY[OTHER[first]], **kept))
    assert fingerprint(str(out)) == fingerprint(str(undisturbed))


@pytest.mark.slow
@pytest.mark.parametrize("made_by", BY)
def test_a_refilter_of_what_one_engine_made_is_begun_and_ended_by_either(
    made_by: str, sources: Sources, tmp_path: Path, small_ray: None
) -> None:
    """With trafilatura, whose texts are not resiliparse's."""
    made = tmp_path / "made" / "out"
    plain = recipe(str(made), sources, ray=BY[made_by], run={"keep_text": True}, parse=TRAFILATURA)
    run(made.parent, plain)

    def stricter(name: str, engine: str) -> dict[str, Any]:
        tables = {"parse": TRAFILATURA, "quality": {"min_words": 100}, "ray": BY[engine]}
        return recipe(str(tmp_path / name / "out"), sources, **tables)

    run(tmp_path / "inputs", stricter("inputs", made_by))
    expected = fingerprint(str(tmp_path / "inputs" / "out"))
    run(tmp_path / "whole", stricter("whole", OTHER[made_by]), str(made))
    assert fingerprint(str(tmp_path / "whole" / "out")) == expected
    out = tmp_path / "cut" / "out"
    out.parent.mkdir()
    path = write_recipe(out.parent / "recipe.toml", stricter("cut", OTHER[made_by]))
    with command(path, "--from", str(made)) as driver:
        wait_for(Moment("work/units/*/unit.json", 1), out, driver)
    assert not (out / "index.json").exists(), "it was killed on its way"
    run(out.parent, stricter("cut", made_by), str(made))
    assert fingerprint(str(out)) == expected


@pytest.mark.parametrize("engine", ["auto", "ray_data"])
@pytest.mark.parametrize(
    "moment",
    [
        Moment("work/begun", 1),
        Moment("work/units/*/unit.json", 3),
        Moment("work/dedup/*/done.json", 2),
        Moment("shards/*/*.bin", 1),
        Moment("checksums.json", 1),
    ],
    ids=str,
)
@pytest.mark.slow
def test_killed_at_any_moment_the_same_call_gives_the_same_bytes(
    moment: Moment, engine: str, *, sources: Sources, undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    plain = recipe(str(out), sources, ray=NONE, run={"keep_text": True}, dedup={"engine": engine})
    path = write_recipe(tmp_path / "recipe.toml", plain)
    with command(path) as driver:
        wait_for(moment, out, driver)
    code, printed, told = call("run", str(path))
    assert (code, printed.splitlines()[-1]) == (0, "loaded:"), told
    assert fingerprint(str(out)) == fingerprint(str(undisturbed))
    assert not (out / "work").exists()


def test_a_unit_of_the_distributed_exchange_runs_here_too(
    sources: Sources, undisturbed: Path, tmp_path: Path
) -> None:
    plain = recipe(
        str(tmp_path / "out"), sources, ray=NONE, run={"keep_text": True}, dedup={"engine": "ray_data"}
    )
    run(tmp_path, plain)
    assert fingerprint(str(tmp_path / "out")) == fingerprint(str(undisturbed))


def test_a_model_on_actors_is_refused_by_name_before_anything_is_written(
    sources: Sources, tmp_path: Path
) -> None:
    plain = recipe(str(tmp_path / "out"), sources, ray=NONE)
    for source in plain["source"]:
        source["steps"] = ["parse", "tests.support.steps.model_steps:Shout", "identity"]
    path = write_recipe(tmp_path / "recipe.toml", plain)
    code, printed, told = call("run", str(path))
    assert (code, printed.splitlines()[-1]) == (2, "loaded:"), told
    assert 'ray.address = "none"' in told and "model_steps:Shout" in told and 'ray.address = "local"' in told
    assert not (tmp_path / "out").exists()


def test_what_needs_ray_refuses_to_do_without() -> None:
    with pytest.raises(RecipeError, match='"local", "auto" or "host:port"'), ray_session("none"):
        pass


def double(job: int, item: int) -> int:
    print("a step may print")
    return job * item


def test_units_run_in_order_and_what_they_print_stays_off_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    work = TaskResources.of(RayTable(address="none"), "read")
    assert list(run_units(double, 2, range(4), work, operator="double")) == [(0, 0), (1, 2), (2, 4), (3, 6)]
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("a step may print")) == ("", 4)


@dataclass(frozen=True, slots=True)
class Piece:
    number: int

    @property
    def marker(self) -> str:
        return f"work/units/{self.number}/unit.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told(JsonRecord):
    isolated: bool


@dataclass(frozen=True, slots=True)
class Work:
    out: str
    fatal: int | None
    isolated: bool = False


class GoneError(BaseException):
    """The process is gone."""


def die_of_one(job: Work, item: Piece) -> Told:
    """Takes its process down where the unit is the fatal one and its extractors run in it."""
    if item.number == job.fatal and not job.isolated:
        raise GoneError
    return publish_result(Folder(job.out), item.marker, Told(isolated=job.isolated))


def test_the_unit_that_took_its_process_down_is_isolated_by_the_next_call(tmp_path: Path) -> None:
    out = Folder(str(tmp_path / "out"))
    plan: dict[str, Any] = {"units": (), "identity": {}, "key": ""}
    wanted = PipelineRecipe(run=RunTable(name="a", output=out.url), source=(), ray=RayTable(address="none"))
    state = RunState(plan=RunPlan(recipe=wanted, out=out, **plan), reporter=ProgressReporter(quiet=True))
    phase = Phase(
        name="read",
        operator="read",
        kind="read",
        task=die_of_one,
        result=Told,
        job=Work(out.url, 1),
        units=[Piece(number) for number in range(3)],
        isolate=lambda job: replace(job, isolated=True),
    )
    with pytest.raises(GoneError):
        run_phase(state, phase)
    assert out.read(BEGUN).decode() == Piece(1).marker
    assert [told.isolated for told in run_phase(state, phase)] == [False, True, False]
    assert not out.exists(BEGUN)


def test_a_recipe_says_none_like_any_address(sources: Sources, tmp_path: Path) -> None:
    path = write_recipe(tmp_path / "recipe.toml", recipe(str(tmp_path / "out"), sources))
    assert not load(path, ["ray.address=auto"]).ray.in_process
    assert load(path, ["ray.address=none"]).ray.in_process
