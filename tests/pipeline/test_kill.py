"""Killed at any moment and called again, a run ends as if nothing had happened and repeats nothing that was
done."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import signal
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lineage.storage.folder import Folder
from lineage.storage.lock import hold
from lineage.verify.output import verify
from pipeline.cli.main import main
from pipeline.cluster.dataset import WorkerDiedError, run_units
from pipeline.cluster.tasks import TaskResources
from pipeline.inspect.hooks import verify_hooks
from pipeline.phases import publish
from pipeline.phases.progress import ProgressReporter
from pipeline.process import run as run_recipe
from pipeline.recipe.load import load
from tests.support.inputs.tiny_crawl import make_tiny_crawl
from tests.support.outputs import runs
from tests.support.outputs.runs import ON_RAY, fingerprint, run, write_recipe
from tests.support.processes.killed_runs import (
    DEADLINE,
    Moment,
    busy_workers,
    command,
    end_sessions,
    kill_on_the_way,
    next_files,
    wait_for,
)
from tests.support.steps import dying_steps

SENTENCE = "The lighthouse keeper wrote down the weather of every day, and nobody had read his books since."
STEPS = ["url", "parse", "language", "quality", "pii"]

pytestmark = pytest.mark.usefixtures("address")

Sources = dict[str, tuple[str, ...]]
Stamps = dict[str, tuple[int, int]]
"""When each file was written, and its inode."""


def recipe(out: str, sources: Sources, **tables: dict[str, Any]) -> dict[str, Any]:
    """As `runs.recipe`, with a few small shards."""
    return runs.recipe(out, sources, **{"tokenize": {"shard_tokens": 8_000}, **tables})


DRIVER_MOMENTS = (
    Moment("work/plan.json", 1),
    Moment("documents/*/*.parquet", 1),
    Moment("work/units/*/unit.json", 3),
    Moment("work/dedup/*/done.json", 2),
    Moment("work/units/*/run.json", 1),
    Moment("work/groups/*/cut.json", 1),
    Moment("shards/*/*.bin", 2),
    Moment("work/units/*/final.json", 2),
    Moment("lineage/*/*.parquet", 3),
    Moment("excerpts.parquet", 1),
    Moment("checksums.json", 1),
    Moment("index.json", 1),
)
WORKER_MOMENTS = (
    Moment("work/plan.json", 1),
    Moment("documents/*/*.parquet", 1),
    Moment("work/units/*/unit.json", 1),
    Moment("work/units/*/unit.json", 4),
    Moment("work/units/*/unit.json", 5),
    Moment("work/dedup/*/done.json", 3),
    Moment("work/units/*/run.json", 1),
    Moment("work/units/*/run.json", 4),
    Moment("work/groups/*/cut.json", 1),
    Moment("shards/*/*.bin", 1),
    Moment("work/units/*/final.json", 2),
)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    return make_tiny_crawl(tmp_path_factory.mktemp("crawl"))


@pytest.fixture(scope="module")
def undisturbed(sources: Sources, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The fingerprint of a run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run(folder, recipe(str(folder / "out"), sources))
    return fingerprint(str(folder / "out"))


def stamps(out: Path, names: list[str]) -> Stamps:
    return {name: (os.stat(out / name).st_mtime_ns, os.stat(out / name).st_ino) for name in names}


def finished(out: Path) -> Stamps:
    """The files of every unit whose marker stands."""
    names: list[str] = []
    for marker in Folder(str(out)).names("work"):
        content = json.loads((out / marker).read_bytes()) if marker.endswith(".json") else {}
        here = Path(marker).parent
        match Path(marker).name.split("-")[0]:
            case "unit.json":
                of_unit = [
                    *(
                        f"{here}/{name}.parquet"
                        for name in ("documents", "edits", "findings", "keys", "excerpts")
                    )
                ]
                names += [*of_unit, content["part"]["file"]]
            case "run.json":
                names += [f"{here}/tokens.bin", f"{here}/run.parquet"]
            case "final.json":
                names += [f"{here}/final.parquet", f"{here}/final_edits.parquet", content["dedup"]["file"]]
            case "cut.json":
                names += [f"{here}/cuts.npy", f"{here}/placements.parquet"]
            case "shard":
                names += [content["file"], content["index_file"]]
            case "done.json":
                names += [str(path.relative_to(out)) for path in (out / here).glob("*.parquet")]
            case _:
                continue
        names.append(marker)
    return stamps(out, names)


@contextlib.contextmanager
def files_at_the_end(out: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stamps]:
    """Every file under `out` as it stood before the last act of a run, which clears work/ away."""
    seen: Stamps = {}
    clear_work = publish.clear_work

    def look_and_clear(folder: Folder) -> None:
        seen.update(stamps(out, folder.names()))
        clear_work(folder)

    with monkeypatch.context() as patched:
        patched.setattr(publish, "clear_work", look_and_clear)
        yield seen


def continue_and_compare(
    path: Path, out: Path, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command again, here: it ends well, leaves what was finished alone, and nothing else is
    different."""
    before = finished(out)
    with files_at_the_end(out, monkeypatch) as after:
        assert main(["run", str(path)]) == 0
    assert {name: after.get(name) for name in before} == before or not after
    check_whole(out, expected)


def check_whole(out: Path, expected: dict[str, str]) -> None:
    assert fingerprint(str(out)) == expected
    assert not (out / "work").exists()
    assert not list(out.rglob(".tmp-*")), "what attempts that were killed had begun to write"
    assert not verify(Folder(str(out)), verify_hooks(Folder(str(out)))).problems


@pytest.mark.slow
@pytest.mark.parametrize("moment", DRIVER_MOMENTS, ids=str)
def test_a_killed_driver_called_again_gives_the_same_bytes(
    moment: Moment,
    *,
    address: str,
    sources: Sources,
    undisturbed: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out"
    path = write_recipe(tmp_path / "recipe.toml", recipe(str(out), sources, ray={"address": address}))
    with command(path) as driver:
        wait_for(moment, out, driver)
    assert driver.returncode == -signal.SIGKILL
    continue_and_compare(path, out, undisturbed, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("moment", WORKER_MOMENTS, ids=str)
def test_killed_workers_change_no_byte(
    moment: Moment, address: str, sources: Sources, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    path = write_recipe(tmp_path / "recipe.toml", recipe(str(out), sources, ray={"address": address}))
    with command(path) as driver:
        wait_for(moment, out, driver)
        killed: list[int] = []
        while not killed:
            assert driver.poll() is None, "the run ended before a worker could be killed"
            killed = busy_workers()
        for pid in killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert driver.wait(DEADLINE) == 0, (tmp_path / "log.txt").read_text()
    check_whole(out, undisturbed)


PHASES = {
    "read": ("work/units/*/unit.json", 6), "compare": ("work/dedup/*/done.json", 20),
    "tokenize": ("work/units/*/run.json", 6), "cut": ("work/groups/*/cut.json", 2), "shard": ("shards/*/*.bin", 12),
    "join": ("work/units/*/final.json", 6), "record": ("lineage/*/*.parquet", 20),
    "commit": ("lineage/*/_delta_log/*.json", 16), "publish": ("*.*", 8),
}  # fmt: skip
"""What each phase publishes, and at most how often."""


@pytest.mark.slow
@pytest.mark.timeout(2 * 3600)
@pytest.mark.parametrize("seed", range(3))
def test_a_run_killed_at_every_new_file_gives_the_same_bytes(
    seed: int, address: str, sources: Sources, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    """Wherever another file stands, and a moment later: the driver is killed, or all workers at work and the
    driver goes on. Nothing is done by the calls after but what is left."""
    out, rng = tmp_path / "out", random.Random(seed)
    path = write_recipe(
        tmp_path / "recipe.toml", recipe(str(out), sources, ray={"address": address, "retries": 20})
    )
    moments = [
        (phase, Moment(pattern, num))
        for phase, (pattern, most) in PHASES.items()
        for num in range(1, most + 1)
    ]
    drivers, workers = Counter[str](), Counter[str]()
    while True:
        with command(path) as driver:
            killed_as = kill_on_the_way(moments, out, driver, rng, workers)
        if killed_as is None:
            break
        assert driver.returncode == -signal.SIGKILL
        drivers[killed_as] += 1
    assert driver.returncode == 0, (tmp_path / "log.txt").read_text()
    print(
        f"drivers killed: {drivers.total()} {dict(drivers)}, workers killed: {workers.total()}"
        f" {dict(workers)}"
    )
    assert all(
        drivers[phase] + workers[phase] for phase in ("compare", "tokenize", "shard", "join", "record")
    )
    check_whole(out, undisturbed)


@pytest.mark.slow
def test_a_run_killed_at_every_file_of_a_distributed_exchange_gives_the_same_bytes(
    address: str, sources: Sources, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    """By turns the driver, and the workers where any are at work: the driver goes on then."""
    out, seen, killed = tmp_path / "out", set[Path](), Counter[str]()
    options = {"dedup": {"engine": "ray_data"}, "ray": {"address": address, "retries": 20}}
    path = write_recipe(tmp_path / "recipe.toml", recipe(str(out), sources, **options))
    while True:
        with command(path) as driver:
            while fresh := next_files(out, "work/dedup/*/*/*.json", seen, driver):
                seen |= fresh
                at_work = busy_workers() if killed["driver"] > killed["workers"] else []
                for pid in at_work:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                killed["workers" if at_work else "driver"] += 1
                if not at_work:
                    break
            else:
                break
        assert driver.returncode == -signal.SIGKILL
    assert driver.returncode == 0, (tmp_path / "log.txt").read_text()
    print(f"kills inside exchanges: {dict(killed)}")
    assert killed.total() >= 10
    check_whole(out, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment", [Moment("work/units/*/unit.json", 2), Moment("shards/*/*.bin", 1)], ids=str
)
def test_a_driver_killed_with_a_cluster_of_its_own_can_be_called_again(
    moment: Moment, sources: Sources, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    path = write_recipe(tmp_path / "recipe.toml", recipe(str(out), sources, ray=ON_RAY))
    with command(path) as driver:
        wait_for(moment, out, driver)
    with command(path) as again:
        assert again.wait(DEADLINE) == 0, (tmp_path / "log.txt").read_text()
    end_sessions(driver.pid, again.pid)
    check_whole(out, undisturbed)


@pytest.mark.slow
def test_a_file_in_parts_killed_on_four_workers_loses_and_doubles_no_record(tmp_path: Path) -> None:
    """The driver twice, which is called again with other parts, and then workers."""
    folder = tmp_path / "in"
    folder.mkdir()
    rows = [json.dumps({"text": f"{SENTENCE} It was the {n}. of them."}).encode() + b"\n" for n in range(400)]
    (folder / "a.jsonl").write_bytes(b"".join(rows))  # known by their line's number
    (folder / "b.jsonl.gz").write_bytes(b"".join(gzip.compress(row, mtime=0) for row in rows[::-1]))

    def asked(out: str, unit_bytes: int, **tables: Any) -> dict[str, Any]:
        made = recipe(str(tmp_path / out), {"rows": (f"{folder}/*",)}, dedup={"near": False}, **tables)
        made["run"]["unit_bytes"] = unit_bytes
        made["source"][0]["steps"] = ["parse", "pii"]
        return made

    run(tmp_path / "0", asked("whole", 0))
    out, path, drivers = tmp_path / "parts", tmp_path / "recipe.toml", list[int]()
    for unit_bytes, num in ((8_000, 3), (20_000, 6), (9_000, None)):
        ray = {"address": "local", "num_cpus": 4, "retries": 20}
        write_recipe(path, asked("parts", unit_bytes, ray=ray))
        with command(path) as driver:
            drivers.append(driver.pid)
            if num is not None:
                wait_for(Moment("work/units/*.*/unit.json", num), out, driver)
                continue
            while not (at_work := busy_workers()):
                assert driver.poll() is None, "the run ended before a worker could be killed"
            for pid in at_work:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            assert driver.wait(DEADLINE) == 0, (tmp_path / "log.txt").read_text()
    end_sessions(*drivers)
    check_whole(out, fingerprint(str(tmp_path / "whole")))


class Interrupting(ProgressReporter):
    """Sends this process a signal, that of Ctrl-C, when a phase has done a number of its units."""

    def __init__(self, phase: str, num: int, number: signal.Signals = signal.SIGINT) -> None:
        super().__init__(quiet=True)
        self._phase, self._left, self._number = phase, num, number

    @contextlib.contextmanager
    def phase(self, name: str, total: float, unit: str = "") -> Iterator[Any]:
        self._is_ours = name == self._phase
        with super().phase(name, total, unit):
            yield self

    def step(self, amount: float, note: str = "") -> None:
        if self._is_ours:
            self._left -= 1
            if self._left < 0:  # the first call of a phase tells what stood before
                signal.raise_signal(self._number)


@pytest.mark.parametrize("phase", ["read and filter", "join lineage facts"])
def test_an_interrupted_run_keeps_its_finished_units_and_the_next_call_ends_it(
    phase: str,
    sources: Sources,
    undisturbed: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out"
    plain = recipe(str(out), sources, ray=ON_RAY | {"max_in_flight": 1})
    path = write_recipe(tmp_path / "recipe.toml", plain)
    with pytest.raises(KeyboardInterrupt):
        run_recipe(load(path), Interrupting(phase, 1))
    marker = {"read and filter": "unit.json", "join lineage facts": "final.json"}[phase]
    assert len(list(out.glob(f"work/units/*/{marker}"))) in (1, 2)
    assert not (out / "index.json").exists()
    continue_and_compare(path, out, undisturbed, monkeypatch)


def test_the_folder_that_a_dead_call_published_the_index_from_is_gone_after_the_same_call(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "A harbour."}\n')
    out = tmp_path / "out"
    path = write_recipe(tmp_path / "recipe.toml", recipe(str(out), {"a": (str(tmp_path / "a.jsonl"),)}))
    first = main(["run", str(path)])
    (out / ".tmp-index.json").mkdir()
    assert main(["run", str(path)]) == first
    assert not (out / ".tmp-index.json").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_a_signal_ends_says_that_nothing_is_lost(
    number: signal.Signals,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "A harbour."}\n')
    path = write_recipe(
        tmp_path / "recipe.toml", recipe(str(tmp_path / "out"), {"a": (str(tmp_path / "a.jsonl"),)})
    )
    monkeypatch.setattr(
        "pipeline.cli.corpus.run.ProgressReporter", lambda: Interrupting("read and filter", 0, number)
    )
    before = signal.getsignal(signal.SIGTERM)
    assert main(["run", str(path)]) == code
    assert "the same call again goes on" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == before


def test_sums_that_a_killed_call_left_are_taken_again(
    sources: Sources,
    undisturbed: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Killed between checksums.json and index.json: the next call writes run.json anew, with other times.
    out = tmp_path / "out"
    path = write_recipe(tmp_path / "recipe.toml", recipe(str(out), sources))
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(publish, "publish_index", _interrupt)
        run_recipe(load(path), ProgressReporter(quiet=True))
    summary = (out / "run.json").read_bytes()
    digits = bytes.maketrans(b"123456789", b"234567891")
    monkeypatch.setattr(publish, "encode_summary", lambda _: summary.translate(digits))
    run_recipe(load(path), ProgressReporter(quiet=True))
    monkeypatch.undo()
    assert (out / "run.json").stat().st_size == len(summary)
    assert not [
        p for p in verify(Folder(str(out)), verify_hooks(Folder(str(out)))).problems if "run.json" in p.where
    ]


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_unit_whose_worker_dies_once_is_done_again_with_the_same_result(
    sources: Sources, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"posts-{uuid.uuid4().hex}"
    sources = {name: sources["posts"]}
    dying = recipe(str(tmp_path / "out"), sources, ray=ON_RAY)
    dying["source"][0]["steps"] = [*STEPS[:1], "tests.support.steps.dying_steps:die_once", *STEPS[1:]]
    try:
        assert run(tmp_path, dying)["num_documents"] > 0
        assert dying_steps.scar(name).exists()
        assert capsys.readouterr().out == "", "what Ray has to say does not mix with answers"
        unharmed = {**dying, "run": {"name": "again", "output": str(tmp_path / "unharmed")}}
        run(tmp_path, unharmed)
    finally:
        dying_steps.scar(name).unlink(missing_ok=True)
    assert fingerprint(str(tmp_path / "out")) == fingerprint(str(tmp_path / "unharmed"))


def test_a_page_that_kills_every_worker_stops_the_run_naming_its_file(
    sources: Sources, tmp_path: Path
) -> None:
    dying = recipe(str(tmp_path / "out"), {"posts": sources["posts"]}, ray=ON_RAY | {"retries": 1})
    dying["source"][0]["steps"] = [*STEPS[:1], "tests.support.steps.dying_steps:die_always", *STEPS[1:]]
    with pytest.raises(WorkerDiedError, match=r"posts-\d\.jsonl.*died 2 times"):
        run(tmp_path, dying)
    assert not list((tmp_path / "out").glob("documents/*/part-*")), "a unit that did not end leaves no part"


@pytest.mark.parametrize("deaths", [0, 1, 2])
def test_every_try_after_a_death_is_isolated(deaths: int, tmp_path: Path) -> None:
    job = _DyingJob(folder=str(tmp_path))
    work = TaskResources(retries=2)
    [(_, tries)] = run_units(_dying_unit, job, [deaths], work, operator="dying", isolate=_isolated)
    assert tries == [False, True, True][: deaths + 1]


def test_a_unit_is_tried_once_more_than_it_may_be_retried(tmp_path: Path) -> None:
    with pytest.raises(WorkerDiedError, match="died 3 times"):
        list(
            run_units(
                _dying_unit, _DyingJob(folder=str(tmp_path)), [9], TaskResources(retries=2), operator="dying"
            )
        )
    assert len(list(tmp_path.iterdir())) == 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _DyingJob:
    folder: str
    isolation: bool = False


def _isolated(job: _DyingJob) -> _DyingJob:
    return replace(job, isolation=True)


def _dying_unit(job: _DyingJob, deaths: int) -> list[bool]:
    return dying_steps.unit(job.folder, deaths, job.isolation)


def test_what_a_unit_raises_is_raised_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere") as error:
        list(
            run_units(_fail, str(tmp_path / "nowhere"), ["one"], TaskResources(retries=2), operator="failing")
        )
    assert type(error.value) is FileNotFoundError


def _fail(folder: str, item: str) -> None:
    Path(folder).read_bytes()


def test_a_run_that_another_process_holds_is_refused(
    sources: Sources, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    path = write_recipe(tmp_path / "recipe.toml", recipe(str(out), sources))
    with hold(Folder(str(out)), "a test"):
        assert main(["run", str(path)]) == 1
    assert "is held by another process" in capsys.readouterr().err
