"""Every key of a TOML text is found where it stands."""

from __future__ import annotations

import tomllib
from typing import Any

import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from pipeline.recipe_help.positions import Path, TextPosition, dotted, key_positions

NAMES = st.one_of(
    st.from_regex(r"[a-z_-]{1,5}", fullmatch=True), st.text(min_size=1, max_size=4).filter(str.isprintable)
)
TEXTS = st.text(alphabet="ab\"'[]{}#=,.\\\n", max_size=12)
VALUES = st.recursive(
    st.one_of(st.integers(-99, 99), st.booleans(), st.floats(allow_nan=False, allow_infinity=False), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=12,
)


def paths_of(value: Any, path: Path = ()) -> set[Path]:
    """The paths of all keys and entries below a value."""
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    return {found for name, inner in entries for found in {(*path, name)} | paths_of(inner, (*path, name))}


@given(plain=st.dictionaries(NAMES, VALUES, max_size=4), multiline=st.booleans())
def test_all_keys_are_found_and_each_stands_at_its_place(plain: dict[str, Any], multiline: bool) -> None:
    text = tomli_w.dumps(plain, multiline_strings=multiline)
    found = key_positions(text)
    assert found.keys() == paths_of(tomllib.loads(text))
    lines = text.split("\n")
    for path, position in found.items():
        if not isinstance(path[-1], int):
            here = lines[position.line - 1][position.column - 1 :]
            assert here.startswith(("[", '"', "'", path[-1])), (path, here)


def test_a_text_of_every_form_of_toml() -> None:
    text = """# a comment = 1
[run]   # [not.a.table]
name = 'a # b'
"quoted key".inner = 1   # dotted
[[source]]
name = "one"
inputs = [
  "a]",  # a comment, with a ] in it
  '''b''',
]
[source.more]
x = { y = 1, z = [ { w = 2 } ] }
[[source]]
text = \"\"\"
[run]
name = "\\\"\"\"\"
"""
    found = key_positions(text)
    assert found.keys() == paths_of(tomllib.loads(text))
    assert found["run", "name"] == TextPosition(line=3, column=1)
    assert found["run", "quoted key", "inner"] == TextPosition(line=4, column=14)
    assert found["source", 0, "inputs", 1] == TextPosition(line=9, column=3)
    assert found["source", 0, "more", "x", "z", 0, "w"] == TextPosition(line=12, column=22)
    assert found["source", 1] == TextPosition(line=13, column=1)
    assert dotted(("source", 0, "inputs", 1)) == "source[0].inputs[1]"
