"""`python -m trainer RECIPE [--set key=value]… [--from-step T]`: train in this process, as one of torchrun's,
or with processes that this one starts, where the recipe recovers in place (`[train.recovery]`)."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

import torch.distributed as dist

from lineage.recipe import RecipeError
from lineage.storage.errors import what_to_do
from lineage.storage.folder import Folder
from lineage.store.delta import StoreError
from trainer.attempts import FencedOutError, TrainingStoppedError
from trainer.checkpoint.digest import weights_digest
from trainer.checkpoint.store import CheckpointError
from trainer.evidence.certificate import certify_replay
from trainer.evidence.certificate_file import CertificateError
from trainer.evidence.commitment.commit import commit_ended
from trainer.in_place.supervise import train_on_this_machine
from trainer.options import TrainRecipe, load_train_recipe
from trainer.processes.heard import by_first_rank
from trainer.processes.last_words import print_last
from trainer.processes.result import TrainingResult
from trainer.processes.runtime import join_process_group, process_began, stop_on_signal
from trainer.recovery.call import Replay, prepare_replay
from trainer.recovery.options import ReplayOptions, add_replay, read_replay
from trainer.run.parts import LaunchContext
from trainer.run.preflight import check_run
from trainer.run.train import train


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: done, or stopped by SIGTERM or a first Ctrl-C; 1: failed; 2: recipe or call is wrong; 130:
    ended by a second Ctrl-C. Rank 0 prints the result."""
    parser = _Parser(prog="python -m trainer", description=__doc__)
    parser.add_argument("recipe", help="a training recipe (TOML)")
    parser.add_argument("--set", action="append", default=[], metavar="key=value", help="change one key")
    add_replay(parser)
    parsed = parser.parse_args(arguments)
    stop_requested = stop_on_signal()
    try:
        recipe, options = load_train_recipe(parsed.recipe, parsed.set), read_replay(parsed)
        if recipe.train.recovery.mode == "in_place":
            return _in_place(recipe, options, parsed.recipe, stop_requested)
        process = join_process_group(recipe.train.num_workers, recipe.train.faults.watchdog_seconds)
        # By rank 0 for all.
        replay = by_first_rank(partial(_checked, recipe, options, parsed.recipe), None, CheckpointError)
        if process.rank == 0:
            sys.stderr.writelines(f"{line}\n" for line in replay.lines)
        result = None
        if replay.trains:
            result = train(
                recipe,
                LaunchContext(process=process, stop_requested=stop_requested, began_at=process_began()),
            )
    except RecipeError as error:
        return _fail(str(error), 2)
    except (CheckpointError, FencedOutError, TrainingStoppedError, OSError, StoreError) as error:
        return _fail(str(error), 1)
    except KeyboardInterrupt:
        return _fail("ended at once: the same call continues from the newest checkpoint", 130)
    if process.rank == 0 and result is not None:
        print(json.dumps(dataclasses.asdict(result)))
    dist.barrier()
    dist.destroy_process_group()
    # Without the other ranks: hashing a large checkpoint takes longer than they would wait.
    return _certify(recipe, replay, result) if process.rank == 0 else 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """As any other wrong call ends: argparse would print it on every rank."""
        sys.exit(_fail(f"{message}; python -m trainer --help teaches the call", 2))


def _in_place(
    recipe: TrainRecipe, options: ReplayOptions, file: str, stop_requested: Callable[[], bool]
) -> int:
    """Train with processes that this one starts, and that go on when one of them dies. Errors as in
    `main`."""
    replay = _checked(recipe, options, file)
    sys.stderr.writelines(f"{line}\n" for line in replay.lines)
    result = train_on_this_machine(recipe, stop_requested) if replay.trains else None
    if result is not None:
        print(json.dumps(dataclasses.asdict(result)))
    return _certify(recipe, replay, result)


def _certify(recipe: TrainRecipe, replay: Replay, result: TrainingResult | None) -> int:
    """The commitment of a run that has ended, and the certificate of a replay; exit code."""
    if not (replay.is_done if result is None else result.finished):
        return 0
    if recipe.train.commit:
        sys.stderr.write(f"{commit_ended(Folder(recipe.train.output))}\n")
    if not replay.purges:
        return 0
    try:
        name, _ = certify_replay(Folder(recipe.train.output), replay.purges, weights_digest)
    except RecipeError as error:
        return _fail(str(error), 2)
    except (CheckpointError, CertificateError, StoreError, OSError) as error:
        return _fail(str(error), 1)
    sys.stderr.write(f"certificate: {Folder(recipe.train.output).at(name)}\n")
    return 0


def _checked(recipe: TrainRecipe, options: ReplayOptions, file: str) -> Replay:
    """`prepare_replay` of a recipe that `check_run` finds nothing wrong with, with the lines of both. Errors of
    both."""
    lines = check_run(recipe, from_step=options.from_step)
    replay = prepare_replay(recipe, options, file)
    return dataclasses.replace(replay, lines=(*lines, *replay.lines))


def _fail(message: str, code: int) -> int:
    if os.environ.get("SLUICE_TRACEBACK"):
        traceback.print_exc()
    advice = what_to_do(message)
    print_last(f"sluice: {message}\n" + (f"{advice}\n" if advice else ""))
    return code
