"""What `sluice recipe new` writes holds just what it was given."""

from __future__ import annotations

import tomllib
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline.recipe_help.new
from lineage.recipe import RecipeError, parse_table, with_overrides
from pipeline.recipe.checks import check_steps_of, checked
from pipeline.recipe.tables import UNIT_KINDS, PipelineRecipe
from pipeline.recipe_help.check import kind_of
from pipeline.recipe_help.keys import SHAPES, Kind, recipe_tables
from pipeline.recipe_help.named import KINDS
from pipeline.recipe_help.named import template as template_of
from pipeline.recipe_help.new import new_recipe
from stages.tokens.repeats import curve_times

TEXTS: Final = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SHARES: Final = st.floats(0, 1)
VALUES: Final[dict[str, st.SearchStrategy[Any]]] = {
    "text": TEXTS,
    "whole number": st.integers(0, 10**18),
    "number": SHARES | st.integers(0, 99),
    "true or false": st.booleans(),
    "list of text": st.lists(TEXTS, max_size=3),
    "table of name = text": st.dictionaries(TEXTS, TEXTS, max_size=3),
    "table of name = number": st.dictionaries(TEXTS, SHARES, max_size=3),
    "table of name = list of text": st.dictionaries(TEXTS, st.lists(TEXTS, max_size=2), max_size=3),
}
"""What a key of a type may be given."""
MIXTURE: Final = st.fixed_dictionaries({"weights": st.dictionaries(TEXTS, SHARES, max_size=3)})
CLASSIFIER: Final = st.fixed_dictionaries(
    {"name": st.just("edu"), "model": TEXTS, "label": TEXTS, "threshold": SHARES},
    optional={"resources": st.dictionaries(TEXTS, SHARES, max_size=2)},
)
TABLES: Final[dict[Kind, dict[str, st.SearchStrategy[Any]]]] = {
    "data": {
        "classifier": st.lists(CLASSIFIER, max_size=2),
        "ray.stages": st.dictionaries(
            st.sampled_from(UNIT_KINDS),
            st.fixed_dictionaries({}, optional={"cpus": st.integers(1, 9), "resource": TEXTS}),
        ),
    },
    "train": {
        "train.data": TEXTS
        | st.lists(st.fixed_dictionaries({"out": TEXTS}, optional={"prefix": TEXTS}), max_size=3),
        "train.mixture": st.lists(MIXTURE, max_size=3),
    },
}
"""What lists of tables and tables of chosen names may be given, which have headers of their own."""


def settable(kind: Kind) -> dict[str, st.SearchStrategy[Any]]:
    """What may be set in a recipe by its dotted name. (Entries of lists are set with their whole list.)"""
    tables = [
        table
        for table in recipe_tables(kind)
        if table.header == f"[{table.name}]" and "NAME" not in table.name
    ]
    keys = {key.name: VALUES[key.type] for table in tables for key in table.keys if key.type in VALUES}
    return keys | TABLES[kind]


SETTABLE: Final = {kind: settable(kind) for kind in SHAPES}


def toml(value: Any) -> str:
    """A value as TOML in one line, by no code of ours: every character escaped."""
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(character):08x}" for character in value) + '"'
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(name)} = {toml(inner)}" for name, inner in value.items()) + "}"
    return str(value).lower()


def is_allowed(template: str, given: dict[str, Any]) -> bool:
    """Whether the template may be given these values, by the recipe's own bounds."""
    plain = with_overrides(
        template_of(template).tables, [f"{name}={toml(value)}" for name, value in given.items()]
    )
    try:
        parse_table(SHAPES[kind_of(template_of(template).tables)], plain)
    except RecipeError:
        return False
    return True


@st.composite
def changes(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A template and values that it may be given."""
    template = draw(st.sampled_from(KINDS))
    within = SETTABLE[kind_of(template_of(template).tables)]
    given: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(sorted(within)), min_size=1, max_size=6, unique=True)):
        more = given | {name: draw(within[name])}
        given = more if is_allowed(template, more) else given
    return template, given


@given(changes())
@settings(max_examples=300)
def test_what_is_written_reads_back_as_the_template_with_just_the_given_values(
    change: tuple[str, dict[str, Any]],
) -> None:
    template, given_values = change
    overrides = [f"{name}={toml(value)}" for name, value in given_values.items()]
    held = tomllib.loads(new_recipe(template, overrides))
    assert held == with_overrides(template_of(template).tables, overrides)
    for name, value in given_values.items():
        found: Any = held
        for part in name.split("."):
            found = found[part]
        assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(("template", "name", "value"), [
    ("fineweb", "ray.stages", {"read": {"cpus": 2}}),
    ("fineweb", "ray.stages", {}),
    ("fineweb", "classifier", []),
    ("train", "train.data", [{"out": "a"}, {"out": "b", "prefix": "c"}]),
    ("train", "train.data", "out"),
    ("train", "train.mixture", []),
    ("mix", "mix.targets", {"a.b": 0.5, "\x7f": 0.25}),
    ("fineweb", "run.name", "".join(map(chr, range(0x20))) + '"\\\x7f\x80\u2028'),
])  # fmt: skip
def test_a_value_of_every_form_is_in_the_written_file(template: str, name: str, value: Any) -> None:
    found: Any = tomllib.loads(new_recipe(template, [f"{name}={toml(value)}"]))
    for part in name.split("."):
        found = found[part]
    assert found == value


def test_a_table_of_a_chosen_name_has_its_help_and_its_header() -> None:
    text = new_recipe("fineweb", ["ray.stages.read.cpus=2", "ray.stages.join.memory=7"])
    assert "\n[ray.stages.read]\ncpus = 2 " in text
    assert "\n[ray.stages.join]\n" in text
    assert "# What units of one kind reserve" in text


def test_a_text_that_no_file_can_hold_is_refused() -> None:
    with pytest.raises(RecipeError, match="cannot be written as TOML"):
        new_recipe("fineweb", ["run.name=\udcff"])


def test_a_value_that_would_be_lost_is_refused_by_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    lines_of = pipeline.recipe_help.new._of_key
    monkeypatch.setattr(
        pipeline.recipe_help.new,
        "_of_key",
        lambda key, *rest: () if key.name == "run.name" else lines_of(key, *rest),
    )
    with pytest.raises(RecipeError, match=r"would not be in the file as given: run\.name is 'mine'"):
        new_recipe("fineweb", ["run.name=mine"])


@pytest.mark.parametrize("template", [name for name in KINDS if template_of(name).rest])
def test_what_asks_for_a_model_stands_at_the_end_and_is_right_without_its_marks(template: str) -> None:
    text = new_recipe(template)
    assert "repeat" not in tomllib.loads(text)
    lines = text.splitlines()
    at = lines.index("# [[classifier]]")
    whole = "\n".join([*lines[:at], *(line.removeprefix("#").removeprefix(" ") for line in lines[at:])])
    recipe = parse_table(PipelineRecipe, tomllib.loads(whole))
    check_steps_of(checked(recipe))
    assert (recipe.repeat.target, recipe.repeat.discard, recipe.repeat.most) == (1.0, 0.4, 7.0)
    # Its curve over 20 parts of equal tokens, worked out from dolma3's notebook for this target: the steepest.
    assert len(recipe.bucket[0].percentiles) == 19 and recipe.bucket[0].weigh == "tokens"
    found = curve_times([5] * 20, 1.0, recipe.repeat.discard, recipe.repeat.most)
    assert found[:8] == [0] * 8 and found[-1] == pytest.approx(5.764, abs=5e-4)
    assert sum(found) / 20 == pytest.approx(1.0)
