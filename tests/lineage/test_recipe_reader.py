"""The recipe's reader: every type a table may hold, what is refused and how it says so, overrides, and back
to TOML."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage.recipe import (
    RecipeError,
    as_plain,
    as_toml,
    key,
    load_recipe,
    parse_table,
    read_toml,
    whole_number,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """A nested table."""

    depth: int = key(1, at_least=0, at_most=9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """A table with a key of every type."""

    name: str = key()
    count: int = key(3, at_least=1, at_most=10)
    share: float = key(0.5, above=0, at_most=1)
    on: bool = key(True)
    maybe: int | None = key(None, at_least=1)
    either: int | str = key("all")
    several: Literal["all"] | tuple[str, ...] = key("all")
    turn: Literal["on", "off"] | None = key(None)
    way: Literal["up", "down", 3] = key("up")
    words: tuple[str, ...] = key(("a",), choices=("a", "b"))
    pair: tuple[int, str] = key((1, "x"))
    weights: dict[str, float] = key({}, at_least=0)
    inner: Inner = key(Inner())
    many: tuple[Inner, ...] = key(())


GOOD: dict[str, Any] = {
    "name": "a", "count": 10, "share": 1, "on": False, "maybe": 4, "either": 7, "way": 3, "words": ["b", "a"],
    "pair": [2, "y"], "weights": {"web": 1}, "inner": {"depth": 0}, "many": [{"depth": 2}, {}],
}  # fmt: skip


def test_every_type_is_read() -> None:
    assert parse_table(Outer, GOOD) == Outer(
        name="a",
        count=10,
        share=1.0,
        on=False,
        maybe=4,
        either=7,
        way=3,
        words=("b", "a"),
        pair=(2, "y"),
        weights={"web": 1.0},
        inner=Inner(depth=0),
        many=(Inner(depth=2), Inner(depth=1)),
    )


def test_a_whole_number_where_a_number_is_asked_becomes_one() -> None:
    assert isinstance(parse_table(Outer, GOOD).share, float)
    assert isinstance(parse_table(Outer, GOOD).weights["web"], float)


def test_what_is_left_out_has_its_default() -> None:
    assert parse_table(Outer, {"name": "a"}) == Outer(name="a")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({"name": ...}, "key 'name' is missing: it has no default"),
    "unknown": ({"zzz": 1}, "unknown key 'zzz' (= 1). Known here: name, count, share"),
    "misspelt": ({"cuont": 1}, "unknown key 'cuont' (= 1); did you mean 'count'?"),
    "misspelt deeper": (
        {"inner": {"dept": 1}},
        "unknown key 'inner.dept' (= 1); did you mean 'inner.depth'?",
    ),
    "misspelt in a list": ({"many": [{}, {"dept": 1}]}, "unknown key 'many[1].dept'"),
    "str": ({"name": 5}, "name = 5: expected a string"),
    "int": ({"count": "5"}, "count = '5': expected a whole number"),
    "int from float": ({"count": 5.0}, "count = 5.0: expected a whole number"),
    "int from bool": ({"count": True}, "count = True: expected a whole number"),
    "float": ({"share": "half"}, "share = 'half': expected a number"),
    "float from bool": ({"share": True}, "share = True: expected a number"),
    "int beyond 64 bits": (
        {"count": 1 << 63},
        "count = 9223372036854775808: expected a number that 64 bits hold",
    ),
    "float from int beyond 64 bits": ({"share": -(10**400)}, "share = -1000000000"),
    "int of thousands of digits": ({"count": 1 << 20_000}, "count = 0x1000000000"),
    "list of an int of thousands of digits": (
        {"name": [1 << 20_000]},
        "name = a list or table of numbers of thousands",
    ),
    "table that is an int of thousands of digits": ({"inner": 1 << 20_000}, "inner = 0x1000000000"),
    "bool": ({"on": 1}, "on = 1: expected true or false"),
    "too small": ({"count": 0}, "count = 0: expected at least 1"),
    "too large": ({"count": 11}, "count = 11: expected at most 10"),
    "not above": ({"share": 0}, "share = 0.0: expected more than 0"),
    "infinite": ({"share": math.inf}, "share = inf: expected a finite number"),
    "not a number": ({"weights": {"web": math.nan}}, "weights.web = nan: expected a finite number"),
    "optional too small": ({"maybe": 0}, "maybe = 0: expected at least 1"),
    "optional of another type": ({"maybe": "x"}, "maybe = 'x': expected a whole number"),
    "union": ({"either": [1]}, "either = [1]: expected a whole number or a string"),
    "literal or nothing": ({"turn": "left"}, "turn = 'left': expected one of 'on', 'off'"),
    "literal": ({"way": "left"}, "way = 'left': expected one of 'up', 'down', 3"),
    "literal is no bool": ({"way": True}, "way = True: expected one of"),
    "list": ({"words": "a"}, "words = 'a': expected a list"),
    "one of two types": ({"several": 3}, "several = 3: expected 'all' or a list"),
    "a fault within one of two": ({"several": [3]}, "several[0] = 3: expected a string"),
    "member": ({"words": ["a", 5]}, "words[1] = 5: expected a string"),
    "choice": ({"words": ["a", "c"]}, "words[1] = 'c': expected one of 'a', 'b'"),
    "pair of three": ({"pair": [1, "x", 2]}, "pair = [1, 'x', 2]: expected a list of 2"),
    "pair member": ({"pair": ["x", 1]}, "pair[0] = 'x': expected a whole number"),
    "dict": ({"weights": [1]}, "weights = [1]: expected a table of name = value"),
    "dict value": ({"weights": {"web": -1}}, "weights.web = -1.0: expected at least 0"),
    "table": ({"inner": 5}, "inner = 5: expected a table"),
    "list of tables": ({"many": {"depth": 1}}, "many = {'depth': 1}: expected a list"),
    "table in a list": ({"many": [5]}, "many[0] = 5: expected a table"),
}


@pytest.mark.parametrize(("change", "said"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_value_is_refused_with_key_value_and_what_is_allowed(
    change: dict[str, Any], said: str
) -> None:
    raw = {name: value for name, value in {**GOOD, **change}.items() if value is not ...}
    with pytest.raises(RecipeError) as error:
        parse_table(Outer, raw)
    assert said in str(error.value)


def test_a_long_value_is_cut_in_its_error() -> None:
    with pytest.raises(RecipeError) as error:
        parse_table(Outer, {"name": "a", "count": "x" * 10_000})
    assert len(str(error.value)) < 200


OVERRIDES = [
    ("count=7", {"count": 7}),
    ("share=0.25", {"share": 0.25}),
    ("name=plain words", {"name": "plain words"}),
    ('name="quoted"', {"name": "quoted"}),
    ("name=s3://bucket/out", {"name": "s3://bucket/out"}),
    ("name=a=b", {"name": "a=b"}),
    ('words=["b"]', {"words": ["b"]}),
    ("on=false", {"on": False}),
    ("inner.depth=4", {"inner": {"depth": 4}}),
    ("many.1.depth=4", {"many": [{"depth": 2}, {"depth": 4}]}),
    ("weights.web=2", {"weights": {"web": 2}}),
    ("inner={depth = 3}", {"inner": {"depth": 3}}),
    (" count = 7", {"count": 7}),
]


@pytest.fixture
def good_file(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(as_toml(parse_table(Outer, GOOD)))
    return path


@pytest.mark.parametrize(("override", "change"), OVERRIDES, ids=[override for override, _ in OVERRIDES])
def test_an_override_replaces_one_key(override: str, change: dict[str, Any], good_file: Path) -> None:
    assert load_recipe(good_file, Outer, [override]) == parse_table(Outer, {**GOOD, **change})


def test_of_two_overrides_the_later_one_counts(good_file: Path) -> None:
    assert load_recipe(good_file, Outer, ["count=2", "count=3"]).count == 3


def test_an_override_makes_a_table_that_the_file_does_not_have(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text('name = "a"')
    assert load_recipe(tmp_path / "recipe.toml", Outer, ["inner.depth=5"]).inner.depth == 5


WRONG_OVERRIDES = {
    "count": "expected key=value",
    "=7": "expected key=value",
    "inner..depth=7": "expected key=value",
    "many.2.depth=1": "'2' is not an entry of the list (0 to 1)",
    "many.one.depth=1": "'one' is not an entry of the list",
    "many.².depth=1": "'²' is not an entry of the list",
    "many.١.depth=1": "'١' is not an entry of the list",
    f"many.{'9' * 5000}.depth=1": "is not an entry of the list",
    "many.depth=1": "name an entry, as in many.0.key",
    "name.first=1": "'name' is a value, not a table",
    "cuont=1": "did you mean 'count'?",
    f"count={'9' * 5000}": "count = '9999999999",
    f"count={'[' * 3000}": "count = '[[[[[[[[[[",
    "count=x": "count = 'x': expected a whole number",
}


@pytest.mark.parametrize(("override", "said"), WRONG_OVERRIDES.items(), ids=WRONG_OVERRIDES.keys())
def test_a_wrong_override_is_refused(override: str, said: str, good_file: Path) -> None:
    with pytest.raises(RecipeError) as error:
        load_recipe(good_file, Outer, [override])
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"name = ", "cannot be read as TOML"),
        (b'name = "\xff"', "cannot be read as TOML"),
        (b"count = " + b"9" * 5000, "cannot be read as TOML: it has a number of thousands of digits"),
        (
            b"words = " + b"[" * 3000 + b"]" * 3000,
            "cannot be read as TOML: its tables and lists are nested too deep",
        ),
        (b"a" + b".a" * 600 + b" = 1", "cannot be read as TOML: its tables and lists are nested too deep"),
        (None, "no recipe at"),
    ],
)
def test_a_file_that_is_no_recipe_is_named(content: bytes | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RecipeError, match=said) as error:
        read_toml(path)
    assert str(path) in str(error.value)


def test_an_output_given_as_a_recipe_is_told_where_its_recipe_lies(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=f"{tmp_path} is a folder: .*{tmp_path}/recipe.toml"):
        read_toml(tmp_path)


def test_a_file_that_begins_with_a_byte_order_mark_is_read_as_without_one(good_file: Path) -> None:
    plain = read_toml(good_file)
    good_file.write_bytes(b"\xef\xbb\xbf" + good_file.read_bytes())
    assert read_toml(good_file) == plain


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("007", 7), ("9" * 18, 10**18 - 1)]
    + [(text, None) for text in ("", "-1", "+1", " 1", "1_0", "²", "١", "①", "9" * 19, "9" * 5000)],
)
def test_a_whole_number_is_one_of_ascii_digits_alone(text: str, number: int | None) -> None:
    assert whole_number(text) == number


def test_a_default_is_not_shared_between_recipes() -> None:
    first, second = parse_table(Outer, {"name": "a"}), parse_table(Outer, {"name": "b"})
    assert first.inner == second.inner
    assert as_plain(first)["weights"] is not as_plain(second)["weights"]


OUTERS = st.builds(
    Outer,
    name=st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    count=st.integers(1, 10),
    share=st.floats(0, 1, exclude_min=True),
    on=st.booleans(),
    maybe=st.none() | st.integers(1, 99),
    either=st.integers(-9, 9) | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    way=st.sampled_from(["up", "down", 3]),
    words=st.lists(st.sampled_from("ab"), max_size=3).map(tuple),
    pair=st.tuples(st.integers(-9, 9), st.text("xyz")),
    weights=st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=5), st.floats(0, 9), max_size=3
    ),
    inner=st.builds(Inner, depth=st.integers(0, 9)),
    many=st.lists(st.builds(Inner, depth=st.integers(0, 9)), max_size=3).map(tuple),
)


@given(OUTERS)
def test_what_is_written_as_toml_reads_back_equal(recipe: Outer) -> None:
    import tomllib

    assert parse_table(Outer, tomllib.loads(as_toml(recipe))) == recipe


def test_the_short_name_of_a_key_within_a_table_is_told_whole() -> None:
    with pytest.raises(RecipeError, match=r"unknown key 'depth' \(= 3\); did you mean 'inner\.depth'\?"):
        parse_table(Outer, GOOD | {"depth": 3})
