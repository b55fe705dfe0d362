"""What a plan lets pass, what a run keeps of it, and that nothing of it stays behind when it has ended."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import tomli_w

from lineage.recipe import RecipeError, parse_table
from lineage.storage.folder import Folder
from lineage.store.work import PLAN, clear_work
from pipeline.plan import RunPlan, plan_run, versions
from pipeline.recipe.checks import checked
from pipeline.recipe.load import load
from pipeline.recipe.tables import PipelineRecipe
from pipeline.refilter.step_keys import step_keys
from pipeline.same_run import check_same_run
from stages.html.extraction import Extractor, extract
from tests.support.outputs.runs import recipe, run, write_recipe
from tests.support.outputs.small_out.output import make_small_out
from tests.support.stores.loopback import Handler, serving


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
        (
            {"near": False},
            {},
            r"earlier was made without dedup\.near.*set dedup\.near = false, or name an output",
        ),
        ({"num_perm": 256}, {}, r"earlier was signed as .*perm=256.*give both the same"),
        (
            {"normalise": "none"},
            {},
            r"earlier was signed as .*=5, this run as .*normalise=fineweb: give both",
        ),
        (
            {"normalise": "slimpajama"},
            {"normalise": "fineweb"},
            r"signed as .*normalise=slimpajama, this run as",
        ),
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


def test_an_earlier_output_of_another_signature_scheme_is_compared_with_where_no_signature_is(
    tmp_path: Path,
) -> None:
    against = finished(tmp_path / "earlier", normalise="slimpajama")
    assert planned(tmp_path, dedup={"against": [against], "near": False, "normalise": "fineweb"}).units
    assert planned(tmp_path, dedup={"against": [against], "normalise": "slimpajama", "verify": False}).units


def test_a_plan_has_the_absolute_places_of_the_outputs_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    against = finished(tmp_path / "earlier")
    monkeypatch.chdir(tmp_path)
    tables = {"dedup": {"against": ["earlier"]}, "purges": {"honour": ["earlier"]}}
    plan = planned(tmp_path, **tables)
    assert plan.recipe.dedup.against == (against,)
    assert not check_same_run(plan)


def published(plan: RunPlan, num_documents: int) -> None:
    """The marker of a plan's first unit, as a worker leaves it that has read so many documents."""
    plan.out.publish(plan.units[0].marker, json.dumps({"num_documents": num_documents}).encode())


@pytest.mark.parametrize("left", ["nothing", "half a unit", "a unit without a document"])
def test_a_run_that_has_read_nothing_yet_gives_way_to_other_settings(tmp_path: Path, left: str) -> None:
    first = planned(tmp_path)
    check_same_run(first)
    if left == "half a unit":
        first.out.publish(f"{first.units[0].folder}/rejected.parquet", b"half")
    if left == "a unit without a document":
        first.out.publish("documents/web/part-00000.parquet", b"no row")
        first.out.publish("texts/facts/web/part-00000.zip", b"no row")
        published(first, 0)
    second, said = planned(tmp_path, dedup={"rows": 4}), list[str]()
    assert not check_same_run(second, said.append)
    assert (
        "had read no document, so it begins anew with other settings:\n  dedup.rows is 4 now and was 8"
        in said[0]
    )
    assert second.out.names() == [PLAN], "nothing of the first try is left"
    assert json.loads(second.out.read(PLAN)) == json.loads(json.dumps(second.identity))
    assert not check_same_run(second, said.append), "the same call again continues"
    assert len(said) == 1


def test_a_run_that_has_read_something_is_named_with_what_it_has_and_what_differs(tmp_path: Path) -> None:
    first = planned(tmp_path, num_files=2)
    check_same_run(first)
    published(first, 1)
    before = first.out.names()
    with pytest.raises(RecipeError) as refused:
        check_same_run(planned(tmp_path, num_files=2, dedup={"rows": 4}))
    assert "holds a run that has read 1 of its 2 input files, with other settings or inputs" in str(
        refused.value
    )
    assert "\n  dedup.rows is 4 now and was 8\nRestore them, or name another run.output." in str(
        refused.value
    )
    assert first.out.names() == before


def test_what_models_answered_of_a_file_that_is_not_read_whole_is_kept(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    recorded = json.loads(json.dumps(plan.identity))
    recorded["recipe"]["step"] = [{"name": "score"}]
    plan.out.publish(PLAN, json.dumps(recorded).encode())
    plan.out.publish(f"{plan.units[0].folder}/00000-0123456789abcdef.parquet", b"answers")
    with pytest.raises(RecipeError, match="holds a run that has read 0 of its 1 input file,"):
        check_same_run(plan)


class Plain(Handler):
    """Files of one size, changed at one time, from a server that states no ETag; it answers when `together`
    ask."""

    changed = "Fri, 02 Jan 2026 03:04:05 GMT"
    together: threading.Barrier

    def answer(self) -> None:
        if not self.sends_body:
            self.together.wait(timeout=20)
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.send_header("Last-Modified", self.changed)
        self.end_headers()
        if self.sends_body:  # the head of one file of each ending is looked at
            self.wfile.write(b"WARC/1.0\r\n".ljust(1000))


def probes_at(url: str, *names: str) -> dict[str, Any]:
    plain = recipe("out", {"web": tuple(f"{url}/{name}" for name in names)})
    inputs: dict[str, Any] = plan_run(checked(parse_table(PipelineRecipe, plain))).identity["inputs"]
    return inputs


def test_a_server_is_asked_of_many_inputs_at_once() -> None:
    with serving(Plain, together=threading.Barrier(3)) as url:
        assert len(probes_at(url, "a.warc", "b.warc", "c.warc")) == 3


def test_a_file_without_etag_that_was_changed_since_is_another_input() -> None:
    one = threading.Barrier(1)
    with serving(Plain, together=one) as url:
        before = probes_at(url, "a.warc")
        assert probes_at(url, "a.warc") == before
    with serving(Plain, together=one, changed="Fri, 02 Jan 2026 03:04:06 GMT") as url:
        assert probes_at(url, "a.warc") != before


def test_a_plan_records_the_release_of_every_library_that_trafilatura_extracts_with() -> None:
    """Which of those that it requires have a part in the text of a small page is found by watching the
    calls."""
    page = "<html><body><p>A line of text.</p><iframe></iframe><p>Another one, as short.</p></body></html>"
    found: set[str] = set()

    def see(frame: FrameType, event: str, argument: object) -> None:
        found.add(frame.f_code.co_filename.partition("/site-packages/")[2].partition("/")[0])

    for favor in ("precision", "balance", "recall"):
        extractor = Extractor(name="trafilatura", favor=favor, fast=False, timeout_seconds=60)
        extract(page, extractor)  # imports what it needs
        sys.setprofile(see)
        try:
            extract(page, extractor)
        finally:
            sys.setprofile(None)
    extracts_with = found & {"courlan", "htmldate", "justext", "lxml", "trafilatura"}
    assert extracts_with == {"justext", "lxml", "trafilatura"} and extracts_with <= versions().keys()


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


def test_what_a_step_of_ones_own_imports_is_part_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are, and so are the releases of installed libraries that they import, within functions
    too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "their_filters.py").write_text(
        "import json\nfrom their_words import split\ndef keep(document):\n    import jinja2\n    return"
        " document\n"
    )
    (tmp_path / "their_words.py").write_text(
        "from rich.text import Text\ndef split(text):\n    return text.split()\n"
    )
    sources = {"steps": ["parse", "their_filters:keep", "identity"]}
    plan = planned(tmp_path, {"name": "own", "inputs": [str(tmp_path / "0.jsonl")], **sources})
    found = plan.identity["versions"]
    assert found.keys() - versions().keys() == {"rich", "jinja2"}
    key = step_key(plan, "their_filters:keep")
    assert step_key(plan, "their_filters:keep", rich="0.0.1") != key
    assert step_key(plan, "parse", rich="0.0.1") == step_key(plan, "parse")
    assert step_key(plan, "parse", lxml="0.0.1") != step_key(plan, "parse")


def step_key(plan: RunPlan, stage: str, **others: str) -> str:
    """The key of a step of the source `own` in an identity with other versions of some libraries."""
    identity = {**plan.identity, "versions": {**plan.identity["versions"], **others}}
    (key,) = (one.key for one in step_keys(plan.recipe, identity, "own") if one.stage == stage)
    return key


def test_a_run_whose_index_was_lost_is_written_again_unless_a_purge_wrote_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(tmp_path)
    monkeypatch.setattr(
        "pipeline.same_run.read_summary", lambda _out: SimpleNamespace(identity=plan.identity)
    )
    plan.out.publish("run.json", b"{}")
    assert not check_same_run(plan) and plan.out.exists(PLAN)
    plan.out.remove(PLAN)
    plan.out.publish("lineage/purged/fact-0.parquet", b"rows")
    with pytest.raises(RecipeError, match="is not empty"):
        check_same_run(plan)


def test_a_key_and_a_step_that_a_finished_run_does_not_record_count_as_not_given(
    tmp_path: Path,
) -> None:
    (tmp_path / "0.jsonl").write_text(json.dumps({"text": "a text"}) + "\n")
    plain = recipe(str(tmp_path / "out"), {"rows": (str(tmp_path / "*.jsonl"),)})
    summary = run(tmp_path, plain)
    earlier = json.loads(json.dumps(summary))
    of_earlier = earlier["identity"]["recipe"]
    del of_earlier["decontaminate"], of_earlier["dedup"]["normalise"]
    of_earlier["source"][0]["steps"].remove("decontaminate")
    (tmp_path / "out" / "run.json").write_text(json.dumps(earlier))
    assert run(tmp_path, plain) == earlier
    with pytest.raises(
        RecipeError, match=r"finished run, with other settings.*\n  dedup\.normalise is .slimpajama. now"
    ):
        run(tmp_path, plain | {"dedup": {"normalise": "slimpajama"}})
    of_earlier["dedup"]["no_such_key"] = 1
    (tmp_path / "out" / "run.json").write_text(json.dumps(earlier))
    with pytest.raises(RecipeError, match=r"  dedup\.no_such_key is not given now and was 1\n"):
        run(tmp_path, plain)
