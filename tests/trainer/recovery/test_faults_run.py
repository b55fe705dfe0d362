"""What a run does when a step, a file or another process goes wrong."""

from __future__ import annotations

import json
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from lineage.storage.folder import Folder
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.processes.forked import ChildFailedError, run_forked, said, start_forked, wait
from tests.support.training.training_runs import AfterStep, Run
from trainer.attempts import claim
from trainer.checkpoint import state
from trainer.checkpoint.state import Saver
from trainer.checkpoint.store import Position, read_position
from trainer.options import TrainRecipe
from trainer.processes import watchdog
from trainer.processes.result import TrainingResult
from trainer.processes.runtime import Process
from trainer.processes.watchdog import EXIT_HUNG, Watchdog
from trainer.provenance.reached import read_facts
from trainer.recorder.diagnosis.diagnose import diagnose as diagnose_run
from trainer.run import steps
from trainer.run.parts import LaunchContext
from trainer.run.train import train


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_corpus(str(tmp_path_factory.mktemp("out")), {"web": [1700, 530], "books": [1111]}).url


@pytest.fixture
def run(corpus: str, tmp_path: Path) -> Run:
    return Run(data=corpus, output=tmp_path / "run", changes={"steps": 8})


def test_a_step_with_a_nan_is_skipped_and_consumes_its_sequences(
    run: Run, corpus: str, tmp_path: Path
) -> None:
    assert run.start(faults={"nan_at_step": 3}).finished
    rows = run.metrics()
    assert [step for step, row in rows.items() if row["skipped"]] == [3]
    assert (rows[3]["reason"], rows[3]["sequences"], rows[3]["loss"]) == ("non_finite_loss", [21, 27], None)
    plain = Run(data=corpus, output=tmp_path / "plain", changes={"steps": 8})
    assert plain.start().finished
    assert run.sequences() == plain.sequences()
    losses, expected = run.losses(), plain.losses()
    assert losses[:3] == expected[:3]
    assert all(loss is not None and loss < 6 for loss in losses[4:])
    assert losses[4] != expected[4]  # the update of step 3 is missing


def test_a_listed_batch_is_left_out_whole_and_consumes_its_step(run: Run) -> None:
    assert run.start(skip=[[13, 14]]).finished
    rows = run.metrics()
    assert [(step, row["reason"]) for step, row in rows.items() if row["skipped"]] == [
        (1, "listed"),
        (2, "listed"),
    ]
    assert len(run.sequences()[1]) == 7  # recorded all the same


def test_a_run_stops_after_too_many_skips_in_a_row(run: Run) -> None:
    with pytest.raises(ChildFailedError, match="2 batches in a row were skipped, the last at step 4"):
        run.start(faults={"nan_at_step": [1, 3, 4, 6], "max_skips": 2})
    assert sorted(run.metrics()) == [0, 1, 2, 3, 4]


def test_a_run_that_stops_in_the_step_of_a_checkpoint_ends_and_leaves_none_of_that_step(run: Run) -> None:
    with pytest.raises(ChildFailedError, match="2 batches in a row"):
        run.start(workers=2, faults={"nan_at_step": [2, 3], "max_skips": 2}, checkpoint={"every": 2})
    assert [name.split(".")[0] for name in run.checkpoints()] == ["step-00000002"]


def test_skips_in_a_row_are_counted_across_a_restart(run: Run) -> None:
    changes = {"faults": {"nan_at_step": [3, 4], "max_skips": 2}}
    run.start_and_kill(4, **changes)
    with pytest.raises(ChildFailedError, match="2 batches in a row"):
        run.start(**changes)


def test_the_window_of_spikes_goes_on_across_a_restart(run: Run, corpus: str, tmp_path: Path) -> None:
    noisy = {
        "steps": 24,
        "optimizer": {"lr": 1e-9},
        "faults": {"spike_window": 4, "spike_sigma": 0.2, "max_skips": 24},
    }
    run.start_and_kill(10, **noisy)
    assert run.start(**noisy).finished
    plain = Run(data=corpus, output=tmp_path / "plain", changes=noisy)
    assert plain.start().finished
    spikes = [step for step, row in plain.metrics().items() if row["skipped"]]
    assert [step for step, row in run.metrics().items() if row["skipped"]] == spikes
    assert {plain.metrics()[step]["reason"] for step in spikes} == {"spike"}
    assert set(spikes) & {8, 9, 10, 11}  # an empty window would have let these pass
    assert run.losses() == plain.losses()


def test_a_run_goes_on_with_another_window_of_spikes(run: Run) -> None:
    run.start(steps=4, faults={"spike_window": 8})
    assert run.start(faults={"spike_window": 2}).finished
    assert run.start(steps=10, faults={"spike_window": 64}).finished


def test_a_stop_saves_a_checkpoint_and_the_next_start_goes_on(run: Run, corpus: str, tmp_path: Path) -> None:
    recipe = run.recipe({"workers": 2})
    results = run_forked(run.scratch, 2, partial(train_until_stopped, recipe))
    assert [(result.step, result.finished) for result in results] == [(6, False)] * 2
    assert run.checkpoints()[-1].startswith("step-00000006")
    assert run.start(workers=2).attempt == 2
    plain = Run(data=corpus, output=tmp_path / "plain", changes={"steps": 8, "workers": 2})
    plain.start()
    assert run.losses() == plain.losses()


def train_until_stopped(recipe: TrainRecipe, process: Process) -> TrainingResult:
    """Rank 1 alone is asked to stop, while it works on its sixth step."""
    asked: list[int] = []

    def stop_requested() -> bool:
        asked.append(1)
        return process.rank == 1 and len(asked) == 6

    return train(recipe, LaunchContext(process=process, stop_requested=stop_requested))


def train_with_figures_behind(recipe: TrainRecipe, process: Process) -> TrainingResult:
    """As on a GPU: a step's figures are read while the next one runs."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(steps, "_computes_behind", lambda device: True)
        return train(recipe, LaunchContext(process=process))


@pytest.mark.parametrize(("skipped", "in_row"), [([6], 0), ([6, 7], 2), ([5, 7], 1)])
def test_a_checkpoint_counts_a_skipped_step_whose_report_is_still_to_come(
    run: Run, skipped: list[int], in_row: int
) -> None:
    recipe = run.recipe({"faults": {"nan_at_step": skipped, "max_skips": 3}})
    (ended,) = run_forked(run.scratch, 1, partial(train_with_figures_behind, recipe))
    assert [step for step, row in run.metrics().items() if row["skipped"]] == skipped
    facts = read_facts([str(run.output)])
    assert {step for fact in facts.segments for step in json.loads(fact.skipped_steps or "[]")} == set(
        skipped
    )
    assert len(read_position(Folder(ended.checkpoint)).skipped_in_row) == in_row


def test_only_the_last_checkpoints_and_the_multiples_are_kept(run: Run) -> None:
    run.start(checkpoint={"every": 1, "keep": 2, "keep_every": 3})
    steps = [int(name.split("-")[1].split(".")[0]) for name in run.checkpoints()]
    assert steps == [3, 6, 7, 8]


def test_a_damaged_checkpoint_is_refused_by_every_rank(run: Run) -> None:
    run.start(steps=4, workers=2)
    piece = next(iter(sorted((run.output / "checkpoints" / run.checkpoints()[-1]).glob("*.distcp"))))
    data = bytearray(piece.read_bytes())
    data[len(data) // 2] ^= 1
    piece.write_bytes(data)
    with pytest.raises(ChildFailedError, match="has other bytes"):
        run.start(workers=2)
    assert len(list(run.scratch.glob("error-*"))) == 2


def test_a_checkpoint_without_its_marker_is_passed_over(run: Run) -> None:
    run.start(checkpoint={"every": 2})
    (run.output / "checkpoints" / run.checkpoints()[-1] / "complete.json").unlink()
    result = run.start(checkpoint={"every": 2})
    assert result.finished
    attempt = json.loads((run.output / "attempts" / "00002.json").read_text())
    assert attempt.pop("began_at") > 0
    assert attempt == {
        "format": 1,
        "number": 2,
        "first_step": 6,
        "parent": 1,
        "rollback": None,
        "damaged": [],
    }


def test_what_an_attempt_left_of_a_checkpoint_is_removed_by_the_next(run: Run) -> None:
    run.start(steps=4)
    checkpoints = run.output / "checkpoints"
    for name in ("step-00000006.attempt-1", "step-00000002.attempt-1"):
        (checkpoints / name).mkdir()
        (checkpoints / name / "__0_0.distcp").write_bytes(b"as far as the disk had room")
    (checkpoints / "notes").mkdir()
    (checkpoints / "notes" / "mine").write_bytes(b"somebody's own")
    assert run.start().finished
    assert {path.name for path in checkpoints.iterdir()} == {*run.checkpoints(), "notes"}


def test_another_order_is_refused_before_the_attempt_is_claimed(run: Run) -> None:
    run.start(steps=4)
    with pytest.raises(ChildFailedError, match=r"train\.\w+ is \w+ now and was \w+"):
        run.start(global_batch=6)
    assert not (run.output / "attempts" / "00002.claim").exists()


def test_an_attempt_that_outlives_its_run_publishes_nothing(run: Run) -> None:
    work = partial(train_superseded, run.recipe({"checkpoint": {"every": 2}}))
    with pytest.raises(ChildFailedError, match=r"attempt 1 .* has been superseded"):
        run_forked(run.scratch, 1, work)
    assert [name.split(".")[0] for name in run.checkpoints()] == ["step-00000002"]
    assert len(run.metrics()) == 3


def train_superseded(recipe: TrainRecipe, process: Process) -> TrainingResult:
    """Another attempt begins after the third step, as when a scheduler thinks this one dead."""

    def after_step(step: int) -> None:
        if step == 3:
            published = Path(recipe.train.output, "checkpoints")
            while not any(
                published.glob("*/complete.json")
            ):  # that of step 2 is written beside the steps after it
                time.sleep(0.01)
            claim(Folder(recipe.train.output))

    return train(recipe, LaunchContext(process=process, hooks=AfterStep(after_step)))


def test_the_watchdog_names_the_rank_that_hangs_and_the_collective(run: Run) -> None:
    recipe = run.recipe({"workers": 2, "faults": {"watchdog_seconds": 1800.0}})
    codes = wait(start_forked(run.scratch, 2, partial(train_and_hang, recipe)))
    assert EXIT_HUNG in codes, said(run.scratch)
    assert (
        "rank 1 is hung in step 2, data loading; others wait in step 2 in the all-reduce of label counts"
        in said(run.scratch)
    )
    (absence,) = (found := diagnose_run(Folder(str(run.output)), recipe)).causes
    assert (absence.absent, absence.waiting, absence.operation.step) == ((1,), (0,), 2)
    assert (absence.operation.site.name, absence.operation.site.function) == ("all_reduce", "_count_labels")
    where = found.stacks[1].in_trainer
    assert where is not None and (where.file, where.function) == ("trainer/run/step.py", "_count_labels")
    assert where.line < absence.operation.site.line  # it never came to that line
    assert found.recorders.stacks[0] and found.stacks[0].why.startswith(
        "no progress for 1800 s in all-reduce of label"
    )


def test_storage_that_is_slower_than_the_steps_between_two_checkpoints_is_waited_for(run: Run) -> None:
    recipe = run.recipe({"checkpoint": {"every": 2}, "faults": {"watchdog_seconds": 1800.0}})
    codes = wait(start_forked(run.scratch, 1, partial(train_with_slow_storage, recipe)))
    assert codes == [0], said(run.scratch)
    assert "waits until the checkpoint before is written; its storage is slower than" in said(run.scratch)
    assert len(run.checkpoints()) == 3


def train_with_slow_storage(recipe: TrainRecipe, process: Process) -> TrainingResult:
    """The first checkpoint is published an hour after the second one is due, and once the watchdog has looked
    twice."""
    waits, looks = threading.Event(), list[int]()
    wait_for_storage, publish = Saver.wait, state.publish_complete

    def saver_wait(self: Saver) -> None:
        if self.is_writing:
            waits.set()
        wait_for_storage(self)

    def publish_complete(folder: Folder, position: Position) -> None:
        waits.wait()
        while len(looks) < 2:
            time.sleep(0.01)
        publish(folder, position)

    def monotonic() -> float:
        if waits.is_set() and threading.current_thread() is not threading.main_thread():
            looks.append(1)
        return time.monotonic() + (3600.0 if waits.is_set() else 0.0)

    Saver.wait = saver_wait  # type: ignore[method-assign]
    state.publish_complete = publish_complete
    watchdog.time = SimpleNamespace(monotonic=monotonic, sleep=time.sleep)  # type: ignore[assignment]
    return train(recipe, LaunchContext(process=process))


def train_and_hang(recipe: TrainRecipe, process: Process) -> TrainingResult:
    """Rank 1 never comes back from its third batch. Then, and once rank 0 waits for it, the watchdogs' clock
    is an hour further: no slow step can wake them before."""
    hangs, waits = (Path(f"{recipe.train.output}-{name}") for name in ("hangs", "waits"))
    asked: list[int] = []
    pass_marker = Watchdog.at

    def stop_requested() -> bool:
        asked.append(1)
        if process.rank == 1 and len(asked) == 3:
            hangs.touch()
            time.sleep(3600)
        return False

    def at(self: Watchdog, step: int, where: str) -> None:
        pass_marker(self, step, where)
        if (process.rank, step, where) == (0, 2, "all-reduce of label counts"):
            waits.touch()

    def monotonic() -> float:
        return time.monotonic() + (3600.0 if hangs.exists() and waits.exists() else 0.0)

    def sleep(seconds: float) -> None:
        while not process.store.check(["watchdog/0", "watchdog/1"]):
            time.sleep(0.01)

    Watchdog.at = at  # type: ignore[method-assign]
    watchdog.time = SimpleNamespace(monotonic=monotonic, sleep=sleep)  # type: ignore[assignment]
    return train(recipe, LaunchContext(process=process, stop_requested=stop_requested))
