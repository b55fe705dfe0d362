"""The page and the terminal's lines of a diagnosis, and the command: what is named, escaped, and how it
ends."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lineage.storage.folder import Folder
from pipeline.cli.main import main
from pipeline.report.training.diagnosis import heat_class, render_diagnosis
from tests.support.training.rings import WORLD, Asked, ring, times
from trainer.recipe_tables.failures import StragglersTable
from trainer.recorder.diagnosis.collectives import absences, mismatches
from trainer.recorder.diagnosis.diagnose import Diagnosis
from trainer.recorder.diagnosis.own_times import heat_map, rank_times, stragglers
from trainer.recorder.diagnosis.reading import Recorders
from trainer.recorder.diagnosis.stacks import last_stack
from trainer.recorder.files import attempt_folder
from trainer.recorder.ring import RingBuffer, RingContent

STACKS = """
== no progress
Thread 0x0000000000007f02 (most recent call first):
  File "/home/one/trainer/feed/feed.py", line 301 in <script>
"""


def hung_run() -> dict[int, RingContent]:
    """Rank 2 is slow in forward for 100 steps, and never comes to the second collective of the last one."""
    asked = [Asked(line=10), Asked(line=20, name="all_gather_single", size=4096)]
    return {
        rank: ring(
            rank,
            [asked, asked if rank != 2 else asked[:1]],
            is_open=rank != 2,
            times=[times(step, 0.3 if rank == 2 else 0.2) for step in range(100)],
        )
        for rank in range(WORLD)
    }


def diagnosis(rings: dict[int, RingContent]) -> Diagnosis:
    """Of these rings, as `diagnose` makes it of an output."""
    stack = last_stack(STACKS, 0x7F02)
    assert stack is not None
    table = StragglersTable()
    return Diagnosis(
        output="/data/<run>",
        recorders=Recorders(
            attempt=3, rings=rings, stacks={2: STACKS}, unreadable={"recorder/x": "it is <cut>"}
        ),
        world_size=WORLD + 1,
        silent=(WORLD,),
        mismatches=tuple(mismatches(rings)),
        absences=tuple(absences(rings)),
        stragglers=tuple(stragglers(rings, [list(range(WORLD))], table, table.window, ())),
        times=tuple(rank_times(rings)),
        heat=heat_map(rings),
        stacks={2: stack},
        errors={1: "RuntimeError: Connection <closed>"},
    )


def test_the_page_names_who_is_missing_where_it_is_and_who_is_slow_and_escapes_everything() -> None:
    page = render_diagnosis(diagnosis(hung_run()))
    assert (
        "Rank 2 never came to all_gather_single of 4,096 bytes (number 4 of group 0-1-2-3, step 1, forward)"
        in page
    )
    assert "at trainer/run/step.py:20 in train_step" in page and "ranks 0, 1, 3 wait there" in page
    assert (
        "rank 2 on node-1 is at trainer/feed/feed.py:301 in &lt;script&gt;" in page and "<script>" not in page
    )
    assert "Rank 2 on node-1 is slow: forward took 1.50 times as long as on others at the same work" in page
    assert (
        "No recorder of rank 4" in page
        and "it is &lt;cut&gt;" in page
        and "Connection &lt;closed&gt;" in page
    )
    assert "default-src 'none'" in page and 'href="http' not in page and "<script" not in page
    assert 'title="rank 2 · node-1, step 7: ' in page


def test_a_cells_colour_is_that_of_its_factor() -> None:
    assert [heat_class(cell) for cell in (None, 0.5, 0.8, 1.0, 1.1, 1.3, 5.0)] == [None, 0, 1, 2, 3, 5, 7]


def read_back(output: Path, rings: dict[int, RingContent]) -> None:
    """Put rings into an output as recorders publish them."""
    folder = output / attempt_folder(1)
    folder.mkdir(parents=True)
    for rank, content in rings.items():
        path = folder / f"rank-{rank:05d}.ring"
        written = RingBuffer(str(path), dataclasses.replace(content.header, num_operations=64, num_steps=128))
        for each in content.operations:
            number = written.entries.begin(
                written.add_site(each.site), each.step, each.group_number, each.size, each.peer
            )
            if each.exit is not None:
                written.entries.end(number)
        for step in content.steps:
            written.add_step(step.step, step.own, step.waiting)
    (folder / "rank-00002.stacks").write_text(STACKS)


def told(capsys: pytest.CaptureFixture[str], call: Sequence[str]) -> tuple[int, str]:
    code = main(["train", "diagnose", *call])
    return code, capsys.readouterr().out


def test_the_command_says_it_on_the_terminal_as_json_as_a_page_and_as_a_timeline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read_back(tmp_path / "run", hung_run())
    page, trace = tmp_path / "d.html", tmp_path / "t.json.gz"
    code, text = told(capsys, [str(tmp_path / "run"), "--to", str(page), "--timeline", str(trace)])
    assert code == 1
    assert (
        "Rank 2 never came to all_gather_single" in text
        and "rank 2 on node-1 is at trainer/feed/feed.py:301" in text
    )
    assert "Rank 2 on node-1 is slow: forward took 1.50 times as long" in text
    assert page.read_text().startswith("<!doctype html>") and trace.stat().st_size > 100
    code, text = told(capsys, [str(tmp_path / "run"), "--json"])
    plain: dict[str, Any] = json.loads(text)
    (absence,) = plain["absences"]
    assert (absence["absent"], absence["waiting"], absence["operation"]["line"]) == ([2], [0, 1, 3], 20)
    assert plain["stacks"]["2"]["frames"][0]["line"] == 301
    assert [(each["rank"], each["phase"]) for each in plain["stragglers"]] == [(2, "forward")]
    assert code == 1


def test_a_run_that_went_well_ends_with_0_and_what_is_not_there_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [Asked(line=10)]
    read_back(tmp_path / "run", {rank: ring(rank, [asked] * 3) for rank in range(WORLD)})
    code, text = told(capsys, [str(tmp_path / "run")])
    assert code == 0 and "No rank is missing from a collective, and none brought another one" in text
    assert main(["train", "diagnose", str(tmp_path / "run"), "--attempt", "7"]) == 1
    assert "attempt 7" in capsys.readouterr().err
    assert main(["train", "diagnose", str(tmp_path)]) == 1
    assert "holds no recorder" in capsys.readouterr().err
    assert main(["train", "diagnose", str(tmp_path / "run"), "--to", "d.txt"]) == 2
    assert "expected a name that ends in .html" in capsys.readouterr().err


def test_a_file_that_is_no_ring_is_told_and_the_others_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read_back(tmp_path / "run", hung_run())
    Folder(str(tmp_path / "run")).publish(f"{attempt_folder(1)}/rank-00003.ring", b"torn")
    code, text = told(capsys, [str(tmp_path / "run")])
    assert code == 1 and "rank-00003.ring cannot be read: expected a file that begins with" in text
    assert "Ranks 2, 3 never came to all_gather_single" in text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_the_map_and_asks_nothing_of_the_network(
    browser: Any, tmp_path: Path, scheme: str
) -> None:
    path = tmp_path / "diagnosis.html"
    path.write_text(render_diagnosis(diagnosis(hung_run())))
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get_log("performance")
    browser.get(path.as_uri())
    colours = browser.execute_script(
        "return [...document.querySelectorAll('.heat tr')].map(row =>"
        " getComputedStyle(row.querySelectorAll('td')[50]).backgroundColor)"
    )
    assert (
        len(colours) == WORLD and len({colours[0], colours[1], colours[3]}) == 1 and colours[2] != colours[0]
    )
    # On a phone nothing but a table that scrolls by itself is wider than the screen.
    browser.set_window_size(400, 900)
    wide = browser.execute_script(
        "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    browser.set_window_size(1280, 900)
    assert wide <= 0
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {
        each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"
    }
    assert {url for url in asked if not url.startswith("data:")} == {path.as_uri()}
    assert browser.get_log("browser") == []
