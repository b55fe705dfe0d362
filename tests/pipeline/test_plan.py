"""What a plan lets pass, what a run keeps of it, and that nothing of it stays behind when it has ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from pipeline.plan import PLAN, RunPlan, check_same_run, clear_work, plan_run
from pipeline.recipe import load
from tests.support.outputs.runs import recipe, write_recipe
from tests.support.outputs.small_out.output import make_small_out


def planned(folder: Path, *more: dict[str, Any], num_files: int = 1, **tables: dict[str, Any]) -> RunPlan:
    """The plan of a run over small files into `folder`/out, with `more` sources."""
    for number in range(num_files):
        (folder / f"{number}.jsonl").write_text(json.dumps({"text": "a text"}) + "\n")
    plain = recipe(str(folder / "out"), {"rows": (str(folder / "*.jsonl"),)}, **tables)
    plain["source"] += more
    return plan_run(load(write_recipe(folder / "recipe.toml", plain)))


def finished(folder: Path, **dedup: Any) -> str:
    """A finished output whose recipe had these keys of [dedup]."""
    out = make_small_out(str(folder)).folder
    out.publish("recipe.toml", tomli_w.dumps(recipe(out.url, {"web": ("a",)}, dedup=dedup)).encode())
    return out.url


def test_more_sources_than_can_be_compared_are_refused_before_any_is_listed(tmp_path: Path) -> None:
    more = [{"name": f"s{number}", "inputs": ["/nowhere/a.jsonl"]} for number in range(512)]
    with pytest.raises(RecipeError, match=r"^source: 513 \[\[source\]\] tables, expected at most 512"):
        planned(tmp_path, *more)


def test_more_files_of_a_source_than_can_be_compared_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.plan.MAX_FILES", 2)
    assert len(planned(tmp_path, num_files=2).units) == 2
    with pytest.raises(RecipeError, match=r"source\.inputs of 'rows': 3 files, expected at most 2"):
        planned(tmp_path, num_files=3)


@pytest.mark.parametrize(
    ("theirs", "ours", "says"),
    [
        ({"near": False}, {}, r"earlier was made without dedup\.near.*set dedup\.near = false, or name an output"),
        ({"num_perm": 256}, {}, r"earlier was signed as .*perm=256.*give both the same"),
    ],
)
def test_an_earlier_output_without_the_signatures_to_compare_with_is_refused(
    tmp_path: Path, theirs: dict[str, Any], ours: dict[str, Any], says: str
) -> None:
    against = finished(tmp_path / "earlier", **theirs)
    with pytest.raises(RecipeError, match=says):
        planned(tmp_path, dedup={"against": [against], **ours})


@pytest.mark.parametrize(("theirs", "ours"), [(False, False), (True, False), (True, True)])
def test_an_earlier_output_is_compared_with_where_it_has_what_this_run_compares(
    tmp_path: Path, theirs: bool, ours: bool
) -> None:
    against = finished(tmp_path / "earlier", near=theirs)
    assert planned(tmp_path, dedup={"against": [against], "near": ours}).units


def test_a_plan_has_the_places_of_earlier_outputs_from_any_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    against = finished(tmp_path / "earlier")
    monkeypatch.chdir(tmp_path)
    tables = {"dedup": {"against": ["earlier"]}, "purges": {"honour": ["earlier"]}}
    plan = planned(tmp_path, **tables)
    assert plan.recipe.dedup.against == (against,)
    assert not check_same_run(plan)
    # As earlier releases recorded it.
    recorded = json.loads(plan.out.read(PLAN))
    recorded["recipe"]["dedup"]["against"] = ["earlier"]
    recorded["outputs"] = {"earlier": recorded["outputs"][against]}
    plan.out.publish(PLAN, json.dumps(recorded).encode())
    assert not check_same_run(planned(tmp_path, **tables)), "the same call again continues"


def test_clearing_that_was_killed_at_its_last_act_is_ended_by_the_next_call(tmp_path: Path) -> None:
    out = Folder(str(tmp_path))
    out.publish(PLAN, b"{}")
    (tmp_path / "work" / "units" / "a").mkdir(parents=True)
    (tmp_path / PLAN).unlink()  # where the kill struck: the plan was gone, the folders were not
    clear_work(out)
    assert list(tmp_path.iterdir()) == []


def test_clearing_leaves_what_an_unfinished_purge_wrote_down(tmp_path: Path) -> None:
    out = Folder(str(tmp_path))
    out.publish("work/purge/intent.json", b"{}")
    clear_work(out)
    assert out.names() == ["work/purge/intent.json"]
