"""`sluice tune`: equal to what a run with the new recipe gives, document by document; refusals by name."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.store.queries.sql import questions
from pipeline.cli.main import main
from pipeline.demo.pages import write_article
from pipeline.inspect.tune import TuneResult, _cannot_judge, tune
from pipeline.recipe.load import load, recipe_of
from pipeline.report.thresholds import values_of_rules
from tests.support.inputs.tiny_crawl import make_tiny_crawl
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import recipe, run, write_recipe

KOREAN = "오늘 아침 시장에는 사람이 많았고 상인들은 새로 들어온 과일과 채소를 팔고 있었다. 날씨는 맑고 바람은 차가웠다."
ALL_RULES = ["gopher_quality", "gopher_repetition", "c4", "fineweb"]


def with_quality(plain: dict[str, Any], **quality: Any) -> dict[str, Any]:
    return {**plain, "quality": {**plain["quality"], **quality}}


@pytest.fixture(scope="module")
def crawl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A crawl of posts of many lengths, its recipe (plain.json) and its output with the whole ledger."""
    folder = tmp_path_factory.mktemp("tune")
    sources = make_tiny_crawl(folder)
    rng, rows = random.Random(5), []
    for number in range(12):
        sentences = write_article("en", rng, 12).text.replace("\n", " ").split(". ")
        short, broken = ". ".join(sentences[:3]) + ".", ".\n".join(sentences) + "."
        rows += [{"id": f"short {number}", "text": short}, {"id": f"broken {number}", "text": broken}]
        # Lines that C4's rule set takes out, and all of what is left on few lines.
        rows.append(
            {"id": f"few {number}", "text": f"{'. '.join(sentences)}.\nRead more\n{short}\n" + "Go on\n" * 40}
        )
    (folder / "posts-9.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plain = recipe(str(folder / "out"), sources, quality={"ledger": "all", "rules": ALL_RULES})
    run(folder, plain)
    (folder / "plain.json").write_text(json.dumps(plain))
    return folder


@pytest.fixture
def plain(crawl: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((crawl / "plain.json").read_text())
    return found


def survivors(out: Folder) -> set[str]:
    rows = query(
        out, "SELECT doc_id FROM documents WHERE status <> 'rejected' AND stage IS DISTINCT FROM 'identity'"
    ).rows
    return {str(row[0]) for row in rows}


def values_of(out: Folder, rule: str) -> list[float]:
    """What a rule measured, of documents that survive, in rising order."""
    rows = query(
        out,
        f"SELECT f.value FROM findings f JOIN documents d USING (doc_id) WHERE f.rule = '{rule}'"
        " AND d.status <> 'rejected' ORDER BY 1",
    ).rows
    return [float(str(row[0])) for row in rows]


@pytest.mark.parametrize("which", ["stricter", "looser", "both", "a rule set less"])
def test_the_figures_are_those_of_a_run_document_by_document(
    crawl: Path, plain: dict[str, Any], which: str, tmp_path: Path
) -> None:
    out = Folder(str(crawl / "out"))
    words = values_of(out, "gopher_quality.too_few_words")
    lines = values_of(out, "fineweb.too_many_newlines")
    changes: dict[str, dict[str, Any]] = {
        "stricter": {"min_words": int(words[len(words) // 2])},
        "looser": {
            "min_words": 3,
            "min_stop_words": 0,
            "fineweb_max_newlines_per_word": 5.0,
            "c4_min_sentences": 1,
        },
        "both": {"min_words": 3, "fineweb_max_newlines_per_word": lines[len(lines) // 2]},
        "a rule set less": {"rules": ALL_RULES[:3]},
    }
    changed = with_quality(plain, **changes[which])
    changed["run"]["output"] = str(tmp_path / "out")
    (answer,) = tune(
        out.url, [("new", load(write_recipe(tmp_path / "new.toml", changed)))], num_examples=1000
    )
    run(tmp_path, changed)
    before, after = survivors(out), survivors(Folder(str(tmp_path / "out")))
    by_outcome = {
        outcome: {example.doc_id for example in answer.examples if example.outcome == outcome}
        for outcome in ("lost", "gained", "open")
    }
    told = (before | by_outcome["gained"]) - by_outcome["lost"]
    assert told - by_outcome["open"] == after - by_outcome["open"]
    assert (answer.total.before, answer.total.lost) == (len(before), len(by_outcome["lost"]))
    assert answer.total.after == len(told)
    if which in ("stricter", "both"):
        assert by_outcome["lost"]
        assert sum(number for _, number in answer.by_rule) == len(by_outcome["lost"])
    if which == "stricter":
        assert after < before
    if which == "looser":
        assert by_outcome["gained"] | by_outcome["open"]
    assert answer.total.open == len(by_outcome["open"])
    assert sum(counts.lost for counts in answer.by_language) == answer.total.lost


def test_a_text_that_a_later_rule_set_saw_before_an_edit_is_open(
    crawl: Path, plain: dict[str, Any], tmp_path: Path
) -> None:
    changed = with_quality(plain, min_words=1, min_stop_words=0, c4_min_sentences=1)
    (answer,) = tune(str(crawl / "out"), [("new", load(write_recipe(tmp_path / "new.toml", changed)))])
    assert answer.total.open
    assert not answer.total.gained
    whole = with_quality(plain, rules=ALL_RULES[:3], min_words=1, min_stop_words=0, c4_min_sentences=1)
    (answer,) = tune(str(crawl / "out"), [("new", load(write_recipe(tmp_path / "new.toml", whole)))])
    assert answer.total.gained, "without a rule set behind the edit nothing is left to be seen"


def test_with_texts_kept_what_the_ledger_leaves_open_is_judged_and_equals_a_run(
    crawl: Path, plain: dict[str, Any], tmp_path: Path
) -> None:
    plain["run"] |= {"output": str(tmp_path / "kept"), "keep_text": True}
    run(tmp_path, plain)
    changed = with_quality(plain, min_words=1, min_stop_words=0, c4_min_sentences=1)
    recipes = [("new", load(write_recipe(tmp_path / "new.toml", changed)))]
    (without,) = tune(str(crawl / "out"), recipes)
    (answer,) = tune(str(tmp_path / "kept"), recipes, num_examples=1000)
    assert (answer.total.open, answer.from_texts) == (0, without.total.open)
    assert without.from_texts == 0 < without.open_alone <= without.total.open
    changed["run"] = {**plain["run"], "output": str(tmp_path / "again")}
    run(tmp_path / "again-run", changed, str(tmp_path / "kept"))
    before, after = survivors(Folder(str(tmp_path / "kept"))), survivors(Folder(str(tmp_path / "again")))
    assert {example.doc_id for example in answer.examples if example.outcome == "gained"} == after - before
    assert answer.total.gained > 0 and answer.total.after == len(after)


def test_more_open_documents_than_texts_are_judged_stay_open_and_are_all_counted(
    crawl: Path, plain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = with_quality(plain, min_words=1, min_stop_words=0, c4_min_sentences=1)
    recipes = [("new", load(write_recipe(tmp_path / "new.toml", changed)))]
    (whole,) = tune(str(crawl / "out"), recipes)
    monkeypatch.setattr("pipeline.inspect.tune.MOST", 1)
    (cut,) = tune(str(crawl / "out"), recipes)
    assert (cut.total.open, cut.open_alone) == (whole.total.open, whole.open_alone)
    assert cut.open_alone > 2, "more than are asked for by name"


def test_what_stays_open_is_explained_with_the_call_that_decides_it(
    crawl: Path, plain: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["quality.min_words=1", "quality.min_stop_words=0", "quality.c4_min_sentences=1"]
    given = [word for setting in settings for word in ("--set", setting)]
    assert main(["tune", "--from", str(crawl / "out"), *given]) == 0
    told = capsys.readouterr().out
    assert "are rejected by no other recorded rule" in told
    assert f"sluice run {crawl / 'out' / 'recipe.toml'} --set quality.min_words=1" in told
    assert f"--set run.keep_text=true --set run.output={crawl / 'out'}-tuned" in told


def test_a_language_that_is_not_kept_any_more_is_lost(
    crawl: Path, plain: dict[str, Any], tmp_path: Path
) -> None:
    out = Folder(str(crawl / "out"))
    plain["language"] = {"keep": ["de", "fr", "es"]}
    (answer,) = tune(out.url, [("new", load(write_recipe(tmp_path / "new.toml", plain)))])
    languages = {counts.name: counts for counts in answer.by_language}
    assert languages["en"].lost == languages["en"].before > 40
    assert languages["en"].after == 0
    assert answer.changed == ("language.keep",)
    assert dict(answer.by_rule) == {"language.not_kept": answer.total.lost}


@pytest.mark.parametrize(("changed", "value", "words"), [
    ("quality.c4_min_words_per_line", 9, "it changes what is measured"),
    ("quality.variant", "dolma", "the ledger cannot tell"),
    ("quality.rules", ["fineweb"], "no such measures"),
    ("parse.favor", "recall", "the ledger cannot tell"),
    ("language.min_score", 0.3, "another language may decide"),
])  # fmt: skip
def test_what_the_ledger_cannot_judge_is_refused_by_name(
    crawl: Path, tmp_path: Path, changed: str, value: Any, words: str
) -> None:
    plain = json.loads((crawl / "plain.json").read_text())
    table, key = changed.split(".")
    plain[table] = {**plain[table], key: value}
    with pytest.raises(RecipeError, match=rf"{table}\.{key} differs.*{words}"):
        tune(str(crawl / "out"), [("new", load(write_recipe(tmp_path / "new.toml", plain)))])


def test_the_command_puts_recipes_side_by_side_and_tells_what_it_did_not_look_at(
    crawl: Path, plain: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = write_recipe(tmp_path / "same.toml", plain)
    other = write_recipe(
        tmp_path / "other.toml", with_quality({**plain, "dedup": {"near": False}}, min_words=400)
    )
    call = ["tune", str(same), str(other), "--from", str(crawl / "out")]
    assert main([*call, "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["changed"], first["total"]["lost"]) == ([], 0)
    assert (second["changed"], second["not_looked_at"]) == (["quality.min_words"], ["dedup.near"])
    assert second["total"]["lost"] > 0
    assert main(["tune", "--from", str(crawl / "out"), "--set", "quality.min_words=400", "--json"]) == 0
    [own] = json.loads(capsys.readouterr().out)
    assert (own["changed"], own["total"]) == (["quality.min_words"], second["total"])
    assert main(call) == 0
    told = capsys.readouterr().out
    assert "lost by gopher_quality.too_few_words" in told
    assert "not looked at: dedup.near" in told


def test_what_happens_to_texts_that_are_kept_is_not_looked_at_and_refuses_nothing(
    crawl: Path, plain: dict[str, Any], tmp_path: Path
) -> None:
    changed = {**plain, "repeat": {"by": "cluster_size", "table": {"1": 1, "2": 2}}}
    [answer] = tune(str(crawl / "out"), [("new", load(write_recipe(tmp_path / "new.toml", changed)))])
    assert (answer.changed, answer.total.lost, answer.total.gained) == ((), 0, 0)
    assert {key.partition(".")[0] for key in answer.not_looked_at} == {"repeat"}


@pytest.mark.parametrize(("changed", "is_judged"), [
    ({"decontaminate": {"ratio": 0.9}}, True),  # of a step that is off: it changes nothing
    ({"quality": {"no_table": "pass"}}, True),
    ({"quality": {"min_words": 80, "c4_min_sentences": 2}}, True),
    ({"quality": {"c4_min_words_per_line": 9}}, False),
    ({"quality": {"fineweb_short_line_chars": 9}}, False),
    ({"quality": {"variant": "paper"}}, False),
    ({"limits": {"max_document_bytes": 1_000}}, False),
    ({"parse": {"max_depth": 10}}, False),
])  # fmt: skip
def test_keys_of_thresholds_are_judged_and_those_of_measures_and_bounds_are_not(
    tmp_path: Path, changed: dict[str, Any], is_judged: bool
) -> None:
    plain = recipe(str(tmp_path / "out"), {"web": ("a.warc.gz",)})
    old, new = (load(write_recipe(tmp_path / "recipe.toml", each)) for each in (plain, {**plain, **changed}))
    keys = {f"{table}.{name}" for table, names in changed.items() for name in names}
    assert {key for key in keys if _cannot_judge(key, old, new) is None} == (keys if is_judged else set())


def test_an_output_without_the_whole_ledger_is_refused(
    plain: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain["quality"]["ledger"] = "first"
    plain["run"]["output"] = str(tmp_path / "out")
    run(tmp_path, plain)
    assert main(["tune", str(tmp_path / "recipe.toml"), "--from", str(tmp_path / "out")]) == 2
    assert 'quality.ledger = "all"' in capsys.readouterr().err


def outcomes(answer: TuneResult) -> dict[str, set[str]]:
    return {
        outcome: {example.doc_id for example in answer.examples if example.outcome == outcome}
        for outcome in ("lost", "gained", "open")
    }


@pytest.fixture(scope="module")
def other(crawl: Path) -> dict[str, Any]:
    """The recipe of another output of the crawl: two languages, one without stop words; texts with personal
    data go; a source whose language the recipe names."""
    found: dict[str, Any] = json.loads((crawl / "plain.json").read_text())
    found["run"]["output"] = str(crawl / "other")
    found["language"] = {"keep": ["en", "it"]}
    found["quality"] = {"ledger": "all", "rules": ["gopher_quality", "c4"], "stop_words_off": ["en"]}
    found["pii"] = {"action": "drop"}
    found["source"][1] |= {"steps": ["url", "parse", "quality", "pii"], "language": "en"}
    run(crawl, found)
    return found


def test_stop_words_are_judged_where_another_language_has_none(
    crawl: Path, other: dict[str, Any], tmp_path: Path
) -> None:
    changed = {
        **with_quality(other, min_stop_words=30),
        "run": {**other["run"], "output": str(tmp_path / "out")},
    }
    new = load(write_recipe(tmp_path / "new.toml", changed))
    (answer,) = tune(str(crawl / "other"), [("new", new)], num_examples=1000)
    run(tmp_path, changed)
    before, after = survivors(Folder(str(crawl / "other"))), survivors(Folder(str(tmp_path / "out")))
    assert before - after == outcomes(answer)["lost"] != set()


def test_what_reaches_texts_behind_a_rule_is_refused(
    crawl: Path, other: dict[str, Any], tmp_path: Path
) -> None:
    changed = {**other, "quality": {"ledger": "all", "rules": [], "stop_words_off": ["en"]}}
    with pytest.raises(RecipeError, match="no such measures"):
        tune(str(crawl / "other"), [("new", load(write_recipe(tmp_path / "new.toml", changed)))])


def test_what_has_no_table_is_judged_as_the_new_recipe_says(
    crawl: Path, other: dict[str, Any], tmp_path: Path
) -> None:
    """Where all languages come, Korean texts pass unjudged or go; those that have a table are judged either
    way."""
    passing = {**with_quality(other, no_table="pass", stop_words_off=[]), "language": {"keep": []}}
    passing |= {"run": {**other["run"], "output": str(tmp_path / "passing")}}
    korean = "".join(
        json.dumps({"id": str(n), "text": f"{KOREAN} {n}"}, ensure_ascii=False) + "\n" for n in range(3)
    )
    (tmp_path / "korean.jsonl").write_text(korean)
    passing["source"] = [
        passing["source"][0] | {"inputs": [*passing["source"][0]["inputs"], f"{tmp_path}/*.jsonl"]}
    ]
    rejecting = with_quality(passing, no_table="reject") | {
        "run": {**other["run"], "output": str(tmp_path / "rejecting")}
    }
    for made in (passing, rejecting):
        run(tmp_path / "recipes", made)
    old, new = (survivors(Folder(made["run"]["output"])) for made in (passing, rejecting))
    assert len(old - new) >= 3 and new < old
    (stricter,) = tune(
        passing["run"]["output"], [("new", load(write_recipe(tmp_path / "a.toml", rejecting)))], 1000
    )
    assert outcomes(stricter)["lost"] == old - new
    assert {example.rule for example in stricter.examples} == {"quality.no_table"}
    (looser,) = tune(
        rejecting["run"]["output"], [("new", load(write_recipe(tmp_path / "b.toml", passing)))], 1000
    )
    assert outcomes(looser)["gained"] | outcomes(looser)["open"] == old - new


def test_what_was_purged_is_not_counted(crawl: Path, other: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(crawl / "other", out)
    recipes = [("same", load(write_recipe(tmp_path / "same.toml", other)))]
    (before,) = tune(str(out), recipes)
    doc_id = min(survivors(Folder(str(out))))
    assert main(["purge", str(out), "--doc", doc_id, "--reason", "r", "--by", "b", "--apply"]) == 0
    (after,) = tune(str(out), recipes)
    assert 0 < after.total.before < before.total.before


@pytest.fixture(scope="module")
def own(crawl: Path) -> dict[str, Any]:
    """The recipe of an output of four sources with steps of their own: posts that meet one of the user's
    before and behind `quality`, with another language than `language` gave them; one crawl read twice, with a
    rule and without."""
    steps = "tests.support.steps.judging_steps:"
    found: dict[str, Any] = json.loads((crawl / "plain.json").read_text())
    found["run"]["output"] = str(crawl / "own")
    found["quality"] = {"ledger": "all", "rules": ["gopher_quality"], "max_words": 200}
    web = [str(crawl / "web-*.warc.gz")]
    found["source"] = [
        {
            "name": "before",
            "inputs": [str(crawl / "posts-9.jsonl")],
            "steps": ["parse", "language", f"{steps}name_regions", f"{steps}drop_a_third", "quality", "pii"],
        },
        {
            "name": "behind",
            "inputs": [str(crawl / "posts-[0-2].jsonl")],
            "steps": ["parse", "language", "quality", f"{steps}drop_a_third", "pii"],
        },
        {"name": "judged", "inputs": web, "steps": ["parse", "language", "quality"]},
        {"name": "unjudged", "inputs": web, "steps": ["parse", "language"]},
    ]
    run(crawl, found)
    return found


def test_without_a_change_nothing_is_lost_or_gained_whatever_steps_a_source_has(
    crawl: Path, own: dict[str, Any], tmp_path: Path
) -> None:
    (answer,) = tune(str(crawl / "own"), [("same", load(write_recipe(tmp_path / "same.toml", own)))])
    assert (answer.total.lost, answer.total.gained, answer.total.open) == (0, 0, 0)
    assert answer.total.before == len(survivors(Folder(str(crawl / "own"))))


def test_what_is_gained_has_met_every_step_of_its_own_source(
    crawl: Path, own: dict[str, Any], tmp_path: Path
) -> None:
    changed = {
        **with_quality(own, max_words=5000, min_words=3),
        "run": {**own["run"], "output": str(tmp_path / "out")},
    }
    recipes = [("new", load(write_recipe(tmp_path / "new.toml", changed)))]
    (answer,) = tune(str(crawl / "own"), recipes, num_examples=1000)
    run(tmp_path, changed)
    sources = dict(query(Folder(str(crawl / "own")), "SELECT doc_id, source FROM documents").rows)
    after = survivors(Folder(str(tmp_path / "out")))
    told = outcomes(answer)
    assert {sources[doc_id] for doc_id in told["open"]} == {"behind"}
    assert {sources[doc_id] for doc_id in told["gained"]} >= {"before"}
    assert told["gained"] <= after
    assert after - survivors(Folder(str(crawl / "own"))) - told["gained"] <= told["open"]


def test_the_languages_that_are_kept_are_not_judged_where_another_step_may_have_named_them(
    crawl: Path, own: dict[str, Any], tmp_path: Path
) -> None:
    changed = {**own, "language": {"keep": ["en", "de"]}}
    with pytest.raises(RecipeError, match=r"language\.keep differs.*a step of your own"):
        tune(str(crawl / "own"), [("new", load(write_recipe(tmp_path / "new.toml", changed)))])


LANGUAGES = ("en", "de", "fr")


@pytest.fixture(scope="module")
def languages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of many lengths in three languages, the recipe, in which German has a table of its own, and its
    output with the whole ledger."""
    folder: Path = tmp_path_factory.mktemp("languages")
    rng, rows = random.Random(9), []
    for language in LANGUAGES:
        for number in range(40):
            words = write_article(language, rng, 12).text.replace("\n", " ").split(" ")
            rows.append({"id": f"{language} {number}", "text": " ".join(words[: 20 + 3 * number])})
    (folder / "posts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    quality = {"ledger": "all", "rules": ["gopher_quality"], "language": {"de": {"min_words": 80}}}
    sources = {"posts": (str(folder / "posts.jsonl"),)}
    plain = recipe(str(folder / "out"), sources, quality=quality)
    run(folder, plain)
    (folder / "plain.json").write_text(json.dumps(plain))
    return folder


@pytest.mark.parametrize(
    "quality",
    [
        {"language": {"de": {"min_words": 100}}},
        {"language": {"de": {"min_words": 40}, "fra_Latn": {"min_words": 90}}},
        {"language": {"de": {"min_words": 80}}, "min_words": 70},
        {"language": {}},
        {"language": {"deu_Latn": {"max_word_length": 5.5, "min_words": 80}, "en": {"min_stop_words": 9}}},
    ],
    ids=["stricter", "looser and one more", "the others", "no table any more", "other rules"],
)
def test_thresholds_of_single_languages_are_judged_as_a_run_does(
    languages: Path, quality: dict[str, Any], tmp_path: Path
) -> None:
    plain = json.loads((languages / "plain.json").read_text())
    changed = {
        **plain,
        "quality": {**plain["quality"], **quality},
        "run": {**plain["run"], "output": str(tmp_path / "out")},
    }
    [answer] = tune(
        str(languages / "out"),
        [("new", load(write_recipe(tmp_path / "new.toml", changed)))],
        num_examples=1000,
    )
    run(tmp_path, changed)
    before, after = survivors(Folder(str(languages / "out"))), survivors(Folder(str(tmp_path / "out")))
    outcomes = {
        outcome: {example.doc_id for example in answer.examples if example.outcome == outcome}
        for outcome in ("lost", "gained")
    }
    assert (before - after, after - before) == (outcomes["lost"], outcomes["gained"])
    assert answer.total.after == len(after) and answer.total.open == 0 and before != after
    of_language = "SELECT language, count(*) FROM documents WHERE status <> 'rejected' GROUP BY ALL"
    counted = dict(query(Folder(str(tmp_path / "out")), of_language).rows)
    assert {each.name: each.after for each in answer.by_language if each.after} == counted


def test_the_report_shows_no_other_thresholds_of_a_rule_that_languages_have_their_own_of(
    languages: Path,
) -> None:
    """One number could not be right for all texts: `tune` judges each by its own."""
    out = Folder(str(languages / "out"))
    with questions(out) as ask:
        found = {rule for _, rule in values_of_rules(lambda sql: ask(sql).rows, recipe_of(out))}
    assert "gopher_quality.words_too_short" in found and "gopher_quality.too_few_words" not in found
