"""The record of an output and of runs over it: its figures against a count that reads shards and recorded batches
itself, its forms, its statements, and what changed."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
import tomli_w

import sluice
from lineage.index.output_index import read_index
from lineage.pages import page_of
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from pipeline.cli.main import main
from pipeline.record.forms import eu_summary
from pipeline.record.forms.processing import language_name
from pipeline.record.record import FORMS, FilledForm, ask, make_record, statements_template
from pipeline.record.render import html, markdown
from tests.support.outputs.small_out.output import SmallOut
from tests.support.training.forgotten import HARD, Trained, copy_out, make_few_ids_out
from trainer.recovery.forget import forget


class World(NamedTuple):
    trained: Trained
    child: Trained

    @property
    def out(self) -> str:
        return self.trained.out.url

    @property
    def run(self) -> str:
        return str(self.trained.run.output)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallOut:
    return make_few_ids_out(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def world(small: SmallOut, tmp_path_factory: pytest.TempPathFactory) -> World:
    """A run with validation, skipped steps and a mixture that changes, over several epochs; and one that began with its
    weights."""
    trained = Trained(small=small, folder=tmp_path_factory.mktemp("record"), changes={**HARD, "steps": 30})
    copy_out(small, trained.folder)
    trained.run.start()
    newest = str(trained.run.output / "checkpoints" / trained.run.checkpoints()[-1])
    child = replace(trained, name="child", changes={"init_from": newest, "steps": 4})
    child.run.start()
    return World(trained, child)


class Counted(NamedTuple):
    """Of each document that was read, by doc_id: tokens read, and in which source."""

    read_tokens: Counter[bytes]
    source: dict[bytes, str]


def counted(*runs: Trained) -> Counted:
    """What the shards' own tables and the recorded batches of runs come to."""
    out = runs[0].out
    places: dict[tuple[str, int], list[dict[str, Any]]] = {}
    source = {}
    for shard in read_index(out).shards:
        rows = pq.read_table(f"{out.url}/{shard.index_file}").to_pylist()
        places[shard.source, shard.shard] = rows
        source.update({row["doc_id"]: shard.source for row in rows})
    read: Counter[bytes] = Counter()
    for run in runs:
        skipped = {step for step, row in run.run.metrics().items() if row["skipped"]}
        for file in (run.run.output / "batches").glob("*.parquet"):
            for row in pq.read_table(file).to_pylist():
                for placed in places[row["source"], row["shard"]] if row["step"] not in skipped else ():
                    first = max(placed["start"], row["start"])
                    end = min(placed["start"] + placed["num_tokens"], row["start"] + row["num_tokens"])
                    read[placed["doc_id"]] += max(end - first, 0)
    return Counted(+read, source)


def figure(record: FilledForm, name: str) -> int:
    return next(row["value"] for row in record.row["figures"] if row["name"] == name)


def assert_as_counted(record: FilledForm, count: Counted, small: SmallOut) -> None:
    texts = {r.doc_id: r for r in small.records if r.status == "kept"}
    assert figure(record, "documents") == len(count.read_tokens)
    assert figure(record, "read_tokens") == sum(count.read_tokens.values())
    by_source: Counter[str] = Counter()
    domains: Counter[str] = Counter()
    for doc_id, num in count.read_tokens.items():
        by_source[count.source[doc_id]] += num
        page = page_of(texts[doc_id].url)
        if page is not None and page.domain is not None:
            domains[page.domain] += len(texts[doc_id].text.encode())
    assert {row["source"]: row["read_tokens"] for row in record.row["sources"]} == dict(by_source)
    assert {row["domain"]: row["bytes"] for row in record.row["domains"]} == dict(domains)
    sizes = sorted(domains.values(), reverse=True)
    assert [row["bytes"] for row in record.row["domains"]] == sizes
    top = sizes[: ceil(len(sizes) / 10)]
    assert record.row["top_domains"] == {"share": "10%", "num_domains": len(top), "bytes": sum(top)}


def test_its_figures_are_those_of_the_shards_and_the_recorded_batches(world: World, small: SmallOut) -> None:
    count = counted(world.trained)
    assert max(count.read_tokens.values()) > 2 * min(count.read_tokens.values())
    assert_as_counted(make_record([world.out], "eu-summary", runs=[world.run]), count, small)


def test_a_run_that_began_with_weights_of_another_adds_what_that_had_read(
    world: World, small: SmallOut
) -> None:
    child = str(world.child.run.output)
    record = make_record([world.out], "eu-summary", runs=[child])
    assert_as_counted(record, counted(world.trained, world.child), small)
    assert [run["begun_by"] for run in record.row["runs"]] == [None, child]
    both = make_record([world.out], "eu-summary", runs=[child, world.run])
    assert figure(both, "read_tokens") == figure(record, "read_tokens")


def test_without_a_run_it_is_of_what_was_kept(world: World, small: SmallOut) -> None:
    record = make_record([world.out], "eu-summary")
    kept = [r for r in small.records if r.status == "kept"]
    assert figure(record, "documents") == len(kept)
    assert figure(record, "bytes") == sum(len(r.text.encode()) for r in kept)
    assert figure(record, "tokens") == sum(shard.num_tokens for shard in small.index.shards)
    rows = ask([world.out], [], "SELECT sum(num_tokens) AS n FROM used")
    assert rows == [{"n": figure(record, "tokens")}]
    for row in record.row["figures"]:
        assert [*ask([world.out], [], row["sql"])[0].values()] == [row["value"]]


def test_a_domain_that_was_purged_and_forgotten_is_gone_from_the_next(
    small: SmallOut, tmp_path: Path
) -> None:
    trained = Trained(small=small, folder=tmp_path)
    copy_out(small, trained.folder)
    trained.run.start()
    run, out, old = str(trained.run.output), trained.out.url, tmp_path / "old.json"
    assert main(["record", out, "--run", run, "--format", "eu-summary", "--to", str(old)]) == 1
    first = trained.first_steps()
    by_domain: dict[str, list[Any]] = {}
    for record in small.records:
        page = page_of(record.url)
        if record.doc_id in first and page is not None and page.domain is not None:
            by_domain.setdefault(page.domain, []).append(record)
    domain, records = min(by_domain.items(), key=lambda item: len(item[1]))
    trained.purge(*records)
    still = make_record([out], "eu-summary", runs=[run], against=str(old))
    assert figure(still, "purged_and_read") == len(records)
    assert domain in {row["domain"] for row in still.row["domains"]}
    assert forget(trained.run.recipe(), ["all"], restart=True).trains
    trained.run.start()
    gone = make_record([out], "eu-summary", runs=[run], against=str(old))
    assert figure(gone, "purged_and_read") == 0
    assert domain not in {row["domain"] for row in gone.row["domains"]}
    assert gone.row["changed"]["domains"]["gone"] == [domain]
    assert [purge["num_documents"] for purge in gone.row["changed"]["purges"]] == [figure(gone, "purged")]


def filled(out: str, form: str, to: Path) -> str:
    """A file of statements with every question answered."""
    row = tomllib.loads(statements_template([out], form))
    row["answers"] = {name: f"stated {name}" for name in row["answers"]}
    if "small_provider" in row:
        row["small_provider"] = "no"
    for source, kind in zip(row.get("sources", {}), ("crawled", "public"), strict=False):
        row["sources"][source] = {"kind": kind, "name": f"The {source}", "link": "https://example.org/data"}
    to.write_text(tomli_w.dumps(row))
    return str(to)


@pytest.mark.parametrize("form", sorted(FORMS))
def test_every_field_stands_in_order_filled_or_open(form: str, world: World, tmp_path: Path) -> None:
    expected = [field.name for section in FORMS[form].sections for field in section.fields]
    empty = make_record([world.out], form, runs=[world.run])
    assert [field["field"] for field in empty.row["fields"]] == expected
    assert {f["field"] for f in empty.row["fields"] if f["answered_by"] == "open"} <= set(empty.open)
    given = filled(world.out, form, tmp_path / "stated.toml")
    full = make_record([world.out], form, runs=[world.run], statements=given)
    assert full.open == [] and len(empty.open) > 4
    for page in (markdown(full), html(full)):
        places = [
            page.index(section.title.replace("'", "&#39;") if page.startswith("<") else section.title)
            for section in FORMS[form].sections
        ]
        assert places == sorted(places)
        assert "OPEN" not in page
    assert main(["record", world.out, "--format", form]) == 1
    assert main(["record", world.out, "--format", form, "--statements", given]) == 0


def test_a_template_without_answers_leaves_every_question_open(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty.toml"
    empty.write_text(statements_template([world.out], "eu-summary"))
    call = ["record", world.out, "--format", "eu-summary", "--statements", str(empty)]
    assert main(call) == 1
    named = capsys.readouterr().out.splitlines()[-1]
    for name in ("1.1.provider", "3.1.signatory", "sources.web.kind", "small_provider", "2.1.used"):
        assert re.search(rf"\b{re.escape(name)}\b", named), named


@pytest.mark.parametrize("form", ["ab2013", "eu-summary"])
def test_each_open_field_says_what_to_state_and_the_template_asks_it(form: str, world: World) -> None:
    """A reader of the print alone can tell who answers each open field: a question of the template, where each source
    is from, or what is asked of the provider."""
    record = make_record([world.out], form)
    asked = tomllib.loads(statements_template([world.out], form))["answers"]
    told = markdown(record).partition("# Behind the form")[2].replace("\\_", "_")
    for field in record.row["fields"]:
        if field["answered_by"] != "open":
            continue
        assert re.search(r"^OPEN: .*provider has to state", field["value"]), field
        if field["field"] in asked:
            assert f"- {field['field']}: {field['label']}" in told
        else:
            assert re.search(rf"From those answers follow: .*\b{re.escape(field['field'])}\b", told), field
            assert field["value"].endswith(("books, web.", "of each source.")) or "small" in field["value"]


def test_a_field_that_needs_more_than_the_kind_of_a_source_says_so(world: World, tmp_path: Path) -> None:
    stated = tmp_path / "stated.toml"
    row = tomllib.loads(statements_template([world.out], "eu-summary"))
    row["sources"]["books"]["kind"] = row["sources"]["web"]["kind"] = "crawled"
    stated.write_text(tomli_w.dumps(row))
    record = make_record([world.out], "eu-summary", statements=str(stated))
    fields = {field["field"]: field["value"] for field in record.row["fields"]}
    assert fields["2.3.domains"].startswith("OPEN: the provider has to state whether it is a small")
    assert fields["2.3.crawlers"] == "OPEN: the provider has to state it (user agents)."
    assert fields["2.1.used"] == "No."


def test_what_was_read_stands_beside_what_was_kept(world: World) -> None:
    record = make_record([world.out], "eu-summary", runs=[world.run])
    kept = make_record([world.out], "eu-summary")
    assert figure(record, "kept") == figure(kept, "documents")
    assert figure(record, "kept_tokens") == figure(kept, "tokens")
    text = next(f["value"] for f in record.row["fields"] if f["field"] == "1.3.text")
    for name in ("tokens", "read_tokens", "kept", "kept_tokens"):
        assert f"{figure(record, name):,}" in text


def test_a_language_is_named_in_english_beside_its_code() -> None:
    """`no` alone reads as the word; a label with a script, and one without an English name, are told too."""
    named = {label: language_name(label) for label in ("no", "zho_Hans", "als_Latn", "als", "und")}
    assert named == {
        "no": "Norwegian (no)",
        "zho_Hans": "Chinese (zho_Hans)",
        "als_Latn": "Albanian (als_Latn)",
        "als": "als",
        "und": "not recognised (und)",
    }


def test_a_template_names_the_next_step_and_overwrites_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "stated.toml"
    call = ["record", "--format", "eu-summary", "--statements-template", "--to", str(file)]
    assert main(call) == 0
    assert (
        capsys.readouterr().out
        == f"Wrote {file}. Next: answer its questions, then pass it with --statements\n"
    )
    file.write_text("answered")
    assert main(call) == 2
    assert f"--to {file} exists and may have answers" in capsys.readouterr().err
    assert file.read_text() == "answered"
    assert main([*call[:-2], "--json"]) == 0
    asked = json.loads(capsys.readouterr().out)
    assert asked["file"] is None and tomllib.loads(asked["text"])["form"] == "eu-summary"


def test_the_bins_and_the_three_percent_are_those_of_the_form(world: World, tmp_path: Path) -> None:
    assert eu_summary.size_bin(10**9 - 1) == "Less than 1 billion tokens"
    assert eu_summary.size_bin(10**9) == eu_summary.size_bin(10**13 - 1) == "1 billion to 10 trillion tokens"
    assert eu_summary.size_bin(10**13) == "More than 10 trillion tokens"
    stated = tmp_path / "stated.toml"
    row = tomllib.loads(statements_template([world.out], "eu-summary"))
    row["sources"] = {name: {"kind": "public", "name": f"The {name}", "link": "x"} for name in row["sources"]}
    stated.write_text(tomli_w.dumps(row))
    record = make_record([world.out], "eu-summary", statements=str(stated))
    fields = {field["field"]: field["value"] for field in record.row["fields"]}
    assert "The web" in fields["2.1.large"] and "The books" in fields["2.1.large"]
    assert fields["2.1.small"].startswith("None:") and fields["2.3.crawled"] == "No."
    assert fields["2.3.crawlers"] == "Not applicable."


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"form": "ab2013"}, "the record is of the form 'eu-summary'"),
        ({"answers": {"9.9": "x"}}, "answers.9.9 is nothing that this record asks"),
        ({"answers": {"version": 3}}, "answers.version = 3: expected a text"),
        ({"sources": {"films": {}}}, "sources.films is nothing that this record asks; expected books, web"),
        ({"sources": {"web": {"kind": "stolen"}}}, "sources.web.kind = 'stolen': expected one of public"),
        ({"small_provider": "perhaps"}, "small_provider = 'perhaps': expected yes or no"),
        ({"more": {}}, "more is nothing that this record asks"),
    ],
)
def test_wrong_statements_are_told_in_a_sentence(
    change: dict[str, Any], sentence: str, world: World, tmp_path: Path
) -> None:
    file = tmp_path / "stated.toml"
    file.write_text(tomli_w.dumps({"form": "eu-summary", **change}))
    with pytest.raises(RecipeError, match=re.escape(sentence)):
        make_record([world.out], "eu-summary", statements=str(file))


def test_wrong_calls_are_told_in_a_sentence(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"format": "ab2013"}))
    record = ["record", world.out, "--format", "eu-summary"]
    for call, sentence in (
        (["record", "--format", "eu-summary"], "expected the OUTs"),
        ([*record, "--to", "record.pdf"], "expected a name that ends in one of .json"),
        ([*record, "--to", "record.jsonld"], "only --format croissant is JSON-LD"),
        ([*record, "--to", f"{world.out}/record.json"], "--to"),
        ([*record, "--against", str(other)], "expected a record as JSON"),
        ([*record, "--statements", str(tmp_path / "none.toml")], "cannot be read"),
        ([*record, "--run", str(tmp_path)], "is not the output of a training run"),
        ([*record, "--sql", "SELECT x FROM used"], "--sql: "),
    ):
        assert main(call) == 2, call
        assert sentence in capsys.readouterr().err
    assert Folder(world.out).names("record.json") == []


def test_what_a_provider_or_a_page_says_is_no_markup(world: World, tmp_path: Path) -> None:
    given = filled(world.out, "eu-summary", tmp_path / "stated.toml")
    text = Path(given).read_text().replace("stated 1.1.provider", "<b>*A*</b> | `x`")
    Path(given).write_text(text)
    record = make_record([world.out], "eu-summary", statements=given)
    assert "\\<b\\>\\*A\\*\\</b\\> \\| \\`x\\`" in markdown(record)
    assert "&lt;b&gt;*A*&lt;/b&gt;" in html(record) and "<b>" not in html(record)


def test_croissant_is_valid_and_yields_the_texts(world: World, small: SmallOut, tmp_path: Path) -> None:
    mlc = pytest.importorskip("mlcroissant")
    row = tomllib.loads(statements_template([world.out], "croissant"))
    row["answers"] |= {"name": "small", "description": "d", "creator": "c", "datePublished": "2026-11-28"}
    row["answers"] |= {"url": "https://example.org/d", "license": "https://example.org/l", "version": "1.0.0"}
    (tmp_path / "stated.toml").write_text(tomli_w.dumps(row))
    texts = {record.text for record in small.records if record.survived}
    beside = world.trained.folder / "small.jsonld"
    for to, name in ((beside, "documents"), (tmp_path / "small.jsonld", "documents-part-00000.parquet")):
        given = ["--statements", str(tmp_path / "stated.toml"), "--to", str(to)]
        assert main(["record", world.out, "--format", "croissant", *given]) == 0
        dataset = mlc.Dataset(jsonld=str(to))
        assert not dataset.metadata.ctx.issues.errors
        found = {record[f"{name}/text"].decode() for record in dataset.records(name)}
        assert found == texts if name == "documents" else found < texts


def test_the_library_gives_the_same_record(world: World, tmp_path: Path) -> None:
    made = sluice.record(world.out, "ab2013", runs=world.run, to=str(tmp_path / "record.json"))
    assert made.row == json.loads((tmp_path / "record.json").read_text())
    assert made.figures["read_tokens"] == sum(counted(world.trained).read_tokens.values())
    assert "2" in made.open and made.fields["3"].startswith("- ")
    with pytest.raises(RecipeError, match=r"format 'pdf': expected one of"):
        sluice.record(world.out, "pdf")
