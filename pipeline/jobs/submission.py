"""What a submission ships: the command rewritten for its job's working folder, and the files that go there.

Nothing here talks to a cluster (`pipeline.jobs.cluster_jobs` does). A submission is a function of its
command, the recipe, the files that they name and the project's own code; the job's id is a hash of these, so
submitting twice finds the same job."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

import tomli_w

from lineage.ids import content_hash
from lineage.recipe import RecipeError, as_plain
from lineage.secrets import holds_secrets, without_secrets
from lineage.storage.folder import is_remote
from pipeline.jobs.settings import SETTINGS
from pipeline.plan import named_files, own_code
from pipeline.recipe import load as data_recipe
from pipeline.recipe.tables import PipelineRecipe
from stages.steps.models.encoder_folder import encoder_files
from trainer.options import TrainRecipe, load_train_recipe

SUBMITTABLE: Final = ("run", "train", "mix", "scan", "purge", "report", "verify", "export")
"""Commands that read and write URLs only, besides files small enough to ship."""
_OF_NOW: Final = ("scan", "purge", "report", "verify", "export")
"""Commands whose answer is of what an output holds at that moment: it may differ after a purge, or from a
backup."""
READ_FROM_HERE: Final = ("explain", "lineage", "tokenizer", "trace", "tune")
"""Commands that read a little of an output and answer the person who calls them."""
PACKAGES: Final = ("lineage", "stages", "pipeline", "trainer", "sluice")
MAX_SHIPPED_BYTES: Final = 400_000_000
"""Ray refuses packages above 500 MiB."""
_SHIPPED_OPTIONS: Final = (
    "against",
    "control",
    "scan",
    "weights",
    "losses",
    "test_weights",
    "test_losses",
    "tokenizer",
)
_LASTING_OPTIONS: Final = ("out", "to", "from_output", "runs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """`arguments` is the command as the job runs it; `files` maps names in the job's working folder to
    contents; `project` is a hash of the code that is shipped, or "image"; `output` is the place that the
    command writes to."""

    command: str
    arguments: tuple[str, ...]
    files: Mapping[str, bytes]
    project: str = "image"
    output: str | None = None

    @property
    def id(self) -> str:
        """The same for equal content; later tries get a suffix. Keys and tokens are no part of it."""
        hashes = {name: content_hash(data).hex() for name, data in self.files.items()}
        content = json.dumps([self.arguments, hashes, self.project], sort_keys=True)
        return f"sluice-{self.command}-{content_hash(content.encode()).hex()[:12]}"

    @property
    def is_of_now(self) -> bool:
        """Whether the same submission, carried out later, may come to something else."""
        return self.command in _OF_NOW

    @property
    def entrypoint(self) -> str:
        """The job's shell command."""
        return "python -m pipeline.on_cluster " + shlex.join(self.arguments)


ParseCommand = Callable[[str, Sequence[str]], argparse.Namespace]
"""(a command's name, its arguments) -> its options, as the command line reads them."""


def make_submission(argv: Sequence[str], parse: ParseCommand, *, ship_project: bool) -> Submission:
    """`argv` (a sluice command with its arguments) for a cluster. RecipeError where the command cannot run
    there, the recipe is wrong, or a place would not outlive the job."""
    command, *rest = argv or [""]
    if command in READ_FROM_HERE:
        raise RecipeError(
            f"cannot submit {command!r}: it reads s3:// from here, so call sluice {command} itself"
        )
    if command not in SUBMITTABLE:
        raise RecipeError(f"cannot submit {command!r}: expected one of {', '.join(SUBMITTABLE)}")
    options = parse(command, rest)
    rest = _renamed(rest, getattr(options, "expanded", {}))  # a home there is another one
    files: dict[str, bytes] = {}
    for option in (*_LASTING_OPTIONS, *_SHIPPED_OPTIONS):
        for place in _values_of(options, option):
            _check_no_secrets(place, _shown_option(option))
    for option in _LASTING_OPTIONS:
        for place in _values_of(options, option):
            _check_lasting(place, _shown_option(option))
    paths = [path for option in _SHIPPED_OPTIONS for path in _values_of(options, option)]
    names = _ship_files(paths, files)
    if getattr(options, "recipe", None) is not None:
        rest = _without_overrides(rest)
        name, data = _ship_recipe(command, options, files)
        names[options.recipe] = _add(files, name, data)
    submission = Submission(
        command=command,
        arguments=(command, *_renamed(rest, names)),
        files=files,
        output=_output(command, options),
    )
    if ship_project:
        project = project_files()
        clash = sorted(files.keys() & project.keys())
        if clash:
            raise RecipeError(
                f"{clash[0]} would overwrite a file of Sluice in the job: call it something else"
            )
        submission = replace(submission, files={**project, **files}, project="shipped")
    _check_size(submission.files)
    return submission


def _output(command: str, options: argparse.Namespace) -> str | None:
    """Where a command writes: OUT, or what it is exported to."""
    if command == "run":
        place: str | None = data_recipe.load(options.recipe, options.overrides).run.output
    elif getattr(options, "recipe", None) is not None:
        place = load_train_recipe(options.recipe, options.overrides).train.output
    else:
        place = getattr(options, "to", None) or getattr(options, "out", None)
    return None if place is None else without_secrets(place)


def _values_of(options: argparse.Namespace, option: str) -> list[str]:
    """What an option was given: once, several times, or not at all."""
    value = getattr(options, option, None)
    if value is None:
        return []
    return [value] if isinstance(value, str) else list(value)


def _shown_option(option: str) -> str:
    """How the command line calls an option."""
    return {"out": "OUT", "from_output": "--from"}.get(option, f"--{option.replace('_', '-')}")


def write_package(submission: Submission, settings: Mapping[str, str], folder: Path) -> None:
    """Lay the job's working folder out in `folder`; the settings are readable by their owner only."""
    for name, data in submission.files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    if settings:
        secret = folder / SETTINGS
        secret.touch(mode=0o600)
        secret.write_text(json.dumps(dict(settings)), encoding="utf-8")


def project_files() -> dict[str, bytes]:
    """Sluice's own code, and the metadata by which its version is found where it is not installed."""
    root = Path(__file__).resolve().parents[2]
    files = {
        path.relative_to(root).as_posix(): path.read_bytes()
        for package in PACKAGES
        for path in sorted((root / package).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    version = importlib.metadata.version("sluice")
    metadata = f"Metadata-Version: 2.1\nName: sluice\nVersion: {version}\n"
    return files | {f"sluice-{version}.dist-info/METADATA": metadata.encode()}


def _without_overrides(rest: Sequence[str]) -> list[str]:
    """The arguments less `--set`: the shipped recipe has them applied."""
    overrides = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    overrides.add_argument("--set", action="append")
    return overrides.parse_known_args(list(rest))[1]


def _ship_recipe(command: str, options: argparse.Namespace, files: dict[str, bytes]) -> tuple[str, bytes]:
    """The resolved recipe under the name it has in the job; the files that it names go into `files`."""
    if command == "run":
        data = data_recipe.load(options.recipe, options.overrides)
        _check_data_places(data)
        for code in own_code(data):
            if not code.is_library:  # the nodes' image has what is installed
                _add(files, code.name, Path(code.path).read_bytes())
        names = _ship_files(sorted(named_files(data)), files) | _ship_encoders(data, files)
        data = replace(data, ray=replace(data.ray, address="auto"))
        plain = _with_names(as_plain(data), names, keep=("run", "source"))
    else:
        train = load_train_recipe(options.recipe, options.overrides)
        _check_train_places(train)
        models = [train.train.model, train.mix.proxy.model if train.mix is not None else ""]
        named = _ship_files([model for model in models if model.endswith(".json")], files)
        train = replace(train, ray=replace(train.ray, address="auto"))
        plain = _with_names(as_plain(train), named, keep=("run",))
    _check_no_secrets(plain, "")
    text = tomli_w.dumps(plain).encode()
    return shipped_name(options.recipe, text), text


def _ship_encoders(recipe: PipelineRecipe, files: dict[str, bytes]) -> dict[str, str]:
    """Add the local folders of encoders, each under one name in the job; what each is called there."""
    names = {}
    for table in recipe.classifier:
        if is_remote(table.model) or not table.is_encoder:
            continue
        paths = [Path(path.removeprefix("file://")) for path in encoder_files(table.model)]
        folder = shipped_name(
            table.model.removeprefix("file://"), b"".join(path.read_bytes() for path in paths)
        )
        for path in paths:
            _add(files, f"{folder}/{path.name}", path.read_bytes())
        names[table.model] = folder
    return names


def _check_data_places(recipe: PipelineRecipe) -> None:
    _check_lasting(recipe.run.output, "run.output")
    for source in recipe.source:
        for place in source.inputs:
            _check_lasting(place, f"source.inputs of {source.name!r}")
        for place in (*source.indexes, *([source.root] if source.root is not None else [])):
            _check_lasting(place, f"source.index of {source.name!r}")
    for where, places in (("dedup.against", recipe.dedup.against), ("purges.honour", recipe.purges.honour)):
        for place in places:
            _check_lasting(place, where)


def _check_train_places(recipe: TrainRecipe) -> None:
    table = recipe.train
    for data in table.outs:
        _check_lasting(data.out, "train.data")
    for where, place in (
        ("train.output", table.output),
        ("train.checkpoint.path", table.checkpoint.path),
        ("train.init_from", table.init_from),
        ("train.cache.dir", table.cache.dir),
    ):
        _check_lasting(place, where)


def _check_lasting(place: str | None, where: str) -> None:
    if place is None or is_remote(place) or os.path.isabs(place.removeprefix("file://")):
        return
    raise RecipeError(
        f"{where} = {place!r} is relative to this folder, which the cluster does not see: give an s3:// or"
        " https:// URL, or the absolute path of a file system that every node shares"
    )


def _check_no_secrets(value: object, where: str) -> None:
    """RecipeError where a string holds credentials: the job's package and its command lie readable on the
    cluster."""
    if isinstance(value, Mapping):
        for name, one in value.items():
            _check_no_secrets(one, f"{where}.{name}".removeprefix("."))
    elif isinstance(value, (list, tuple)):
        for number, one in enumerate(value):
            _check_no_secrets(one, f"{where}.{number}")
    elif isinstance(value, str) and holds_secrets(value):
        raise RecipeError(
            f"{where} = {without_secrets(value)!r} holds credentials, which the job's package would show on the"
            " cluster: write ${SLUICE_SECRET_LOGIN} before @ or ${SLUICE_SECRET_SIGNED} behind ? in their"
            " place, and"
            " set that variable in this shell"
        )


def shipped_name(path: str, data: bytes) -> str:
    """Where a file lies in the job's folder: where it lies here if that is below the working folder, so that
    the recipe stays as it is; else in a folder named by its content, under its own name, since a run's index
    names its tokenizer."""
    relative = PurePosixPath(os.path.normpath(path))
    if not relative.is_absolute() and ".." not in relative.parts:
        return str(relative)
    return f"files/{content_hash(data).hex()[:12]}/{relative.name}"


def _ship_files(paths: Sequence[str], files: dict[str, bytes]) -> dict[str, str]:
    """Add the local ones of `paths` to `files`; what each is called in the job."""
    names = {}
    for path in paths:
        if is_remote(path):
            continue
        try:
            data = Path(path.removeprefix("file://")).read_bytes()
        except OSError as error:
            raise RecipeError(f"{path} cannot be read, so it cannot be shipped: {error}") from error
        names[path] = _add(files, shipped_name(path.removeprefix("file://"), data), data)
    return names


def _add(files: dict[str, bytes], name: str, data: bytes) -> str:
    if files.get(name, data) != data:
        raise RecipeError(f"the command and its recipe use {name} for two things: rename one")
    files[name] = data
    return name


def _renamed(arguments: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """`arguments` with paths replaced, alone or after `--option=`."""
    found = []
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if option.startswith("--") and equals and value in names:
            found.append(f"{option}={names[value]}")
        else:
            found.append(names.get(argument, argument))
    return found


def _with_names(plain: dict[str, object], names: Mapping[str, str], keep: Sequence[str]) -> dict[str, object]:
    """The plain recipe with every path in `names` replaced, tables in `keep` aside."""

    def renamed(value: Any) -> Any:
        if isinstance(value, str):
            return names.get(value, value)
        if isinstance(value, dict):
            return {name: renamed(item) for name, item in value.items()}
        return [renamed(item) for item in value] if isinstance(value, list) else value

    return {table: value if table in keep else renamed(value) for table, value in plain.items()}


def _check_size(files: Mapping[str, bytes]) -> None:
    total = sum(map(len, files.values()))
    if total > MAX_SHIPPED_BYTES:
        largest = max(files, key=lambda name: len(files[name]))
        raise RecipeError(
            f"the submission would ship {total:,} bytes, at most {MAX_SHIPPED_BYTES:,} can be; the largest is"
            f" {largest}"
            f" ({len(files[largest]):,}). Put it on a file system that every node shares, or into the image."
        )
