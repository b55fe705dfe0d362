"""The recipe of an attempt as another release recorded it: what this one does not know is named with its file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lineage.recipe import RecipeError, as_toml, parse_table
from lineage.storage.folder import Folder
from trainer.options import TrainRecipe
from trainer.provenance.setup import read_recipe, read_setup
from trainer.recovery.same_recipe import changed_since


def recorded(output: Folder) -> str:
    """Record the recipes of two attempts of a run, and give that of the second."""
    tables = {
        "run": {"name": "run"},
        "train": {"data": "out", "output": output.url, "model": "debug", "seq_len": 8, "steps": 4}
        | {"global_batch": 2},
    }
    toml = as_toml(parse_table(TrainRecipe, tables))
    for attempt in (1, 2):
        output.publish(f"attempts/{attempt:05d}.toml", toml.encode())
    return toml


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("[train.optimizer]\n", "[train.optimizer]\nmomentum = 0.5\n", "train.optimizer.momentum"),
        ("[train.optimizer]\n", "[train.noise]\nshare = 0.5\n[train.optimizer]\n", "train.noise"),
        ("steps = 4\n", "steps = 'many'\n", "train.steps"),
        ("[run]\n", "[world]\n[run]\n", "world"),
        ("[train.faults]\n", "[train.faults]\nwatched = 1\n", "train.faults.watched"),
        ("[train.stragglers]\n", "[train.stragglers]\nfar = 1\n", "train.stragglers.far"),
    ],
)
def test_a_key_that_is_not_known_is_refused_with_its_file(
    tmp_path: Path, old: str, new: str, key: str
) -> None:
    output = Folder(str(tmp_path))
    toml = recorded(output)
    assert old in toml
    output.publish("attempts/00002.toml", toml.replace(old, new).encode())
    with pytest.raises(RecipeError) as refused:
        changed_since(output, 1, 2)
    assert refused.value.key == key
    assert str(refused.value).startswith(
        f"{output.at('attempts/00002.toml')} was recorded by another release of sluice, or changed since: "
    )
    assert key in str(refused.value)


@pytest.mark.parametrize("data", [b"[run", b"\xff\xfe", b"x = 1" + b"0" * 5000])
def test_a_recipe_that_is_no_toml_is_named(tmp_path: Path, data: bytes) -> None:
    output = Folder(str(tmp_path))
    output.publish("attempts/00001.toml", data)
    with pytest.raises(RecipeError, match=r"attempts/00001\.toml cannot be read as TOML: "):
        read_recipe(output, 1)


@pytest.mark.parametrize("row", [{"origin": None, "colour": "red"}, {}, [], {"origin": {"url": 1, "x": 2}}])
def test_a_setup_that_this_release_did_not_write_is_named(tmp_path: Path, row: object) -> None:
    output = Folder(str(tmp_path))
    output.publish("attempts/00001.setup", json.dumps(row).encode())
    with pytest.raises(RecipeError, match=r"attempts/00001\.setup is damaged, or was recorded by another"):
        read_setup(output, 1)
