"""What a run is going to do.

A run is a function of its recipe (less [ray]), its inputs, the files and earlier outputs that the recipe
names, and the versions of the libraries that shape bytes. All are recorded in work/plan.json before the first
unit and compared by every later call."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NoReturn

from lineage.ids import content_hash
from lineage.index.output_index import INDEX_FILE, Index, part_name, read_index
from lineage.index.parsed_texts import texts_name
from lineage.recipe import RecipeError, as_plain, errors_about
from lineage.secrets import recordable, redacted, without_secrets
from lineage.storage.folder import Folder, filesystem, is_remote, local_path, with_environment
from lineage.store.work import PLAN
from pipeline.inputs.bundles import bundled
from pipeline.inputs.files import CONNECTIONS, Input, input_size, input_version, list_inputs
from pipeline.inputs.kinds import check_converters, check_fields, check_kinds, of_records
from pipeline.inputs.revisions import Revisions
from pipeline.recipe.checks import MAX_FILES, check_output
from pipeline.recipe.load import recipe_of
from pipeline.recipe.tables import PipelineRecipe, SourceTable, effective_dedup, tables_of
from pipeline.results.run_summary import read_summary
from stages.dedup.minhash import scheme_name
from stages.libraries import OPTIONAL, libraries
from stages.reading.options import FileSpan
from stages.steps.catalogue import SHAPING, files_of, libraries_of
from stages.steps.model_step import WHERE_IT_RUNS
from stages.steps.user.user_code import CodeFile, function_files, function_libraries
from stages.tokens.tokenizer import TOKENIZER_FILES

_ENCODERS = "pipeline.models.encoder"

REVISIONS = "revisions"
"""In a run's identity, the commits of its hf:// inputs; not there where it has none."""
GAVE_UP = "work/gave-up"
"""There where the run ended behind its reading: with these inputs and settings it would do so again."""
UNIT_MARKER = "unit.json"
"""What the reading of an input file publishes last, in the folder of its unit."""
_WHOLE_HASH_BYTES = 64 << 20
_PROBE_BYTES = 64 << 10
_NUM_PROBES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One input file, or several small ones, and where its rows go: part `file_index` of `source`. With a `span`
    it is that span of a large file, and its results are merged with those of the other spans."""

    source_index: int
    file_index: int
    inputs: tuple[Input, ...]
    key: str
    span: FileSpan | None = None

    @property
    def source(self) -> str:
        return self.inputs[0].source

    @property
    def size(self) -> int:
        """Bytes of its files, or of its span."""
        if self.span is not None:
            return self.span.end - self.span.begin
        return sum(found.size for found in self.inputs)

    @property
    def shown(self) -> str:
        """Its files, for people."""
        num_more = len(self.inputs) - 1
        return self.inputs[0].url + (f" (or one of {num_more:,} files behind it)" if num_more else "")

    @property
    def folder(self) -> str:
        """Where the unit's own files lie, relative to OUT."""
        return f"work/units/{self.key}" + ("" if self.span is None else f".{self.span.name}")

    @property
    def part_file(self) -> str:
        """Where its clean texts lie."""
        if self.span is not None:
            return f"{self.folder}/part.parquet"
        return part_name("documents", self.source, self.file_index)

    @property
    def texts_file(self) -> str:
        """Where its parsed texts lie, if they are kept."""
        if self.span is not None:
            return f"{self.folder}/texts.parquet"
        return texts_name(self.source, self.file_index)

    @property
    def marker(self) -> str:
        """What its reading publishes last."""
        return f"{self.folder}/{UNIT_MARKER}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A whole run: its recipe, units in (source, file) order, and what it is a function of. `from_output` is
    the earlier output whose parsed texts are read in place of the inputs."""

    recipe: PipelineRecipe
    out: Folder
    units: tuple[Unit, ...]
    identity: Mapping[str, Any]
    key: str
    from_output: str | None = None

    @property
    def num_bytes(self) -> int:
        """Of all inputs, as they lie."""
        return sum(unit.size for unit in self.units)

    @property
    def num_files(self) -> int:
        """Input files."""
        return sum(len(unit.inputs) for unit in self.units)

    def group_of(self, unit: Unit) -> tuple[int, int]:
        """The group whose documents share shards with this unit's: (source_index, number)."""
        return unit.source_index, unit.file_index // self.recipe.tokenize.group_files


def plan_run(recipe: PipelineRecipe) -> RunPlan:
    """List and probe the inputs, hash the named files: the plan of this run. RecipeError names what is
    missing, and inputs that no reader is for or that lack a field."""
    revisions = Revisions(_recorded_revisions(recipe))
    inputs = readable_inputs(recipe, revisions)
    by_label = {_label(found): found for of_source in inputs for found in of_source}
    remote = {
        label: found for label, found in by_label.items() if is_remote(found.url) and found.records is None
    }
    # Servers are asked of many files at once: one after the other, 90,000 of a crawl would take an hour at
    # each call.
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        probes = dict(zip(remote, pool.map(_probed, remote.values()), strict=True))
    probes |= {label: _probed(found) for label, found in by_label.items() if label not in remote}
    bundles = [
        bundled(of_source, source.format) for source, of_source in zip(recipe.source, inputs, strict=True)
    ]
    return make_plan(recipe, bundles, probes, revisions=revisions.commits)


def readable_inputs(recipe: PipelineRecipe, revisions: Revisions) -> list[list[Input]]:
    """The input files of each source. RecipeError names what is missing, and inputs that no reader is for or that
    lack a field."""
    inputs = [_inputs_of(source, recipe.run.seed, revisions) for source in recipe.source]
    for source, of_source in zip(recipe.source, inputs, strict=True):
        if source.indexes:
            continue
        check_converters(of_source, source)
        check_kinds(of_source, source, recipe.limits)
        check_fields(of_records(of_source, source), source, recipe.limits)
    return inputs


def _inputs_of(source: SourceTable, seed: int, revisions: Revisions) -> list[Input]:
    if not source.indexes:
        return list_inputs(source, revisions)
    from pipeline.inputs.index import check_root, select_inputs  # few runs need DuckDB here

    inputs = select_inputs(source, seed, revisions)
    check_root(source, inputs)
    return inputs


def _recorded_revisions(recipe: PipelineRecipe) -> Mapping[str, str]:
    """The commits with which an earlier call of this run was planned; none before the first one."""
    if not any(
        entry.startswith("hf://") for source in recipe.source for entry in (*source.inputs, *source.indexes)
    ):
        return {}
    out = Folder(recipe.run.output)
    recorded: Mapping[str, Any] = {}
    if out.exists(INDEX_FILE):
        recorded = read_summary(out).identity
    elif out.exists(PLAN):
        recorded = json.loads(out.read(PLAN))
    found: Mapping[str, str] = recorded.get(REVISIONS, {})
    return found


def make_plan(
    recipe: PipelineRecipe,
    inputs: Sequence[Sequence[tuple[Input, ...]]],
    probes: Mapping[str, Any],
    from_output: str | None = None,
    revisions: Mapping[str, str] = MappingProxyType({}),
) -> RunPlan:
    """The plan of a run over these inputs of each source, those of one unit together, of which `probes` tell
    what they hold, by source and name; `revisions` are the commits at which those of the Hugging Face Hub are
    read.

    RecipeError where there are too many, or where an earlier output is not there or cannot be compared with.
    The places of `dedup.against` are absolute in the plan: purges and `verify` look there later, from any
    working folder."""
    for source, of_source in zip(recipe.source, inputs, strict=True):
        if len(of_source) > MAX_FILES:
            raise RecipeError(
                f"source.inputs of {source.name!r}: {len(of_source):,} files, expected at most {MAX_FILES:,}:"
                " make several sources, or several runs joined by dedup.against"
            )
    check_output(
        Folder(recipe.run.output).url
    )  # with the working folder, where the recipe names a path from there
    against = tuple(_absolute(url) for url in recipe.dedup.against)
    recipe = replace(recipe, dedup=replace(recipe.dedup, against=against))
    named = {_absolute(url): "purges.honour" for url in recipe.purges.honour}
    named |= {_absolute(url): "dedup.against" for url in recipe.dedup.against}
    outputs = {name: output_identity(name, key) for name, key in sorted(named.items())}
    _check_comparable(recipe)
    if from_output is not None:
        outputs[f"--from {from_output}"] = output_identity(from_output, "--from")
    identity = {
        "recipe": shaping_keys(recipe),
        "inputs": probes,
        "files": recordable(
            {name: _file_hash(name, key) for name, key in sorted(named_files(recipe).items())}
            | {file.name: _file_hash(file.path, "source.steps") for file in own_code(recipe)}
        ),
        "outputs": recordable(outputs),
        "versions": versions(
            *(encoder_libraries() if any(table.is_encoder for table in recipe.classifier) else ()),
            *function_libraries([step for source in recipe.source for step in source.steps]),
        ),
    }
    if revisions:
        identity[REVISIONS] = dict(sorted(revisions.items()))
    # What a run is called, where it writes and how much may be bad change no byte of a unit; a unit's key adds
    # what its own inputs hold.
    shaping = {k: v for k, v in identity.items() if k not in ("inputs", REVISIONS)}
    limits = {k: v for k, v in identity["recipe"]["limits"].items() if k != "max_bad_records"}
    shaping["recipe"] = {k: v for k, v in identity["recipe"].items() if k != "run"} | {
        "seed": recipe.run.seed,
        "limits": limits,
    }
    key = _digest(shaping)
    units = tuple(
        Unit(
            source_index=source_index,
            file_index=file_index,
            inputs=found,
            key=_unit_key(key, source_index, file_index, found, [probes[_label(each)] for each in found]),
        )
        for source_index, of_source in enumerate(inputs)
        for file_index, found in enumerate(of_source)
    )
    return RunPlan(
        recipe=recipe,
        out=Folder(recipe.run.output),
        units=units,
        identity=identity,
        key=key,
        from_output=from_output,
    )


def _check_comparable(recipe: PipelineRecipe) -> None:
    """RecipeError where an earlier output was not signed as this run signs: no text of it would be found
    near."""
    ours = effective_dedup(recipe)
    for url in ours.against:
        theirs = effective_dedup(recipe_of(Folder(url)))
        if ours.near and not theirs.near:
            raise RecipeError(
                f"dedup.against: {without_secrets(url)} was made without dedup.near, so it holds no"
                " signatures, and this run compares near texts: set dedup.near = false, or name an output"
                " that was made with dedup.near"
            )
        if ours.near and scheme_name(theirs) != scheme_name(ours):
            raise RecipeError(
                f"dedup.against: {without_secrets(url)} was signed as {scheme_name(theirs)}, this run as"
                f" {scheme_name(ours)}: give both the same dedup.scheme, num_perm, shingle and normalise"
            )


def _label(found: Input) -> str:
    return f"{found.source}/{found.name}"


def shaping_keys(recipe: PipelineRecipe) -> dict[str, Any]:
    """What a run is a function of: not where it and its models run, nor which engine compares, nor in how many
    spans a file is read. No secret is in it."""
    plain: dict[str, Any] = recordable(as_plain(recipe))
    del plain["ray"], plain["dedup"]["engine"], plain["run"]["unit_bytes"]
    for model in (*plain["classifier"], *plain["step"]):
        for name in WHERE_IT_RUNS:
            model.pop(name, None)
    return plain


class InputChangedError(OSError):
    """An input file is not, or no longer, what the run was planned with."""


def check_unchanged(plan_key: str, unit: Unit) -> None:
    """InputChangedError unless the unit's file is still what it was when the run was planned: its key says
    so.

    Called when the file has been read, so that nothing is published of bytes that no plan and no later call
    describes."""
    if any(found.records is not None for found in unit.inputs):
        return  # their records are in the unit's key, and each shows whether it is one
    probes = []
    for found in unit.inputs:
        try:
            size = input_size(found)
            probes.append(_probed(replace(found, size=size)))
        except FileNotFoundError as error:
            raise InputChangedError(
                f"{found.url} is gone: it was there when this run was planned. Put it back and make the same call"
                " again"
            ) from error
        if size != found.size:
            _raise_changed(found.url, f"it had {found.size:,} bytes and has {size:,}")
    if _unit_key(plan_key, unit.source_index, unit.file_index, unit.inputs, probes) != unit.key:
        _raise_changed(unit.shown, "its content is another")


def _raise_changed(shown: str, what: str) -> NoReturn:
    raise InputChangedError(
        f"{shown} changed after this run was planned: {what}. Put back what it held and make the same"
        " call again, or run into a new output"
    )


def _probed(found: Input) -> dict[str, object]:
    return {"bytes": found.size, "probe": probe(found)}


def _unit_key(
    plan_key: str, source_index: int, file_index: int, inputs: Sequence[Input], probes: Sequence[Any]
) -> str:
    return _digest([plan_key, source_index, file_index, [found.name for found in inputs], probes])


def named_files(recipe: PipelineRecipe) -> dict[str, str]:
    """Every file that the recipe names besides its inputs, and the key that names it: lists, models,
    tokenizers."""
    encoding = recipe.tokenize.encoding
    tokenizer = {encoding: "tokenize.encoding"} if encoding.endswith(TOKENIZER_FILES) else {}
    return tokenizer | files_of(tables_of(recipe))


def own_code(recipe: PipelineRecipe) -> list[CodeFile]:
    """The files of the user's own steps."""
    return function_files([step for source in recipe.source for step in source.steps])


def _absolute(url: str) -> str:
    return url if is_remote(url) else local_path(url)


def places_with_credentials(plan: RunPlan) -> list[str]:
    """The URLs of the recipe, and the inputs that its lists name, that hold credentials: without them,
    sorted."""
    places = {
        without_secrets(text) for text in _texts(as_plain(plan.recipe)) if without_secrets(text) != text
    }
    inputs = (found for unit in plan.units for found in unit.inputs)
    return sorted(places | {found.url for found in inputs if found.secret_url is not None})


def _texts(plain: Any) -> Iterator[str]:
    if isinstance(plain, str):
        yield plain
    elif isinstance(plain, dict):
        for value in plain.values():
            yield from _texts(value)
    elif isinstance(plain, list):
        for value in plain:
            yield from _texts(value)


def shaping_libraries() -> tuple[str, ...]:
    """Libraries whose release can change a byte of the result, by name."""
    return tuple(sorted({name for stage in SHAPING for name in libraries_of(stage)}))


def encoder_libraries() -> tuple[str, ...]:
    """Those of a classifier that is an encoder."""
    return libraries(_ENCODERS)


def versions(*more: str) -> dict[str, str]:
    """The versions that shape bytes: of libraries, of Python (whose release fixes its Unicode tables) and the
    processor's architecture."""
    found = {name: installed_version(name) for name in (*shaping_libraries(), "sluice", *more)}
    return found | {"python": platform.python_version(), "machine": platform.machine()}


@functools.cache
def installed_version(name: str) -> str:
    """Of an installed distribution; to find its metadata takes milliseconds."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        if name not in OPTIONAL:
            raise
        return "not installed"


def probe(found: Input) -> str:
    """A hash that changes when a file's content does: of the whole up to 64 MiB, of 16 spread windows beyond.
    A remote file is named by its ETag where it has one, or else by the time of its last change; one of which
    records are selected by these."""
    if found.records is not None:
        told = json.dumps([found.records.crawl, found.records.segment, found.records.digests])
        return f"{len(found.records)} records {content_hash(found.records.places + told.encode()).hex()}"
    if is_remote(found.url):
        # The same bytes on disk and in S3 must give the same unit, so an ETag that is not a plain MD5 is not
        # enough to tell them equal, but it is enough to tell that one URL still holds what it held.
        return f"etag {input_version(found)}"
    size = found.size
    with open(local_path(found.url), "rb") as file:
        if size <= _WHOLE_HASH_BYTES:
            return content_hash(file.read()).hex()
        windows = []
        for number in range(_NUM_PROBES):
            file.seek((size - _PROBE_BYTES) * number // (_NUM_PROBES - 1))
            windows.append(file.read(_PROBE_BYTES))
        return content_hash(b"".join(windows)).hex()


def _file_hash(name: str, key: str) -> str:
    with errors_about(key):
        url = with_environment(name)
    try:
        with filesystem(url).open(url if is_remote(url) else local_path(url), "rb") as file:
            return content_hash(file.read()).hex()
    except (OSError, ValueError) as error:
        message = (
            f"{key} names the file {without_secrets(name)!r}, which cannot be read: {redacted(str(error))}"
        )
        raise RecipeError(message) from None


def output_identity(url: str, key: str) -> str:
    """What an output holds now, in a line; RecipeError, naming the `key` that names it, if it holds no
    finished run."""
    try:
        index = read_index(Folder(url))
    except (OSError, ValueError) as error:
        shown = without_secrets(url)
        raise RecipeError(
            f"{key} names the output {shown!r}, which holds no finished run: {error}"
        ) from error
    return held_by(index)


def held_by(index: Index) -> str:
    """What the output of this index holds, in a line."""
    return f"{index.order_fingerprint} {index.content_fingerprint} version {index.version}"


def _digest(value: Any) -> str:
    return content_hash(json.dumps(value, sort_keys=True, ensure_ascii=True).encode()).hex()
