"""How each attempt of a run was set up: its recipe, layout and versions, which weights it began with, and
against which benchmarks its data was checked.

  attempts/00001.setup    written once, when the attempt begins; the fact `start` of lineage.jsonl repeats it in part
  attempts/00001.toml     its recipe, every key and with absolute places, so that its steps can be done again

A certificate reads both, so that one that was changed is found. No torch here.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from lineage.ids import content_hash
from lineage.index.checked_against import CheckedAgainst, checked_against
from lineage.json_record import JsonRecord
from lineage.recipe import RecipeError, as_plain, as_toml, parse_table, parse_toml
from lineage.secrets import without_secrets
from lineage.storage.folder import Folder, split
from lineage.storage.places import name_in, same_place
from trainer.options import TrainRecipe

_RECORD: Final = re.compile(r"\d{5,}\.toml")
_PACKAGES: Final = ("sluice", "torch", "numpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The weights that `train.init_from` names. `digest`: of a checkpoint's record, which holds the hashes of its
    files; of the config.json and every byte of the weights of a folder of safetensors. `output`, `run`, `step`
    and `attempt`: of the run that made them, as far as the folder says it."""

    url: str
    digest: str
    output: str | None = None
    run: str | None = None
    step: int | None = None
    attempt: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The first process's processor or GPU by its name, and the threads of each process on a processor:
    others may round otherwise."""

    name: str
    num_threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup(JsonRecord):
    """What an attempt was started with. `layout`: what the order of additions hangs on; `origin`: None where
    it began with the seed's weights, or went on from a checkpoint; `benchmarks`: against which the data was
    checked, by the output read; `hardware`: what computed; `on_ray`: whether Ray ran its processes."""

    recipe_hash: str
    seed: int
    layout: Mapping[str, Any]
    device: str
    versions: Mapping[str, str]
    origin: Origin | None
    benchmarks: Mapping[str, tuple[CheckedAgainst, ...]]
    hardware: Hardware
    on_ray: bool


def make_setup(recipe: TrainRecipe, device: str, origin: Origin | None, hardware: Hardware) -> Setup:
    """The setup of an attempt that begins now."""
    return Setup(
        recipe_hash=recipe_hash(recipe),
        seed=recipe.seed,
        layout=layout_of(recipe),
        device=device,
        versions=versions(),
        origin=origin,
        benchmarks={data.out: checked_against(Folder(data.out)) for data in recipe.train.outs},
        hardware=hardware,
        on_ray="ray" in sys.modules and sys.modules["ray"].is_initialized(),
    )


def layout_of(recipe: TrainRecipe) -> dict[str, object]:
    """What the order of additions depends on."""
    table = recipe.train
    return dataclasses.asdict(table.mesh) | {
        "zero": table.zero,
        "micro_batch": table.micro_batch,
        "dtype": table.dtype,
        "compile": table.compile,
        "activation_checkpointing": table.activation_checkpointing,
        "schedule": table.pipeline.schedule if table.mesh.pp > 1 else None,
    }


def versions() -> dict[str, str]:
    """Of the packages that decide what a step computes."""
    return {name: _version(name) for name in _PACKAGES}


def recipe_hash(recipe: TrainRecipe) -> str:
    """BLAKE3-128 (hex) of [run] and [train] with every default; where processes run and what is planned is
    left out."""
    plain = as_plain(recipe)
    return content_hash(
        json.dumps({name: plain[name] for name in ("run", "train")}, sort_keys=True).encode()
    ).hex()


def record_setup(output: Folder, attempt: int, setup: Setup, recipe: TrainRecipe) -> None:
    """Write down how an attempt was set up, before it does a step."""
    output.publish(_recipe_name(attempt), as_toml(absolute_places(recipe)).encode())
    output.publish(_name(attempt), json.dumps(setup.to_json(), sort_keys=True).encode())


def read_setup(output: Folder, attempt: int) -> Setup | None:
    """None where the attempt recorded none. RecipeError, which names the file, for what this release did not
    write."""
    if not output.exists(_name(attempt)):
        return None
    try:
        return Setup.from_json(json.loads(output.read(_name(attempt))))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RecipeError(
            f"{output.at(_name(attempt))} is damaged, or was recorded by another release of sluice: {error}"
        ) from error


def read_recipe(output: Folder, attempt: int) -> TrainRecipe | None:
    """The recipe of an attempt of the run at an output, as if it named that output: it may be a copy, or have been
    moved, since the recipe was recorded. None where the attempt recorded none. RecipeError, which names the file
    and the key, for a key that this release does not know, and for a file that is no recipe."""
    if not output.exists(_recipe_name(attempt)):
        return None
    where = recipe_place(output, attempt)
    try:
        raw = parse_toml(output.read(_recipe_name(attempt)).decode())
    except ValueError as error:  # of the decoding, of TOML, and RecipeError
        raise RecipeError(f"{where} cannot be read as TOML: {error}") from error
    try:
        return located_at(parse_table(TrainRecipe, raw), output)
    except RecipeError as error:
        raise RecipeError(
            f"{where} was recorded by another release of sluice, or changed since: {error}. What its"
            f" steps compute may depend on that: use the release that recorded it",
            error.key,
        ) from error


def located_at(recipe: TrainRecipe, output: Folder, checkpoints: Folder | None = None) -> TrainRecipe:
    """The recipe with that output and these checkpoints, None: within it, if they were within its own."""
    table = recipe.train
    path = table.checkpoint.path
    name = None if path is None else name_in(Folder(table.output), path)
    if checkpoints is not None or name is not None:
        path = output.at(name or "") if checkpoints is None else checkpoints.url
    checkpoint = dataclasses.replace(table.checkpoint, path=path)
    return dataclasses.replace(
        recipe, train=dataclasses.replace(table, output=output.url, checkpoint=checkpoint)
    )


def refuse_record_of_another(recipe: TrainRecipe, path: str) -> None:
    """RecipeError where the file of a recipe is the record of a run's attempt, and the recipe names another
    output: the record was copied or moved with its output, and the call would go on with the original."""
    folder, name = split(path)
    above, attempts = split(folder.url)
    if (
        attempts == "attempts"
        and _RECORD.fullmatch(name)
        and not same_place(above, Folder(recipe.train.output))
    ):
        raise RecipeError(
            f"{path} was recorded by the run with the output {recipe.train.output!r}, and lies in {above.url}:"
            f" --set train.output={above.url} goes on with that one, and the record in {recipe.train.output}"
            " with the other",
            "train.output",
        )


def recipe_place(output: Folder, attempt: int) -> str:
    """Where the recipe of an attempt lies."""
    return output.at(_recipe_name(attempt))


def absolute_places(recipe: TrainRecipe) -> TrainRecipe:
    """The recipe as it may be read from another folder, and without credentials."""

    def place(url: str) -> str:
        return without_secrets(Folder(url).url)

    table = recipe.train
    path = table.checkpoint.path
    return dataclasses.replace(
        recipe,
        train=dataclasses.replace(
            table,
            data=tuple(dataclasses.replace(entry, out=place(entry.out)) for entry in table.outs),
            output=place(table.output),
            model=place(table.model) if table.model.endswith(".json") else table.model,
            init_from=None if table.init_from is None else place(table.init_from),
            checkpoint=dataclasses.replace(table.checkpoint, path=None if path is None else place(path)),
            eval=tuple(
                dataclasses.replace(
                    entry,
                    files=tuple(place(file) for file in entry.files),
                    shots_from=None if entry.shots_from is None else place(entry.shots_from),
                )
                for entry in table.eval
            ),
        ),
    )


def _name(attempt: int) -> str:
    return f"attempts/{attempt:05d}.setup"


def _recipe_name(attempt: int) -> str:
    return f"attempts/{attempt:05d}.toml"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
