"""`sluice recipe schema` against the recipe's reader: what one takes or refuses for its form the other does
too."""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from lineage.recipe import RecipeError, parse_table
from pipeline.cli.main import main
from pipeline.recipe_help.keys import SHAPES, Kind, RecipeKey, RecipeTable, recipe_keys, recipe_tables
from pipeline.recipe_help.new import new_recipe
from pipeline.recipe_help.schema import recipe_schema
from pipeline.recipe_help.tables import EXAMPLES
from tests.support.checkout import ROOT

LEAST = {
    "data": {"run": {"name": "a", "output": "out"}, "source": [{"name": "web", "inputs": ["a.warc.gz"]}]},
    "train": {
        "run": {"name": "a"},
        "train": {"data": "o", "output": "r", "model": "debug", "seq_len": 64, "global_batch": 2, "steps": 3},
    },
}
SHIPPED = sorted(
    path for path in (ROOT / "recipes").rglob("*.toml") if not path.name.endswith(".departures.toml")
)
KEYS = recipe_keys()
TABLES = [table for kind in SHAPES for table in recipe_tables(kind)]
LISTS = {(table.recipe, table.name) for table in TABLES if table.header.startswith("[[")}
SCHEMAS = {kind: recipe_schema(kind) for kind in SHAPES}
VALIDATORS = {kind: jsonschema.Draft202012Validator(schema) for kind, schema in SCHEMAS.items()}
EITHER = jsonschema.Draft202012Validator(recipe_schema())


def faults(kind: Kind, plain: dict[str, Any]) -> list[str]:
    """Where the schema finds a fault, as the reader names keys; of an unknown key the table that it stands
    in. Of a key that takes one of several forms, in the form that the value comes nearest to."""
    found = list(VALIDATORS[kind].iter_errors(plain))
    nearest = [max((error, *error.context), key=lambda inner: len(inner.absolute_path)) for error in found]
    return [error.json_path.removeprefix("$").removeprefix(".") for error in nearest]


def with_value(kind: Kind, key: RecipeKey, value: Any) -> tuple[dict[str, Any], str]:
    """The least recipe with this value, and the key as the reader names it."""
    plain: Any = copy.deepcopy(LEAST[kind])
    at: Any = plain
    place = ""
    needed = {
        "classifier": {"name": "a", "model": "m", "label": "l", "threshold": 0.5},
        "step": {"name": "a:b"},
        "bucket": {"name": "a", "by": ["score_a"], "cuts": [0.5]},
    }
    needed |= {"train.data": {"out": "o"}, "train.mixture": {"weights": {"web": 1.0}}}
    needed |= {"train.optimizer.group": {"match": "norm", "lr_factor": 0.5}}
    needed |= {"train.eval": {"name": "arc", "files": ["arc.jsonl"]}}
    *tables, own = key.name.split(".")
    for number, each in enumerate(tables):
        name = ".".join(tables[: number + 1])
        part = "read" if each == "NAME" else each
        place = f"{place}.{part}" if place else part
        if (kind, name) in LISTS:
            if not isinstance(at.get(part), list):
                at[part] = [dict(needed[name])]
            at, place = at[part][0], f"{place}[0]"
        else:
            at = at.setdefault(part, {})
    if key.name == "train.optimizer.decay_share":
        at["schedule"] = "wsd"  # which alone reads it
    at[own] = value
    return plain, f"{place}.{own}"


def test_the_schemas_are_of_the_dialect_that_they_name() -> None:
    for schema in (recipe_schema(), *map(recipe_schema, SHAPES)):
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_shipped_recipe_passes(path: Path) -> None:
    plain = tomllib.loads(path.read_text())
    assert faults("train" if "train" in plain else "data", plain) == []


@pytest.mark.parametrize("new", ["fineweb", "text", "train", "mix"])
def test_what_recipe_new_writes_passes(new: str) -> None:
    assert faults("data" if new in ("fineweb", "text") else "train", tomllib.loads(new_recipe(new, []))) == []


@pytest.mark.parametrize("place", EXAMPLES, ids=str)
def test_the_example_of_each_table_passes(place: tuple[Kind, str]) -> None:
    kind, name = place
    added = tomllib.loads(EXAMPLES[place])
    plain: dict[str, Any] = copy.deepcopy(LEAST[kind])
    if name.startswith("train."):
        added = {"train": {**plain["train"], **added["train"]}}
    assert faults(kind, {**plain, **added}) == []


def wrong_values(key: RecipeKey) -> Iterator[Any]:
    """Values that the key cannot have: of another type, beyond its bounds, or none of its choices."""
    yield {"wrong": {"wrong": [True]}}
    yield [[["wrong"]]]
    if key.type in ("whole number", "number"):
        yield from ("1", True, [1])
    elif key.type == "true or false":
        yield from (1, 0, "true")
    elif key.type.startswith('"'):
        yield from ("no such choice", 1, True)
    else:
        yield from (1.5, True)
    if key.type == "whole number":
        yield from (1.5, 1 << 63, -(1 << 63) - 1)


def bounds_of(key: RecipeKey) -> Iterator[tuple[Any, bool]]:
    """Values at and beyond the bounds of a number, and whether they are allowed."""
    step = 1 if key.type == "whole number" else 0.001
    # Thousands are parted by commas without a space, bounds by commas with one.
    for part in key.allowed.split(", ") if key.allowed and key.type in ("whole number", "number") else ():
        words, _, text = part.rpartition(" ")
        number = float(text.replace(",", "")) if "." in text else int(text.replace(",", ""))
        if words == "at least":
            yield from ((number, True), (number - step, False))
        elif words == "at most":
            yield from ((number, True), (number + step, False))
        elif words == "more than":
            yield from ((number, False), (number + step, True))


def refusals(kind: Kind, plain: dict[str, Any]) -> list[RecipeError]:
    try:
        parse_table(SHAPES[kind], plain)
    except RecipeError as error:
        return [error, *error.others]
    return []


@pytest.mark.parametrize("key", KEYS, ids=lambda key: f"{key.recipe} {key.name}")
def test_a_value_that_the_reader_refuses_for_its_form_is_a_fault_there(key: RecipeKey) -> None:
    for value in wrong_values(key):
        plain, place = with_value(key.recipe, key, value)
        refused = refusals(key.recipe, plain)
        assert refused and all((error.key or "").startswith(place) for error in refused), (value, refused)
        found = faults(key.recipe, plain)
        assert found and all(fault.startswith(place) for fault in found), (value, found)
    for value, is_allowed in bounds_of(key):
        plain, place = with_value(key.recipe, key, value)
        assert (faults(key.recipe, plain) == []) == is_allowed, (value, place)
        refused = [
            error for error in refusals(key.recipe, plain) if "expected" in str(error) and error.key == place
        ]
        assert bool(refused) != is_allowed


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.header)
def test_a_key_that_is_none_is_a_fault_of_its_table(table: RecipeTable) -> None:
    wrong, place = with_value(table.recipe, table.keys[0], "x")
    table_place = place.rpartition(".")[0]
    at: Any = wrong
    for part in table_place.replace("[0]", ".0").split("."):
        at = at[int(part)] if part.isdigit() else at[part]
    at["no_such_key"] = 1
    assert any("unknown key" in str(error) for error in refusals(table.recipe, wrong))
    assert table_place in faults(table.recipe, wrong)


@pytest.mark.parametrize(
    ("kind", "table", "name"),
    [("data", "run", "name"), ("data", "source", "inputs"), ("train", "train", "steps"), ("data", "", "run")],
)
def test_a_key_without_default_that_is_missing_is_a_fault(kind: Kind, table: str, name: str) -> None:
    plain: Any = copy.deepcopy(LEAST[kind])
    at = plain[table] if table else plain
    del (at[0] if isinstance(at, list) else at)[name]
    assert len(faults(kind, plain)) == len(refusals(kind, plain)) == 1


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("data", {"quality": {"rules": ["c4", "c5"]}}),
        ("data", {"ray": {"stages": {"reading": {"cpus": 1}}}}),
        ("data", {"pii": {"kinds": ["email", 3]}}),
        ("data", {"quality": {"stop_words": {"tr": "ve"}}}),
        ("data", {"url": []}),
        ("data", {"source": {"name": "web", "inputs": ["a"]}}),
        ("train", {"plan": {"latency_us": [1, 2]}}),
        ("train", {"plan": {"latency_us": [1, 2, 3, 4]}}),
        ("train", {"source": []}),
    ],
)
def test_lists_named_tables_and_choices_within_them_are_held_to_the_same(
    kind: Kind, changed: dict[str, Any]
) -> None:
    plain = {**LEAST[kind], **changed}
    assert refusals(kind, plain) and faults(kind, plain)


@pytest.mark.parametrize("kind", SHAPES)
def test_the_schema_of_either_judges_each_kind_as_its_own_does(kind: Kind) -> None:
    assert EITHER.is_valid(LEAST[kind])
    other = LEAST["data" if kind == "train" else "train"]
    for wrong in ({**LEAST[kind], "no_such_table": {}}, {**LEAST[kind], **other}, {"run": {"name": 1}}, {}):
        assert not EITHER.is_valid(wrong)


def test_a_key_bears_what_a_person_reads_of_it() -> None:
    for key in KEYS:
        schema: Any = SCHEMAS[key.recipe]
        for part in key.name.split("."):
            for form in (schema, *schema.get("anyOf", ())):
                inner = form.get("items", form)
                found = (
                    inner.get("additionalProperties")
                    if part == "NAME"
                    else inner.get("properties", {}).get(part)
                )
                if found:
                    schema = found
                    break
        assert key.help in schema["description"]
        assert schema.get("default") == key.default
    assert "default: 5 (paper, dclm: 3)" in json.dumps(recipe_schema("data"))


def test_the_command_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", "schema", "train"]) == 0
    assert json.loads(capsys.readouterr().out) == recipe_schema("train")
    assert main(["recipe", "schema"]) == 0
    assert json.loads(capsys.readouterr().out) == recipe_schema()
    file = tmp_path / "data.json"
    assert main(["recipe", "schema", "data", "--to", str(file)]) == 0
    assert json.loads(file.read_text()) == recipe_schema("data")
    assert "#:schema ./data.json" in capsys.readouterr().out
    assert main(["recipe", "schema", "data", "--to", str(tmp_path / "none" / "data.json")]) == 2
    assert "cannot be written" in capsys.readouterr().err
