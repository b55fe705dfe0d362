"""The data recipe as a whole: its defaults, what sources must look like, and which keys of two recipes
differ."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage.recipe import RecipeError, as_plain, as_toml, parse_table, with_overrides
from lineage.storage.folder import Folder
from lineage.store.delta import commit_tables, read_table
from pipeline.plan import plan_run
from pipeline.recipe.checks import check_steps_of, checked
from pipeline.recipe.load import differing_keys, load, recipe_of
from pipeline.recipe.tables import PipelineRecipe
from stages.steps.catalogue import STAGES

LEAST = '[run]\nname = "a"\noutput = "out"\n[[source]]\nname = "web"\ninputs = ["a.warc.gz"]\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "recipe.toml").write_text(LEAST)
    return tmp_path / "recipe.toml"


def test_the_least_recipe_has_the_defaults_that_are_documented(path: Path) -> None:
    plain = as_plain(load(path))
    for dotted, value in {
        "run.seed": 0,
        "parse.extractor": "trafilatura",
        "parse.fast": False,
        "language.keep": ["en"],
        "language.min_score": 0.65,
        "language.model": "bundled",
        "language.prefilter": False,
        "quality.rules": ["gopher_quality", "gopher_repetition"],
        "quality.variant": "datatrove",
        "quality.no_table": "refuse",
        "quality.ledger": "first",
        "decontaminate.against": [],
        "decontaminate.field": "text",
        "decontaminate.ngram": "13w",
        "decontaminate.ratio": 0.5,
        "pii.action": "replace",
        "dedup.url": True,
        "pii.kinds": ["email", "phone", "ip", "credit_card", "iban", "us_ssn", "secret"],
        "dedup.exact": True,
        "dedup.near": True,
        "dedup.num_perm": 128,
        "dedup.bands": 16,
        "dedup.rows": 8,
        "dedup.shingle": 5,
        "dedup.scheme": "fast",
        "dedup.threshold": 0.8,
        "dedup.keep": "longest",
        "dedup.engine": "auto",
        "dedup.against": [],
        "tokenize.encoding": "cl100k_base",
        "tokenize.shard_tokens": 2**28,
        "tokenize.group_files": 1000,
        "limits.max_bad_records": 0.01,
        "purges.honour": [],
        "ray.address": "local",
        "classifier": [],
    }.items():
        found: Any = plain
        for part in dotted.split("."):
            found = found[part]
        assert found == value, dotted
    source = {
        "name": "web",
        "inputs": ["a.warc.gz"],
        "format": "auto",
        "steps": list(STAGES),
        "text_field": "text",
    }
    source |= {"mime": [], "fragments": False, "namespaces": [0]}
    assert plain["source"] == [source]


def test_a_resolved_recipe_reads_back_equal(path: Path, tmp_path: Path) -> None:
    recipe = load(path, ["source.0.limit=2", "ray.num_cpus=3", "quality.rules=['c4', 'fineweb']"])
    (tmp_path / "resolved.toml").write_text(as_toml(recipe))
    assert load(tmp_path / "resolved.toml") == recipe
    Folder(str(tmp_path / "out")).publish("recipe.toml", as_toml(recipe).encode())
    assert recipe_of(Folder(str(tmp_path / "out"))) == recipe


@pytest.mark.parametrize(
    ("key", "value", "step"),
    [
        ("url.block_hosts", ["hosts.txt"], "url"),
        ("url.block_words", ["words.txt"], "url"),
        ("language.prefilter", True, "prefilter"),
        ("classifier", [{"name": "a", "model": "a.bin", "label": "x", "threshold": 0.5}], "classifier"),
        ("decontaminate.against", ["bench.jsonl"], "decontaminate"),
    ],
)
def test_a_key_that_no_source_has_the_step_for_is_refused(
    key: str, value: Any, step: str, path: Path
) -> None:
    """A list of benchmarks that nothing reads would leave them in the corpus, without a word."""
    plain = tomllib.loads(path.read_text())
    table, _, name = key.partition(".")
    plain[table] = {name: value} if name else value
    check_steps_of(parse_table(PipelineRecipe, plain))
    plain["source"][0]["steps"] = [stage for stage in STAGES if stage != step]
    with pytest.raises(RecipeError, match=rf"^{key} is given, and no source\.steps names '{step}'"):
        check_steps_of(parse_table(PipelineRecipe, plain))


NEVER = {"name": "a", "model": "a.bin", "label": "x", "reject": "never"}


@pytest.mark.parametrize(
    ("tables", "left_out", "says"),
    [
        ({"classifier": [{**NEVER, "threshold": 0.5}]}, "threshold", r'0\.5, and its reject = "never"'),
        (
            {"pii": {"action": "drop", "placeholders": "fineweb"}},
            "placeholders",
            r'pii\.action = "drop" replaces nothing',
        ),
        ({"pii": {"kinds": [], "placeholders": "fineweb"}}, "placeholders", r"pii\.kinds are none"),
    ],
)
def test_a_key_that_another_takes_all_meaning_from_is_refused(
    tables: dict[str, Any], left_out: str, says: str, path: Path
) -> None:
    plain = tomllib.loads(path.read_text()) | tables
    with pytest.raises(RecipeError, match=says) as raised:
        check_steps_of(parse_table(PipelineRecipe, plain))
    assert "\n" not in str(raised.value)
    [table] = [each[0] if isinstance(each, list) else each for each in tables.values()]
    del table[left_out]
    check_steps_of(parse_table(PipelineRecipe, plain))


def judging(path: Path, *overrides: str, **source: Any) -> None:
    plain = tomllib.loads(path.read_text())
    plain["source"][0] |= source
    check_steps_of(checked(parse_table(PipelineRecipe, with_overrides(plain, overrides))))


WITHOUT_LANGUAGE = [stage for stage in STAGES if stage != "language"]
OWN = "tests.support.steps.judging_steps:name_regions"


def test_a_recipe_without_languages_says_how_texts_are_judged(path: Path) -> None:
    every = "language.keep=[]"
    with pytest.raises(
        RecipeError, match=r"language\.keep is empty or \"all\".*quality\.no_table = \"pass\".*\"reject\""
    ):
        judging(path, every)
    for way_out in ('quality.no_table="pass"', 'quality.no_table="reject"', "quality.rules=[]"):
        judging(path, every, way_out)
    judging(path, every, 'quality.rules=["fineweb"]', 'quality.variant="paper"')
    with pytest.raises(RecipeError, match=r"quality\.no_table = 'skip'"):
        judging(path, 'quality.no_table="skip"')


def test_a_source_whose_texts_nobody_identifies_names_their_language(path: Path) -> None:
    with pytest.raises(
        RecipeError, match=r"source\.steps of 'web' has no 'language'.*source\.language = \"en\""
    ) as error:
        judging(path, steps=WITHOUT_LANGUAGE)
    assert error.value.key == "source.language"
    judging(path, steps=WITHOUT_LANGUAGE, language="de")
    judging(path, "quality.rules=[]", steps=WITHOUT_LANGUAGE)
    judging(path, steps=[stage for stage in WITHOUT_LANGUAGE if stage != "quality"])
    with pytest.raises(RecipeError, match=r"'de', and its steps name 'language'"):
        judging(path, language="de")
    for wrong in ("", "x", "de,en", "German language"):
        with pytest.raises(
            RecipeError, match=r"source\.language of 'web' = .*expected the label of a language"
        ):
            judging(path, steps=WITHOUT_LANGUAGE, language=wrong)


def test_the_language_that_a_source_names_needs_a_table_as_a_kept_one_does(path: Path) -> None:
    with pytest.raises(
        RecipeError, match=r"language 'ja' is source\.language of 'web'.*quality\.no_table"
    ) as error:
        judging(path, steps=WITHOUT_LANGUAGE, language="ja")
    assert "white_space_words" not in str(error.value)
    judging(path, 'quality.no_table="pass"', steps=WITHOUT_LANGUAGE, language="ja")
    judging(path, 'language.keep=["ja"]', 'quality.no_table="reject"')


def test_a_step_of_ones_own_may_name_the_languages(path: Path) -> None:
    steps = ["parse", OWN, "quality"]
    with pytest.raises(RecipeError, match=rf"has no 'language'.*if {OWN} names"):
        judging(path, steps=steps)
    judging(path, 'quality.no_table="reject"', steps=steps)
    with pytest.raises(RecipeError, match="has no 'language'"):
        judging(path, 'quality.no_table="reject"', steps=["parse", "quality", OWN])


def test_a_threshold_above_1_is_one_where_the_measure_may_be(path: Path) -> None:
    check_steps_of(load(path, ["quality.max_top_2_gram=2", "quality.max_duplicate_lines=1"]))


@pytest.mark.parametrize("name", ["web", "a", "A-1_b.c", "0", "x" * 100])
def test_names_of_sources_are_names_of_folders(name: str, path: Path) -> None:
    assert load(path, [f'source.0.name="{name}"']).source[0].name == name


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "-a", "_a", "a b", "ż", "x" * 101, "a\n"])
def test_names_that_could_leave_their_folder_are_refused(name: str, path: Path) -> None:
    escaped = name.replace("\\", "\\\\").replace("\n", "\\n")
    with pytest.raises(RecipeError, match=r"source\.name = "):
        load(path, [f'source.0.name="{escaped}"'])


@pytest.mark.parametrize(
    ("output", "mark"),
    [
        *(
            ("s3://bucket/run#1", "#"),
            ("s3://bucket/a?b", "?"),
            ("s3://bucket/a%20b", "%20"),
            ("s3://bucket/a\\b", "\\"),
        ),
        *(
            ("s3://bucket/a//b", "//"),
            ("s3://bucket/../b", "/.."),
            ("/tmp/a%2Fb/out", "%2F"),
            ("a\\b", "\\"),
            ("a\tb", "\t"),
        ),
    ],
)
def test_a_place_where_lineage_tables_would_lie_elsewhere_is_no_output(
    output: str, mark: str, path: Path
) -> None:
    with pytest.raises(RecipeError, match=rf"run\.output = .*because of {re.escape(repr(mark))}"):
        load(path, [f"run.output={json.dumps(output)}"])


def test_nor_is_one_that_such_a_working_folder_leads_to(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a%20b").mkdir()
    (tmp_path / "a%20b" / "a.jsonl").write_text('{"text": "a"}\n')
    monkeypatch.chdir(tmp_path / "a%20b")
    with pytest.raises(RecipeError, match=r"run\.output = .*because of '%20'"):
        plan_run(load(path, ['source.0.inputs=["a.jsonl"]']))


@pytest.mark.parametrize("name", ["a b", "ü", "日本", "100%", "a:b", "it's", "[a]*", "#1", "what?"])
def test_any_other_name_on_disk_has_its_lineage_tables(name: str, path: Path, tmp_path: Path) -> None:
    out = Folder(load(path, [f"run.output={json.dumps(str(tmp_path / name))}"]).run.output)
    commit_tables(out, {}, only=("purges",))
    assert read_table(out, "purges").num_rows == 0
    assert [table.split("/")[:2] for table in out.names()] == [["lineage", "purges"]]


def test_two_sources_need_two_names(path: Path) -> None:
    path.write_text(LEAST + LEAST[LEAST.index("[[source]]") :])
    with pytest.raises(RecipeError, match=r"source\.name = 'web' is given twice"):
        load(path)


def test_differing_keys_are_named_with_both_values() -> None:
    ours = {"a": {"b": 1, "c": 2}, "source": [{"n": 1}, {"n": 2}], "new": 5, "ray": {"x": 1}}
    theirs = {"a": {"b": 1, "c": 3}, "source": [{"n": 1}, {"n": 7}], "old": 6, "ray": {"x": 2}}
    assert differing_keys(ours, theirs) == [
        "a.c is 2 now and was 3",
        "new is 5 now and was not given",
        "old is not given now and was 6",
        "source[1].n is 2 now and was 7",
    ]
    longer = {"source": [1, 2]}, {"source": [1]}
    assert differing_keys(*longer) == ["source is [1, 2] now and was [1]"]


TREES = st.recursive(
    st.integers(0, 3) | st.text("ab", max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from("xyz"), TREES, max_size=3),
    st.dictionaries(st.sampled_from("xyz"), TREES, max_size=3),
)
def test_two_recipes_differ_in_a_key_just_when_they_are_not_equal(
    ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    assert bool(differing_keys(ours, theirs)) == (ours != theirs)
    assert differing_keys(ours, ours) == []


def test_every_recipe_that_we_ship_is_right() -> None:
    recipes = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))
    for shipped in recipes:
        if "source" in tomllib.loads(shipped.read_text()):
            assert load(shipped).source, shipped


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('text_field = "a..b"', r"source.text_field of 'web' = 'a..b': expected the name of a field"),
        ('id_field = ""', r"source.id_field of 'web' = '': expected the name of a field"),
        ("date_field = 3", r"source\[0\].date_field = 3: expected a string"),
        (
            'text_field = "files[].[]"',
            r"'files\[\].\[\]': expected the name of a field, or names joined by dots, each",
        ),
        (
            'url_field = "files[].url"',
            r"'files\[\].url' goes into the elements of a list, and text_field = 'text' does",
        ),
        (
            'text_field = "a[].t"\nid_field = "a[].b[].id"',
            r"source.id_field of 'web' = 'a\[\].b\[\].id' goes into",
        ),
        (
            'text_field = "ab[].t"\ndate_field = "a[].at"',
            r"source.date_field of 'web' = 'a\[\].at' goes into the elem",
        ),
        (
            'format = "warc"\nurl_field = "u"',
            r"source.format of 'web' is 'warc', whose records have no fields",
        ),
        (
            'format = "jsonl"\nmime = ["text/css"]',
            r"source.format of 'web' is 'jsonl', without types",
        ),
        ('mime = ["json"]', r"source.mime of 'web' has 'json': expected types in lower case"),
        ('mime = ["Text/CSS"]', r"source.mime of 'web' has 'Text/CSS'"),
        ('mime = ["text/html; charset=utf-8"]', r"source.mime of 'web' has 'text/html; charset=utf-8'"),
    ],
)
def test_a_field_that_cannot_be_one_is_refused_by_key(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "r.toml"
    path.write_text(f'[run]\nname = "r"\noutput = "o"\n[[source]]\nname = "web"\ninputs = ["x"]\n{line}\n')
    with pytest.raises(RecipeError, match=says):
        load(path)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("files[].content", "files[].path"),
        ("files[].content", "repo"),
        ("a[].b[].t", "a[].id"),
        ("p[]", "x.y"),
    ],
)
def test_fields_of_the_row_and_of_the_elements_that_the_text_lies_in_may_be_named(
    tmp_path: Path, text: str, other: str
) -> None:
    path = tmp_path / "r.toml"
    path.write_text(
        f'[run]\nname = "r"\noutput = "o"\n[[source]]\nname = "web"\ninputs = ["x"]\ntext_field = "{text}"\n'
        f'url_field = "{other}"\n'
    )
    assert load(path).source[0].row_fields.text == text


def test_the_fields_of_a_source_are_part_of_what_a_run_is(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a", "body": "2026-01-31T12:00:00Z"}\n')
    path = tmp_path / "r.toml"
    keys = set()
    for line in ("", 'text_field = "body"', 'id_field = "body"', 'url_field = "body"', 'date_field = "body"'):
        path.write_text(
            f'[run]\nname = "r"\noutput = "{tmp_path}/o"\n[[source]]\nname = "web"\ninputs ='
            f' ["{tmp_path}/a.jsonl"]\n'
            f"{line}\n"
        )
        keys.add(plan_run(load(path)).units[0].key)
    assert len(keys) == 5


def test_a_threshold_that_is_not_given_is_shown_as_the_default_of_its_variants() -> None:
    (found,) = differing_keys({"quality": {"c4_min_sentences": 4}}, {"quality": {}})
    assert (
        found
        == "quality.c4_min_sentences is 4 now and was not given (datatrove: 5, paper: 3, dclm: 3, fineweb2: 5)"
    )


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        ("english", r"no label 'english' \(did you mean 'en'\?\): its labels are af, "),
        ("ja", "'ja' is kept, but quality.rules count"),
    ],
)
def test_a_language_that_is_no_label_is_told_about_labels_first(path: Path, kept: str, says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        check_steps_of(load(path, [f'language.keep=["{kept}"]']))
