"""What `sluice purge` says of training runs, exports and caches, on a small output that is made without
Ray."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import sluice
from lineage.exports.records import FINISHED, record_export
from lineage.index.output_index import TokenizerIdentity, read_index
from lineage.purge.plan import PurgeMatch, plan_purge
from lineage.recipe import as_toml, parse_table
from lineage.storage.folder import Folder
from lineage.store.rows import ExportRow
from pipeline.cli.main import main
from pipeline.cli.output.purge import _print_hosts_below
from pipeline.page.views.corpus import read_front
from tests.support.outputs.lineage_query import query
from tests.support.outputs.purging import assert_whole
from tests.support.outputs.recorded_training import record_training
from tests.support.outputs.small_out import hooks
from tests.support.outputs.small_out.output import SmallOut, make_small_out
from trainer.attempts import Attempt, begin
from trainer.huggingface.model_card import ModelCard, publish_card
from trainer.model.config.description import ModelConfig
from trainer.options import TrainRecipe, load_train_recipe
from trainer.recovery.rollbacks import Rollback, record_rollback


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> SmallOut:
    return make_small_out(str(tmp_path_factory.mktemp("small") / "out"))


@dataclass(frozen=True, slots=True)
class Called:
    """A copy of the small output, and calls of `sluice purge` on it."""

    out: Folder
    doc_id: str
    capsys: pytest.CaptureFixture[str]

    def purge(self, *arguments: str, ends_with: int = 0) -> str:
        call = ["purge", self.out.url, "--reason", "a takedown", "--by", "a tester", *arguments]
        assert main(call) == ends_with
        return self.capsys.readouterr().out

    def plan(self, *arguments: str) -> str:
        return self.purge("--doc", self.doc_id, *arguments)

    def apply(self, *arguments: str) -> str:
        return self.purge("--doc", self.doc_id, "--apply", *arguments)


@pytest.fixture
def called(
    template: SmallOut, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Called:
    # The small output has no whole recipe, which the hooks of real outputs read.
    monkeypatch.setattr("pipeline.inspect.hooks.plan_hooks", lambda _out: hooks.plan_hooks())
    monkeypatch.setattr("pipeline.inspect.hooks.apply_hooks", hooks.apply_hooks)
    shutil.copytree(template.folder.url, tmp_path / "out")
    return Called(Folder(str(tmp_path / "out")), template.named["original"].doc_id.hex(), capsys)


def test_a_plan_lists_its_documents_and_all_of_them_in_a_file(
    called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = query(called.out, "SELECT doc_id, url FROM documents").rows
    urls = {str(doc_id): str(url or "") for doc_id, url in rows}
    told = called.plan("--csv", str(tmp_path / "plan.csv"))
    with (tmp_path / "plan.csv").open(newline="") as file:
        listed = list(csv.DictReader(file))
    assert called.doc_id in {row["doc_id"] for row in listed}
    assert all(row["url"] == urls[row["doc_id"]] for row in listed)
    assert all(
        f"  {row['doc_id']}  {row['role']}  {row['status']}  {row['url']}".rstrip() in told for row in listed
    )
    assert "more; all" not in told
    monkeypatch.setattr("pipeline.cli.output.purge._MOST_PAGES", 1)
    assert len(listed) > 1
    assert f"  and {len(listed) - 1} more; all --csv FILE writes" in called.plan()


def test_a_list_for_a_spreadsheet_holds_no_formula(
    called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_purge(called.out, PurgeMatch(kind="doc", values=(called.doc_id,)), hooks.plan_hooks())
    row = replace(plan.rows[0], source="@source", warc_file="+file")
    monkeypatch.setattr(
        "pipeline.cli.output.purge._listed", lambda *_: [(row, "=1+1"), (row, "https://a.example/")]
    )
    told = {}
    for form in ("--csv", "--csv-safe"):
        called.plan(form, str(tmp_path / f"{form}.csv"))
        with (tmp_path / f"{form}.csv").open(newline="") as file:
            told[form] = [(each["source"], each["url"], each["warc_file"]) for each in csv.DictReader(file)]
    assert told["--csv"] == [("@source", url, "+file") for url in ("=1+1", "https://a.example/")]
    assert told["--csv-safe"] == [("'@source", url, "'+file") for url in ("'=1+1", "https://a.example/")]


def test_a_purge_by_host_says_how_many_hosts_end_in_it(called: Called) -> None:
    (host,) = query(
        called.out, "SELECT host FROM documents WHERE host LIKE '%.%' AND host IS NOT NULL LIMIT 1"
    ).rows[0]
    parent = str(host).split(".", 1)[1]
    num = query(called.out, f"SELECT count(DISTINCT host) FROM documents WHERE host LIKE '%.{parent}'").rows[
        0
    ][0]
    plan = plan_purge(called.out, PurgeMatch(kind="doc", values=(called.doc_id,)), hooks.plan_hooks())
    _print_hosts_below(called.out, replace(plan, match=PurgeMatch(kind="host", values=(parent,))))
    told = called.capsys.readouterr().out
    what = f"which --host leaves alone: --domain {parent} takes them too"
    assert told.strip() == f"{num:,} other hosts end in .{parent}, {what}"
    _print_hosts_below(called.out, replace(plan, match=PurgeMatch(kind="host", values=("nothing.invalid",))))
    assert called.capsys.readouterr().out == ""


def test_verify_names_each_purge_that_it_proved(called: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.inspect.hooks.verify_hooks", lambda _out: hooks.verify_hooks())
    assert main(["verify", called.out.url]) in (0, 1)
    assert "Proved" not in called.capsys.readouterr().out
    called.apply()
    (row,) = query(called.out, 'SELECT purge_id, "at", num_documents, num_tokens FROM purges').rows
    assert main(["verify", called.out.url]) == 0
    told = called.capsys.readouterr().out
    assert (
        "Proved for each purge: all its tokens are end-of-text, and no text of its documents is left in this"
        in told
    )
    assert f"{row[1]}  {row[0]}  {row[2]} documents, {row[3]:,} tokens  by a tester: a takedown" in told
    assert main(["verify", called.out.url, "--json"]) == 0
    found = json.loads(called.capsys.readouterr().out)
    assert [purge["purge_id"] for purge in found["purges"]] == [row[0]]
    assert row[3] > 0
    assert found["num_tokens"] == read_index(called.out).num_tokens - row[3], (
        "what is left, as the report counts it"
    )
    assert read_front(called.out, read_index(called.out))["num_tokens"] == found["num_tokens"]


def gone(tmp_path: Path) -> str:
    return str(tmp_path / "gone")


def model_json(content: object) -> Any:
    def written(tmp_path: Path) -> str:
        Folder(str(tmp_path / "run")).publish("model.json", json.dumps(content).encode())
        return str(tmp_path / "run")

    return written


@pytest.mark.parametrize(
    "output_of",
    [gone, model_json({}), model_json([]), model_json({"config": None})],
    ids=["gone", "no config", "a list", "null"],
)
def test_a_purge_accounts_for_a_run_whose_output_cannot_be_read(
    output_of: Any, called: Called, tmp_path: Path
) -> None:
    output = output_of(tmp_path)
    record_training(called.out, output)
    (planned,) = json.loads(called.plan("--json"))["exposures"]
    assert (planned["run"], planned["output"], planned["last_checkpoint_before"]) == ("seen", output, None)
    assert planned["num_exposures"] > 0
    assert planned["last_checkpoint_unknown"].startswith(f"{output} cannot be read (")
    assert f"last checkpoint before: unknown: {output} cannot be read (" in called.plan()
    done = json.loads(called.apply("--json"))
    [(purge_id,)] = query(called.out, "SELECT purge_id FROM purges").rows
    assert (done["purge_id"], done["exposures"]) == (purge_id, [planned])
    assert_whole(called.out)


def test_a_purge_accounts_for_steps_that_a_dead_run_took_since_its_last_checkpoint(
    called: Called, tmp_path: Path
) -> None:
    record_training(called.out, str(tmp_path / "seen"))
    record_training(called.out, str(tmp_path / "died"), "died", died=True)
    died, seen = json.loads(called.plan("--json"))["exposures"]
    assert (died["run"], seen["run"]) == ("died", "seen")
    told = ("first_step", "last_step", "num_exposures")
    assert [died[name] for name in told] == [seen[name] for name in told]


def test_a_purge_accounts_for_a_run_whose_store_does_not_answer(
    called: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("ENDPOINT_URL", "http://127.0.0.1:9"),
        ("ACCESS_KEY_ID", "a"),
        ("SECRET_ACCESS_KEY", "b"),
        ("MAX_ATTEMPTS", "1"),  # without the pauses between several
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    record_training(called.out, "s3://nowhere/run")
    (exposure,) = json.loads(called.apply("--json"))["exposures"]
    assert exposure["last_checkpoint_before"] is None
    assert exposure["last_checkpoint_unknown"].startswith("s3://nowhere/run cannot be read (")


def card_of(checkpoints: Folder) -> ModelCard:
    config = ModelConfig(
        num_layers=1, width=8, num_heads=1, num_kv_heads=1, head_dim=8, hidden=8, vocab_size=8, tied=True
    )
    tokenizer = TokenizerIdentity(name="t", hash="h", vocab_size=8, eot_id=0)
    return ModelCard(
        config=config, seq_len=8, dtype="float32", tokenizer=tokenizer, checkpoints=checkpoints.url
    )


def test_the_price_names_the_recipe_that_the_run_recorded_or_why_there_is_none(
    called: Called, tmp_path: Path
) -> None:
    output = Folder(str(tmp_path / "a run"))
    record_training(called.out, output.url, died=True)
    publish_card(output, card_of(output.folder("checkpoints")))
    begin(output, Attempt(number=1, first_step=0, parent=None, began_at=0.0))
    place = "attempts/00001.toml"

    def told() -> str:
        return called.plan().partition("by sluice train ")[2].splitlines()[0]

    assert told() == "RECIPE --forget all --restart (the run's recipe is not recorded)"
    tables = {"data": called.out.url, "output": output.url, "model": "debug", "seq_len": 8, "steps": 4}
    recipe = {"run": {"name": "seen"}, "train": {**tables, "global_batch": 2}}
    toml = as_toml(parse_table(TrainRecipe, recipe))
    output.publish(place, toml.encode())
    assert told() == f"'{output.at(place)}' --forget all --restart"
    assert load_train_recipe(output.at(place)).train.output == output.url
    output.publish(place, b"[")
    assert told().startswith("RECIPE --forget all --restart (the run's recipe cannot be read: ")


def test_readings_that_are_undone_are_told_with_what_undid_them(called: Called, tmp_path: Path) -> None:
    output = Folder(str(tmp_path / "run"))
    last = record_training(called.out, output.url, died=True)
    run, segment = map(json.loads, output.read("lineage.jsonl").splitlines())
    facts = [run, segment | {"last_step": last}]
    facts.append(segment | {"attempt": 2, "parent_attempt": None, "first_step": 0, "last_step": -1})
    output.publish("lineage.jsonl", "".join(json.dumps(fact) + "\n" for fact in facts).encode())
    begin(output, Attempt(number=1, first_step=0, parent=None, began_at=0.0))
    begin(output, Attempt(number=2, first_step=0, parent=None, rollback=1, began_at=0.0))
    record_rollback(output, Rollback(number=1, step=0, checkpoint=None, parent=None, purges=("x",)))
    account = json.loads(called.plan("--json"))
    (exposure,) = account["exposures"]
    assert (exposure["num_exposures"], exposure["first_step"], exposure["replay"]) == (0, None, None)
    (undone,) = exposure["undone"]
    assert (undone["attempt"], undone["undone_by"]) == (1, 2) and undone["num_exposures"] > 0
    assert undone["how"] == "undone by the replay from the first weights"
    assert account["exposures_unread"] == {}
    said = f"training run seen read them {undone['num_exposures']} times in attempt 1, steps "
    assert said in called.plan() and f": {undone['how']}\n" in called.plan()
    output.remove("lineage.jsonl")
    assert "what training run seen read since its last checkpoint is unknown: " in called.plan()
    assert list(json.loads(called.plan("--json"))["exposures_unread"]) == ["seen"]
    planned = sluice.purge(called.out.url, docs=[called.doc_id])
    assert list(planned.exposures_unread) == ["seen"], "the library does not hide it either"
    assert "What run seen read since its last checkpoint is unknown" in planned._repr_html_()


def test_checkpoints_apart_from_a_runs_output_are_unknown_where_their_folder_is_gone(
    called: Called, tmp_path: Path
) -> None:
    output, apart = Folder(str(tmp_path / "run")), Folder(str(tmp_path / "apart"))
    record_training(called.out, output.url)

    def told(checkpoints: Folder) -> dict[str, Any]:
        publish_card(output, card_of(checkpoints))
        (exposure,) = json.loads(called.plan("--json"))["exposures"]
        return {name: exposure[f"last_checkpoint_{name}"] for name in ("before", "unknown")}

    assert told(output.folder("checkpoints")) == {"before": None, "unknown": None}
    assert "last checkpoint before: none kept" in called.plan()
    assert f"nothing lies in its folder of checkpoints, {apart.url}" in told(apart)["unknown"]
    apart.publish("run.json", json.dumps({"output": output.url}).encode())
    assert told(apart) == {"before": None, "unknown": None}
    apart.publish("step-00000000.attempt-1/complete.json", b"{}")
    assert told(apart) == {"before": 0, "unknown": None}


def record_copies(out: Folder, *names: str) -> None:
    """Exports of the corpus as it is now."""
    for name in names:
        row = ExportRow(
            name=name, format="jsonl", place=f"/copies/{name}", version=read_index(out).version, at="2026-01-01",
            num_documents=1, num_tokens=1, num_files=1, bytes=1, state=FINISHED, options="{}", manifest_hash="", fact=0,
        )  # fmt: skip
        record_export(out, row)


def exports_of(told: str) -> tuple[list[str], list[str]]:
    exports = json.loads(told)["exports"]
    assert (exports["cleaned"], exports["forgotten"]) == ([], []), "of a plan"
    return exports["to_clean"], exports["to_forget"]


def test_a_plan_says_which_exports_are_forgotten_and_not_cleaned(called: Called) -> None:
    record_copies(called.out, "handed", "ours")
    said = called.plan("--forget-export", "handed")
    assert "export handed (jsonl) at /copies/handed is forgotten, and not cleaned" in said
    assert "export ours (jsonl) at /copies/ours is cleaned too" in said and said.count("is cleaned too") == 1
    assert exports_of(called.plan("--forget-export", "handed", "--json")) == (["ours"], ["handed"])
    alone = called.purge("--forget-export", "handed")
    assert "export handed (jsonl) at /copies/handed is forgotten, and not cleaned" in alone
    assert "cleaned too" not in alone and "add --apply" in alone


def test_a_plan_refuses_the_name_of_no_export_as_applying_does(called: Called) -> None:
    record_copies(called.out, "ours")
    for more in ((), ("--apply",)):
        call = ["--doc", called.doc_id, "--forget-export", "nope", *more]
        assert called.purge(*call, ends_with=2) == ""


def test_of_what_is_purged_already_a_plan_names_only_the_exports_that_are_behind(called: Called) -> None:
    record_copies(called.out, "behind")
    called.apply()  # the hooks of the small output clean nothing, as where a copy is out of reach
    record_copies(called.out, "ours")
    said = called.plan()
    assert "Nothing to purge" in said and "export behind (jsonl) at /copies/behind is cleaned too" in said
    assert "export ours" not in said
    assert exports_of(called.plan("--json")) == (["behind"], [])
    assert exports_of(called.purge("--forget-export", "ours", "--json")) == (["behind"], ["ours"])
