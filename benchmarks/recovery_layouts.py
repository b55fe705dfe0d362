"""Forty deaths in one run of each layout: from a death to the next finished step, and whether anything of what
came out differs from an undisturbed run.

    python -m benchmarks.recovery_layouts [--layout LAYOUT]… [--stops]

Four processes, and two that wait. A process kills itself in every phase of every rank that has it, in the
vote and in the recovery itself (`forty_deaths`); with --stops ten stop themselves at drawn moments, with a
watchdog of 20 seconds, and one process waits (`ten_stops`). Losses, weights, moments, what was fed and each
row's loss are compared to the bit; the exit code is 1 where one differs, or a death did not come. A death in
a recovery counts until the next step too."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from lineage.storage.folder import Folder
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.training.in_place import (
    LAYOUTS,
    WITHOUT_REPLICAS,
    both_of,
    check_same,
    died_at,
    forty_deaths,
    row_losses,
    ten_stops,
    train_with,
)
from tests.support.training.training_runs import Run
from trainer.attempts import attempts


def main() -> int:
    """Print a line of JSON for each layout."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    layouts = [*LAYOUTS, *WITHOUT_REPLICAS]
    parser.add_argument("--layout", action="append", choices=layouts, help="all where none is named")
    parser.add_argument("--stops", action="store_true", help="ten stops instead of forty deaths")
    options = parser.parse_args()
    all_same = True
    for layout in options.layout or layouts:
        with tempfile.TemporaryDirectory(prefix="sluice-recovery-") as scratch:
            corpus = make_corpus(f"{scratch}/out", {"web": [1700, 530], "books": [1111]}).url
            whole, run = both_of(layout, corpus, Path(scratch), stops=options.stops)
            whole.start()
            deaths = ten_stops(layout) if options.stops else forty_deaths(layout)
            train_with(run, deaths)
            seconds, same = _seconds(run), _is_same(run, whole)
        all_same = all_same and same and len(seconds) == len(deaths)
        found = {
            "layout": layout,
            "deaths": f"{len(seconds)} of {len(deaths)}",
            "median s": round(statistics.median(seconds), 2),
            "worst s": round(max(seconds), 2),
            "same bits": same,
        }
        print(json.dumps(found), flush=True)
    return 0 if all_same else 1


def _seconds(run: Run) -> list[float]:
    """From each death to the end of the first step of an attempt that began behind it."""
    began = {each.number: each.began_at or 0.0 for each in attempts(Folder(str(run.output)))}
    rows = [json.loads(line) for line in (run.output / "metrics.jsonl").read_text().splitlines()]
    return [
        min(row["at"] for row in rows if began[row["attempt"]] > death and row["at"] > death) - death
        for death in died_at(run)
    ]


def _is_same(run: Run, whole: Run) -> bool:
    try:
        check_same(run, whole)
        assert row_losses(run) == row_losses(whole)
    except AssertionError as error:
        sys.stderr.write(f"{error}\n")
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
