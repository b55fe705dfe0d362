"""An export of a checkpoint that is killed leaves no file half, and the same call again ends it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from lineage.storage.folder import Folder
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.processes.forked import killed, run_forked, start_forked, wait
from tests.support.processes.purge_child import Countdown, count_acts
from tests.support.training.training_runs import Run
from trainer.attempts import attempts
from trainer.checkpoint.store import complete_checkpoints
from trainer.huggingface.export import export_run
from trainer.huggingface.llama import Export, export_weights
from trainer.huggingface.model_card import read_card
from trainer.processes.runtime import Process


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("export")
    data = make_corpus(str(folder / "out"), {"web": [1700, 530]}).url
    made = Run(data=data, output=folder / "run", changes={"steps": 2})
    made.start()
    return made


def export(run: Run, target: Path, fatal: int, process: Process) -> int:
    """Export in files of few tensors; dies at the act `fatal`. How many acts there were."""
    import torch

    countdown = Countdown(fatal)
    count_acts(countdown)
    output = Folder(str(run.output))
    card = read_card(output)
    newest = complete_checkpoints(Folder(card.checkpoints), attempts(output))[-1]
    described = Export(
        config=card.config,
        seq_len=card.seq_len,
        end_of_text=card.tokenizer.eot_id,
        dtype=torch.float32,
        more_files={"tokenizer.model": b"ranks"},
    )
    export_weights(Folder(card.checkpoints).folder(newest.name), target, described, file_bytes=20_000)
    return countdown.acts


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.slow
def test_an_export_killed_at_every_act_leaves_whole_files_and_is_ended_by_the_same_call(
    run: Run, tmp_path: Path
) -> None:
    [acts] = run_forked(tmp_path / "processes", 1, partial(export, run, tmp_path / "whole", -1))
    whole = files_of(tmp_path / "whole")
    assert len(whole) > 5 and acts > 20
    print(f"kills: {acts}")
    for act in range(acts):
        target = tmp_path / f"at-{act}"
        assert killed(wait(start_forked(tmp_path / "processes", 1, partial(export, run, target, act))))
        left = files_of(target) if target.exists() else {}
        assert left.items() <= whole.items(), "a file that is there is whole"
        assert "config.json" not in left or left == whole
        run_forked(tmp_path / "processes", 1, partial(export, run, target, -1))
        assert files_of(target) == whole
        assert not [path for path in target.iterdir() if path.is_dir()], "nothing temporary stays"


def test_an_export_over_an_older_one_is_incomplete_until_it_ends(run: Run, tmp_path: Path) -> None:
    export_run(Folder(str(run.output)), tmp_path / "hf")
    fatal = 4  # config.json has gone, the first file is being written
    assert killed(wait(start_forked(tmp_path / "processes", 1, partial(export, run, tmp_path / "hf", fatal))))
    assert "config.json" not in files_of(tmp_path / "hf")
