"""Processes of an ablation: how many at once, what they are given, and that none outlives its parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from lineage.storage.lock import HeldError, hold
from pipeline.cluster.capacity import ResourceError
from pipeline.cluster.session import ray_session
from pipeline.training.workers import check_workers
from tests.support.checkout import ROOT
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.processes.mix_parent import sleepers
from tests.support.processes.mix_sleeper import publish
from tests.support.training.measured_ablation import write_recipe
from trainer.mix.ablation import AblationLaunch, last_lines, run_ablation, run_all
from trainer.mix.child import ChildWork
from trainer.mix.proxies import Ablation, AblationError, open_ablation
from trainer.options import load_train_recipe


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ablation")
    corpus = make_corpus(str(folder / "out"), {"books": [9000], "code": [6000], "web": [9000]})
    return write_recipe(corpus.url, folder)


@pytest.fixture
def ablation(recipe: Path) -> Ablation:
    return open_ablation(load_train_recipe(recipe))


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Ray with two processors, whose workers find the sleeper."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        with ray_session("local", num_cpus=2):
            yield


def until(condition: Callable[[], Any]) -> Any:
    """What the condition gives, once it is true."""
    deadline = time.monotonic() + 600
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.02)
    return found


def started(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.started"))}


def release(folder: Path, *names: str) -> None:
    """Let these sleepers end well, unless they have been told how to end."""
    for name in names:
        if not (folder / f"{name}.go").exists():
            publish(folder / f"{name}.go", "0")


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class TestParent:
    """The parent is a real process, and so are its children."""

    @pytest.fixture
    def parent(self, recipe: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.processes.mix_parent", str(recipe), str(tmp_path), "2"],
            text=True,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        yield process
        process.kill()
        process.communicate()

    def children(self, parent: subprocess.Popen[str], folder: Path) -> list[int]:
        def both() -> list[int]:
            assert parent.poll() is None, parent.communicate()
            pids = [told["pid"] for told in started(folder).values()]
            return pids if len(pids) == 2 else []

        found: list[int] = until(both)
        return found

    def test_killed_it_leaves_no_child_behind(self, parent: subprocess.Popen[str], tmp_path: Path) -> None:
        pids = self.children(parent, tmp_path)
        assert all(map(alive, pids))
        parent.kill()
        until(lambda: not any(map(alive, pids)))
        assert not list(tmp_path.glob("*.stopped"))

    @pytest.mark.parametrize(
        ("number", "code", "message"),
        [
            (signal.SIGTERM, 1, "the same call again continues"),
            (signal.SIGINT, -signal.SIGINT, "KeyboardInterrupt"),
        ],
    )
    def test_interrupted_it_tells_its_children_to_save_and_waits_for_them(
        self, parent: subprocess.Popen[str], tmp_path: Path, number: signal.Signals, code: int, message: str
    ) -> None:
        pids = self.children(parent, tmp_path)
        os.killpg(parent.pid, number)
        _, said = parent.communicate()
        assert parent.returncode == code
        assert message in said
        assert not any(map(alive, pids))
        # SIGTERM and no other: Ctrl-C must not reach a child that is about to be asked.
        assert [path.read_text() for path in sorted(tmp_path.glob("*.stopped"))] == ["SIGTERM", "SIGTERM"]

    def test_so_many_run_at_once_each_in_a_place_of_its_own(
        self, parent: subprocess.Popen[str], tmp_path: Path
    ) -> None:
        self.children(parent, tmp_path)
        assert sorted(started(tmp_path)) == ["0", "1"]
        for name in ("1", "0", "2", "3"):
            publish(tmp_path / f"{name}.go", "0")
            if name == "1":
                assert until(lambda: started(tmp_path).get("2"))["LOCAL_RANK"] == "1"
        out, said = parent.communicate()
        assert parent.returncode == 0, said
        assert out.split()[0] == "1" and sorted(out.split()) == ["0", "1", "2", "3"]
        told = started(tmp_path)
        assert {entry["OMP_NUM_THREADS"] for entry in told.values()} == {"3"}
        assert [entry["said"] for entry in told.values()] == [f"recipe {n}" for n in range(4)]


def test_a_child_that_fails_ends_the_others_and_is_quoted(
    ablation: Ablation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    publish(tmp_path / "1.go", "7")
    with (
        pytest.raises(AblationError, match="proxy run 1 ended with exit code 7: 1 was told to go"),
        closing(run_all(ablation, sleepers(str(tmp_path), 2), AblationLaunch(num_parallel=2))) as ended,
    ):
        list(ended)
    assert all(not alive(told["pid"]) for told in started(tmp_path).values())


def test_an_orphan_that_starts_too_late_ends_at_once(tmp_path: Path) -> None:
    """As when the parent dies before the child can ask to die with it."""
    (one,) = sleepers(str(tmp_path), 1)
    work = [
        asdict(ChildWork(name=one.name, module=one.module, arguments=[*one.arguments], stdin="", preload=[]))
    ]
    child = subprocess.run(
        [sys.executable, "-m", "trainer.mix.child", str(os.getpid() + 1), "1"],
        input=json.dumps(work).encode(),
        check=False,
    )
    assert child.returncode == -signal.SIGKILL
    assert not started(tmp_path)


def test_all_are_forked_from_one_process_that_has_imported_what_they_need(
    ablation: Ablation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    release(tmp_path, "0", "1", "2")
    with closing(run_all(ablation, sleepers(str(tmp_path), 3), AblationLaunch(num_parallel=2))) as ended:
        assert sorted(ended) == ["0", "1", "2"]
    told = started(tmp_path).values()
    assert len({entry["parent"] for entry in told}) == 1 and len({entry["pid"] for entry in told}) == 3
    assert {entry["imported"] for entry in told} == {next(iter(told))["parent"]}


def test_a_module_that_is_not_there_ends_all_and_is_quoted(ablation: Ablation, tmp_path: Path) -> None:
    work = [replace(one, module="trainer.nowhere") for one in sleepers(str(tmp_path), 2)]
    with (
        pytest.raises(
            AblationError, match=r"(?s)ended with exit code 1: .*No module named 'trainer.nowhere'"
        ),
        closing(run_all(ablation, work, AblationLaunch(num_parallel=2))) as ended,
    ):
        list(ended)


def test_two_calls_at_once_are_refused(ablation: Ablation) -> None:
    with hold(ablation.folder, "another"), pytest.raises(HeldError, match="held by another process"):
        run_ablation(ablation, AblationLaunch())


@pytest.mark.slow
class TestCluster:
    """Ray tasks, on a cluster of two processors."""

    @pytest.fixture
    def ablation(self, recipe: Path, cluster: None) -> Ablation:
        return open_ablation(load_train_recipe(recipe, ["ray.address=auto"]))

    def run(self, ablation: Ablation, folder: Path, meanwhile: Callable[[], None]) -> list[str]:
        """Three sleepers, and what happens once two of them have started."""

        def watch() -> None:
            try:
                until(lambda: len(started(folder)) == 2)
                meanwhile()
            finally:
                release(folder, "0", "1", "2")

        with (
            ThreadPoolExecutor(1) as thread,
            closing(
                run_all(ablation, sleepers(str(folder), 3), AblationLaunch(check_workers=check_workers))
            ) as ended,
        ):
            watched = thread.submit(watch)
            names = list(ended)
            watched.result()
        return names

    def test_it_runs_as_many_at_once_as_it_holds_and_ships_what_they_need(
        self, ablation: Ablation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
        num_at_first = []

        def count() -> None:
            num_at_first.append(len(started(tmp_path)))

        assert sorted(self.run(ablation, tmp_path, count)) == ["0", "1", "2"]
        assert num_at_first == [2]
        until(
            lambda: (
                {"task::mix.0", "task::mix.1", "task::mix.2"} <= {event["cat"] for event in ray.timeline()}
            )
        )
        assert {told["AWS_SECRET_ACCESS_KEY"] for told in started(tmp_path).values()} == {"hidden"}
        assert {told["OMP_NUM_THREADS"] for told in started(tmp_path).values()} == {"3"}

    def test_a_lost_worker_takes_its_run_with_it_and_the_run_starts_again(
        self, ablation: Ablation, tmp_path: Path
    ) -> None:
        def lose_one() -> None:
            name, first = next(iter(started(tmp_path).items()))
            psutil.Process(first["pid"]).parent().kill()
            until(lambda: not alive(first["pid"]))
            release(tmp_path, *({"0", "1", "2"} - {name}))
            until(lambda: started(tmp_path)[name]["pid"] != first["pid"])

        assert sorted(self.run(ablation, tmp_path, lose_one)) == ["0", "1", "2"]

    def test_a_run_that_fails_is_quoted_and_the_others_are_told_to_save_and_end(
        self, ablation: Ablation, tmp_path: Path
    ) -> None:
        def fail_one() -> None:
            failing = min(started(tmp_path))
            publish(tmp_path / f"{failing}.go", "7")
            until(lambda: list(tmp_path.glob("*.stopped")))

        with pytest.raises(AblationError, match=r"ended with exit code 7: . was told to go"):
            self.run(ablation, tmp_path, fail_one)
        assert {path.read_text() for path in tmp_path.glob("*.stopped")} == {"SIGTERM"}
        until(lambda: not any(alive(told["pid"]) for told in started(tmp_path).values()))

    def test_a_resource_that_no_node_has_is_refused_at_once(
        self, recipe: Path, cluster: None, tmp_path: Path
    ) -> None:
        changed = ["ray.address=auto", "train.resources.resource=gpu_node"]
        ablation = open_ablation(load_train_recipe(recipe, changed))
        with pytest.raises(ResourceError, match="no node has CPU 1, gpu_node"):
            next(run_all(ablation, sleepers(str(tmp_path), 1), AblationLaunch(check_workers=check_workers)))


def test_an_error_tells_whole_lines_of_what_a_process_said() -> None:
    lines = "\n".join(f"line {number} of it" for number in range(100))
    told = last_lines(f"{lines}\n")
    assert told.startswith("line ") and told.endswith("line 99 of it") and 700 < len(told) <= 800
    assert last_lines(" a line\n") == "a line"
    assert last_lines(f"{'x' * 900}end") == f"{'x' * 797}end"
