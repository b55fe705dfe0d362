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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from lineage.ids import content_hash
from lineage.index.checked_against import CheckedAgainst, checked_against
from lineage.recipe import RecipeError, as_plain, as_toml, parse_table, parse_toml
from lineage.secrets import without_secrets
from lineage.storage.folder import Folder, split
from lineage.storage.places import name_in, same_place
from trainer.options import TrainRecipe

_RECORD: Final = re.compile(r"\d{5,}\.toml")
_PACKAGES: Final = ("sluice", "torch", "numpy")
_NOT_DECIDING: Final = (
    "plan", "ray", "mix", "train.cache", "train.recorder", "train.recovery", "train.health", "train.resources",
    "train.stragglers", "train.faults.watchdog_seconds",
)  # fmt: skip
"""Tables and keys of a recipe that decide no bit of a step."""


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
class Setup:
    """What an attempt was started with. `layout`: what the order of additions hangs on; `origin`: None where
    it began with the seed's weights, or went on from a checkpoint; `benchmarks`: against which the data was
    checked, by the output read; `hardware`: what computed. These two are None for an attempt of an earlier
    release. `on_ray`: whether Ray ran its processes."""

    recipe_hash: str
    seed: int
    layout: Mapping[str, Any]
    device: str
    versions: Mapping[str, str]
    origin: Origin | None = None
    benchmarks: Mapping[str, Sequence[CheckedAgainst]] | None = None
    hardware: Hardware | None = None
    on_ray: bool = True


def make_setup(
    recipe: TrainRecipe, device: str, origin: Origin | None, hardware: Hardware | None = None
) -> Setup:
    """The setup of an attempt that begins now."""
    table = recipe.train
    layout = dataclasses.asdict(table.mesh) | {
        "zero": table.zero,
        "micro_batch": table.micro_batch,
        "dtype": table.dtype,
        "compile": table.compile,
        "activation_checkpointing": table.activation_checkpointing,
        "schedule": table.pipeline.schedule if table.mesh.pp > 1 else None,
    }
    return Setup(
        recipe_hash=recipe_hash(recipe),
        seed=recipe.seed,
        layout=layout,
        device=device,
        versions={name: _version(name) for name in _PACKAGES},
        origin=origin,
        benchmarks={data.out: checked_against(Folder(data.out)) for data in table.outs},
        hardware=hardware,
        on_ray="ray" in sys.modules and sys.modules["ray"].is_initialized(),
    )


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
    output.publish(_name(attempt), json.dumps(dataclasses.asdict(setup), sort_keys=True).encode())


def read_setup(output: Folder, attempt: int) -> Setup | None:
    """None for an attempt of an earlier release, which wrote none. RecipeError, which names the file, for
    what this release did not write."""
    if not output.exists(_name(attempt)):
        return None
    try:
        row = json.loads(output.read(_name(attempt)))
        told = row.get("benchmarks")
        benchmarks = (
            None if told is None else {out: tuple(map(_benchmark, found)) for out, found in told.items()}
        )
        origin = None if row["origin"] is None else Origin(**row["origin"])
        hardware = None if row.get("hardware") is None else Hardware(**row["hardware"])
        return Setup(**{**row, "origin": origin, "benchmarks": benchmarks, "hardware": hardware})
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RecipeError(
            f"{output.at(_name(attempt))} is damaged, or was recorded by another release of sluice: {error}"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRecipe:
    """The recipe of an attempt of the run at an output, as if it named that output: it may be a copy, or have
    been moved, since the recipe was recorded. `passed_over`: the keys in its file that this release does
    not know and that decide no bit of a step: with them no call can be made by the file as it is."""

    recipe: TrainRecipe
    passed_over: tuple[str, ...]


def read_recipe(output: Folder, attempt: int) -> TrainRecipe | None:
    """The recipe of an attempt; None and errors as of `recorded_recipe`."""
    recorded = recorded_recipe(output, attempt)
    return None if recorded is None else recorded.recipe


def recorded_recipe(output: Folder, attempt: int) -> RecordedRecipe | None:
    """None for an attempt of an earlier release, which wrote none.

    A key that another release knew and this one does not is passed over where no bit of a step hangs on it.
    RecipeError, which names the file and the key, for any other, and for a file that is no recipe."""
    if not output.exists(_recipe_name(attempt)):
        return None
    where = recipe_place(output, attempt)
    try:
        raw = parse_toml(output.read(_recipe_name(attempt)).decode())
    except ValueError as error:  # of the decoding, of TOML, and RecipeError
        raise RecipeError(f"{where} cannot be read as TOML: {error}") from error
    passed_over: list[str] = []
    while True:
        try:
            recipe = located_at(parse_table(TrainRecipe, raw), output)
            return RecordedRecipe(recipe=recipe, passed_over=tuple(passed_over))
        except RecipeError as error:
            faults = [error, *error.others]
            deciding = next((fault for fault in faults if not _decides_nothing(fault.key)), None)
            if deciding is not None or not all(_take(raw, fault.key) for fault in faults):
                fault = error if deciding is None else deciding
                raise RecipeError(
                    f"{where} was recorded by another release of sluice, or changed since: {fault}. What its"
                    f" steps compute may hang on that: use the release that recorded it",
                    fault.key,
                ) from error
            passed_over += [str(fault.key) for fault in faults]


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


def _decides_nothing(key: str | None) -> bool:
    """Whether no bit of a step hangs on a key: where processes run and what watches them."""
    return key is not None and any(key == table or key.startswith(f"{table}.") for table in _NOT_DECIDING)


def _take(raw: dict[str, Any], key: str | None) -> bool:
    """Take a key out of plain tables, with the whole list that it lies in; False where it is not there."""
    *tables, last = (key or "").partition("[")[0].split(".")
    where: Any = raw
    for table in tables:
        where = where.get(table) if isinstance(where, dict) else None
    return isinstance(where, dict) and where.pop(last, None) is not None


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
        ),
    )


def _benchmark(row: dict[str, Any]) -> CheckedAgainst:
    return CheckedAgainst(**{**row, "sources": tuple(row["sources"])})


def _name(attempt: int) -> str:
    return f"attempts/{attempt:05d}.setup"


def _recipe_name(attempt: int) -> str:
    return f"attempts/{attempt:05d}.toml"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
