"""A run goes back to a checkpoint and on from there; killed at any point, the same call goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.store.rows import ShardSpan
from lineage.trace.exposure import exposures, fold
from pipeline.cli.main import main
from tests.support.outputs.synthetic import made_up_tokens, write_output
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.training.training_runs import Run
from trainer.attempts import Attempt, attempts, begin, claim
from trainer.checkpoint.store import checkpoints_set_aside
from trainer.provenance.exposure import find_readings
from trainer.provenance.reached import read_facts
from trainer.recovery.back import go_back_to
from trainer.recovery.options import ReplayOptions
from trainer.recovery.rollbacks import rollbacks
from trainer.run.preflight import check_run


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_corpus(str(tmp_path_factory.mktemp("out")), {"web": [1700, 530], "books": [1111]}).url


@pytest.fixture(scope="module")
def whole(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(data=corpus, output=tmp_path_factory.mktemp("whole") / "run")
    assert run.start().finished
    return run


def begun(output: Path) -> list[tuple[int, int | None]]:
    return [(attempt.first_step, attempt.parent) for attempt in attempts(Folder(str(output)))]


def set_aside(output: Path) -> list[int]:
    return [entry.step for entry in checkpoints_set_aside(Folder(str(output / "checkpoints")))]


def test_what_a_superseded_attempt_wrote_late_of_a_step_that_the_run_has_passed_is_deleted(
    corpus: str, tmp_path: Path
) -> None:
    run = Run(data=corpus, output=tmp_path / "run")
    superseded = claim(Folder(str(run.output)))
    begin(Folder(str(run.output)), Attempt(number=superseded, first_step=0, parent=None, began_at=0.0))
    assert run.start().finished
    checkpoints = Folder(str(run.output / "checkpoints"))
    before = checkpoints.names()
    checkpoints.publish("step-00000008.attempt-1/complete.json", b"{}")  # its files are deleted by now
    assert run.start().finished
    assert checkpoints.names() == before


def applied_steps(run: Run) -> dict[tuple[int, int], bool]:
    facts = read_facts([str(run.output)])
    (training,) = fold(facts.runs, facts.segments)
    found = exposures(training, ShardSpan("web", 0, 0, 1700), find_readings)
    return {(exposure.attempt, exposure.step): exposure.applied for exposure in found}


@pytest.mark.parametrize("killed_after", [None, 5, 9])
def test_the_steps_behind_a_checkpoint_are_done_again(
    killed_after: int | None, corpus: str, whole: Run, tmp_path: Path
) -> None:
    run = Run(data=corpus, output=tmp_path / "run")
    run.start()
    assert "step-00000004.attempt-1" in "".join(go_back_to(run.recipe(), 4))
    assert begun(run.output) == [(0, None)]  # nothing is done before an attempt carries it out
    if killed_after is not None:
        run.start_and_kill(killed_after)
        # One whose steps are done again goes right after the new one is published: the kill may come between
        # the two.
        assert {step for step in (8, 12) if step > killed_after} <= set(set_aside(run.output)) <= {8, 12}
        assert "already" in "".join(go_back_to(run.recipe(), 4))
    assert run.start().finished
    assert begun(run.output)[1] == (4, 1)
    assert len(rollbacks(Folder(str(run.output)))) == 1
    assert set_aside(run.output) == []
    assert run.losses() == whole.losses()
    assert run.sequences() == whole.sequences()
    # The same call, done: the same would come out.
    assert "nothing is undone" in "".join(go_back_to(run.recipe(), 4))
    assert "goes back to checkpoint" in "".join(go_back_to(run.recipe({"optimizer": {"lr": 1e-3}}), 4))


def test_what_was_undone_is_told_as_not_applied(corpus: str, tmp_path: Path) -> None:
    run = Run(data=corpus, output=tmp_path / "run")
    run.start()
    go_back_to(run.recipe(), 4)
    run.start_and_kill(5)
    found = applied_steps(run)
    assert all(applied == (step < 4 or attempt == 2) for (attempt, step), applied in found.items())
    assert {attempt for attempt, step in found if step > 5} == {1}
    assert set_aside(run.output) == [8, 12]


def test_a_start_that_was_killed_before_it_set_anything_aside_is_made_up_for(
    corpus: str, tmp_path: Path
) -> None:
    run = Run(data=corpus, output=tmp_path / "run")
    run.start()
    go_back_to(run.recipe(), 4)
    output = Folder(str(run.output))
    claim(output)  # killed here: no attempt has carried it out
    assert "asked for before" in "".join(go_back_to(run.recipe(), 4))
    begin(
        output, Attempt(number=claim(output), first_step=4, parent=1, rollback=1, began_at=0.0)
    )  # killed here: 8 and 12 lie there
    run.start_and_kill(5)
    assert begun(run.output) == [(0, None), (4, 1), (4, 1)]
    assert set_aside(run.output) == [8, 12]
    assert run.checkpoints() == ["step-00000004.attempt-1"]


def test_it_goes_back_to_the_first_weights(corpus: str, whole: Run, tmp_path: Path) -> None:
    run = Run(data=corpus, output=tmp_path / "run", changes={"steps": 5})
    run.start()
    go_back_to(run.recipe(), 0)
    run.start(steps=12)
    assert begun(run.output) == [(0, None), (0, None)]
    assert run.losses() == whole.losses()


def test_a_mixture_that_lies_behind_the_step_may_be_another(corpus: str, tmp_path: Path) -> None:
    def table(first_step: int, web: float) -> dict[str, Any]:
        shares = [{"web": 0.5, "books": 0.5}, {"web": web, "books": 1 - web}]
        return {
            "mixture": [
                {"first_step": step, "weights": weights}
                for step, weights in zip((0, first_step), shares, strict=True)
            ]
        }

    run = Run(data=corpus, output=tmp_path / "run", changes=table(6, 0.25))
    run.start()
    edited, past = run.recipe(table(5, 0.75)), run.recipe(table(3, 0.75))
    for recipe, step in ((edited, None), (past, 4), (edited, 12)):
        with pytest.raises(RecipeError, match=r"train\.mixture is another from step 6 on|data, sizes, seed"):
            check_run(recipe, from_step=step)
            go_back_to(recipe, step or 12)
    check_run(edited, from_step=4)
    go_back_to(edited, 4)
    check_run(edited)  # the call was killed here: a start without the option carries it out
    run.start(**table(5, 0.75))
    fresh = Run(data=corpus, output=tmp_path / "fresh", changes=table(5, 0.75))
    fresh.start()
    assert (run.losses(), run.sequences()) == (fresh.losses(), fresh.sequences())


def test_a_wrong_call_is_refused_in_a_sentence(corpus: str, whole: Run, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"nearest before it is step-00000008\.attempt-1: --from-step 8"):
        go_back_to(whole.recipe(), 9)
    with pytest.raises(RecipeError, match="none before it: --from-step 0"):
        go_back_to(whole.recipe(), 3)
    with pytest.raises(RecipeError, match="holds no attempt of a run"):
        go_back_to(Run(data=corpus, output=tmp_path / "none").recipe(), 4)
    with pytest.raises(RecipeError, match=r"train\.seed is 9 now and was 0"):
        go_back_to(whole.recipe({"seed": 9}), 4)
    with pytest.raises(RecipeError, match=r"another train\.output"):
        go_back_to(whole.recipe({"model": "moe-debug"}), 4)
    with pytest.raises(RecipeError, match="--restart goes with --forget"):
        ReplayOptions(restart=True, from_step=4)
    assert "newest checkpoint" in "".join(go_back_to(whole.recipe(), 12))
    assert rollbacks(Folder(str(whole.output))) == ()
    assert json.loads((whole.output / "attempts/00001.json").read_text())["rollback"] is None


def test_trace_lists_what_is_set_aside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    write_output(out, {"web": [made_up_tokens(2000, 1)]}, store=True)
    run = Run(data=str(out), output=tmp_path / "run")
    run.start()
    go_back_to(run.recipe(), 4)
    run.start_and_kill(5)
    assert main(["trace", str(out), "--runs", str(run.output)]) == 0
    told = capsys.readouterr().out
    assert "attempt 2: from step 4 of attempt 1, to step 4, rollback 1" in told
    assert f"set aside {run.output}/checkpoints/set-aside/step-00000012.attempt-1" in told
    assert main(["trace", str(out), "--runs", str(run.output), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["runs"]
    assert [entry["step"] for entry in row["set_aside"]] == [8, 12]
    assert [entry["ended"] for entry in row["rollbacks"]] == [False]
    assert main(["trace", str(out)]) == 2
    assert "--runs DIR alone" in capsys.readouterr().err
