"""Exact unlearning by replay in each layout, under Ray and under torchrun: equal to runs that never read it,
or not.

In each layout a run reads five documents, first in different steps. They are purged, and forgotten one after
the other (or by one replay for all: `--together`). A SIGKILL meets each replay: the call with all its
processes, or one rank. Then the run is certified, its certificate checked, and its weights and moments
compared with those of a new run on the purged shards, by `sluice certify --check … --against …`. Validation,
accumulation, a listed and a non-finite step and a mixture that changes are on. The run before and the new run
are of plain processes on gloo, so that the bits of launchers are compared too.

    python -m benchmarks.forgetting [--launcher torchrun ray] [--only LAYOUT …] [--documents 5] [--together]

A line for each layout and launcher: which steps the replays went back to, what was killed, and how many are
equal to the last bit; exit code 1 unless all are."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lineage.storage.folder import Folder
from pipeline.cli.main import main as sluice
from tests.support.outputs.small_out.output import SmallOut
from tests.support.training.forgotten import (
    HARD,
    LAYOUTS,
    NUM_DOCUMENTS,
    Trained,
    copy_out,
    make_few_ids_out,
    never_read,
)
from tests.support.training.launched import LAUNCHERS, VICTIMS, Launcher, Victim, command_line, finish_killed
from trainer.attempts import attempts
from trainer.recovery.rollbacks import rollbacks

STEPS = 40
EVERY = 4
LONG: Mapping[str, Any] = {"steps": STEPS, "checkpoint": {"every": EVERY, "keep": STEPS}}
"""Enough steps that a SIGKILL comes before the last."""
FIRST_READ = range(EVERY, STEPS - 4 * EVERY)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--launcher", nargs="+", choices=LAUNCHERS, default=LAUNCHERS)
    parser.add_argument("--only", nargs="+", choices=LAYOUTS, default=list(LAYOUTS), metavar="LAYOUT")
    parser.add_argument("--documents", type=int, default=NUM_DOCUMENTS, choices=range(1, NUM_DOCUMENTS + 1))
    parser.add_argument("--together", action="store_true", help="one replay for all documents")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    all_equal = True
    with tempfile.TemporaryDirectory(prefix="sluice-forgetting-") as scratch:
        small = make_few_ids_out(Path(scratch))
        for position, name in enumerate(LAYOUTS):
            for launcher in options.launcher if name in options.only else ():
                folder = Path(scratch) / f"{name} under {launcher}"
                folder.mkdir()
                trained = Trained(small=small, folder=folder, changes={**HARD, **LONG, **LAYOUTS[name]})
                found = list(
                    replays(
                        small,
                        trained,
                        launcher,
                        options.documents,
                        together=options.together,
                        victims=VICTIMS if position % 2 else VICTIMS[::-1],
                    )
                )
                all_equal &= all(row["equal"] for row in found)
                told = {
                    "layout": name,
                    "launcher": launcher,
                    "documents": options.documents,
                    "replays": len(found),
                    "from_steps": [row["from_step"] for row in found],
                    "killed": [row["killed"] for row in found],
                    "attempts": len(attempts(Folder(str(trained.run.output)))),
                    "equal": sum(row["equal"] for row in found),
                    "first_difference": next((row["why"] for row in found if not row["equal"]), None),
                }
                print(json.dumps(told), flush=True)
    return 0 if all_equal else 1


def replays(
    small: SmallOut,
    trained: Trained,
    launcher: Launcher,
    num_documents: int,
    *,
    together: bool,
    victims: Sequence[Victim],
) -> Iterator[dict[str, Any]]:
    """Train, then purge and forget the documents; what came of each replay."""
    copy_out(small, trained.folder)
    trained.run.start()
    records = trained.records_first_read_in(FIRST_READ)[:num_documents]
    for number, group in enumerate([records] if together else [[record] for record in records]):
        first = trained.first_steps()
        after = (
            min(first[record.doc_id] for record in group) + 1
        )  # the replay begins at the first reading, or before
        ids = [trained.purge(record) for record in group]
        victim = victims[number % 2]
        finish_killed(trained, command_line(trained, launcher, "--forget", *ids), victim, after)
        equal, why = certified(trained, ids, never_read(trained, f"fresh-{number}"))
        (went_back,) = [row for row in rollbacks(Folder(str(trained.run.output))) if ids[0] in row.purges]
        yield {"from_step": went_back.step, "killed": victim, "equal": equal, "why": why}


def certified(trained: Trained, purge_ids: Sequence[str], fresh: Trained) -> tuple[bool, str]:
    """Whether the certificate that the replay left names the purges, holds, and the bits are those of the
    other run."""
    (newest,) = sorted(
        (trained.run.output / "certificates").glob("*.json"), key=lambda path: path.stat().st_mtime
    )[-1:]
    named = [purge["purge_id"] for purge in json.loads(newest.read_text())["purges"]]
    with contextlib.redirect_stdout(io.StringIO()) as told:
        code = sluice(
            [
                "certify",
                str(trained.run.output),
                "--check",
                str(newest),
                "--against",
                str(fresh.run.output),
                "--json",
            ]
        )
    row = json.loads(told.getvalue())
    wrong = [f"{line['what']}: {line['why']}" for line in row["lines"] if not line["holds"]]
    return code == 0 and row["equal"] and sorted(named) == sorted(purge_ids), "; ".join([*wrong, row["why"]])


if __name__ == "__main__":
    sys.exit(main())
