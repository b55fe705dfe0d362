"""`sluice export OUT`, read from top to bottom: from a finished output to a folder that another tool reads.

    1. check     the options; the folder must be empty, or hold this export
    2. begin     the export is recorded in lineage before its first byte is written, so that no purge misses it
    3. write     one unit a few parts or a shard: files that appear whole, then a marker
    4. finish    what the format has once (index.json, README.md); then the manifest, which names every file
    5. record    the export is recorded as finished, with the version of the corpus that it holds

The same call after a kill continues. After a purge it writes again what the purge changed, and nothing else:
a purge makes the same call (clean.py)."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from rich.filesize import decimal

from lineage.exports.manifest import (
    MANIFEST,
    ExportedUnit,
    Manifest,
    encode_manifest,
    read_manifest,
    strays,
)
from lineage.exports.records import (
    BEGUN,
    FINISHED,
    TABLE,
    check_name,
    cover_exports,
    is_live,
    now,
    original_of,
    read_exports,
    record_export,
)
from lineage.ids import content_hash
from lineage.index.checksums import FileSum
from lineage.index.output_index import Index, check_outside, read_index
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder, is_remote
from lineage.storage.google_azure import clear_errors
from lineage.storage.lock import LEASE_FILE, can_be_held, hold
from lineage.store.checksum_update import WORK, is_covered
from lineage.store.rows import ExportRow
from pipeline.cluster.session import as_connected, units_session
from pipeline.export.formats.registry import FORMATS, check_request, reads_tokens
from pipeline.export.request import DEFAULT_FILE_DOCUMENTS, DTYPES, ExportRequest, parse_split
from pipeline.export.sink import ExportSink
from pipeline.export.units import ExportJob, ExportUnit, shard_units, sources_of, text_units, up_to_date
from pipeline.phases.phase import Phase, RunState, publish_result, run_phase
from pipeline.phases.progress import ProgressReporter
from pipeline.plan import RunPlan
from pipeline.recipe.tables import PipelineRecipe, RayTable, RunTable
from pipeline.results.run_summary import read_summary
from pipeline.terminal import counted

CLAIM: Final = "work/export.json"
"""Says in an unfinished folder which export it will hold."""
_WAIT_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusExport:
    """What is exported from the finished `out` to the folder `to`, under which name in lineage. `links`: a
    shard that is exported as it is may be another name of the same file."""

    out: Folder
    to: Folder
    name: str
    request: ExportRequest
    links: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """An export that is whole. `was_done`: it was before this call."""

    row: ExportRow
    was_done: bool


def corpus_export(
    out: Folder,
    to: Folder,
    *,
    format: str,
    name: str | None = None,
    sources: Sequence[str] = (),
    split: str | None = None,
    dtype: str = "auto",
    tokens: bool = False,
    file_documents: int = DEFAULT_FILE_DOCUMENTS,
    copy: bool = False,
) -> CorpusExport:
    """What a call asks for: `split` as train=0.99,test=0.01; without a `name` the last part of `to` is it; `copy`:
    no file of it is another name of one of the output's. RecipeError for what no export is."""
    if format not in FORMATS:
        raise RecipeError(f"--format {format}: expected one of {', '.join(FORMATS)}")
    if dtype not in DTYPES:
        raise RecipeError(f"--dtype {dtype}: expected one of {', '.join(DTYPES)}")
    if file_documents < 1:
        raise RecipeError(f"--file-documents {file_documents}: expected at least 1")
    request = ExportRequest(
        format=format,
        split=parse_split(split),
        dtype=dtype,
        tokens=tokens,
        sources=tuple(sorted(set(sources))),
        file_documents=file_documents,
    )
    return CorpusExport(
        out=out, to=to, name=name or to.url.rpartition("/")[2], request=request, links=not copy
    )


WriteAll = Callable[[ExportJob, Sequence[ExportUnit]], list[ExportedUnit]]
"""Writes units, in their order."""


def export(asked: CorpusExport, write_all: WriteAll) -> ExportResult:
    """Write an export, or continue it.

    RecipeError if the request, the folder or the name is wrong; NotFinishedError if the OUT has no index;
    HeldError if another writes to the folder; StorageError where a file cannot be written, with the first
    error of a unit."""
    index = read_index(asked.out)
    _check(asked, index)
    with clear_errors(asked.to), _alone(asked) as hold_out:
        held = _claimed(asked, index)
        row = _recorded(asked, held) if held is not None and held.version == index.version else None
        if held is not None and row is not None and held.files().keys() <= set(asked.to.names()):
            _remove_strays(asked.to, None, held)  # a backup may have brought some back
            if not is_covered(asked.out, (TABLE,)):
                with hold_out():
                    cover_exports(asked.out)
            return ExportResult(row=row, was_done=True)
        with hold_out():
            _begin(asked, index)
        while True:
            try:
                manifest = write_export(asked, index, write_all)
            except FileNotFoundError:
                newest = read_index(asked.out)
                if newest.version == index.version:
                    raise
                index = newest  # a purge has deleted what the other index names
                continue
            with hold_out():
                newest = read_index(asked.out)
                if newest.version == index.version:
                    row = record_export(asked.out, finished_row(asked, manifest))
                    return ExportResult(row=row, was_done=False)
            index = newest  # a purge came in between: what it changed is written again


@contextmanager
def _alone(asked: CorpusExport) -> Iterator[Callable[[], AbstractContextManager[object]]]:
    """Keep other exports and purges out of the folder while the block runs; gives what holds the OUT for a
    moment.

    A store in which no folder can be held is kept free by holding the OUT all the while: its purges and other
    exports wait, and an export of another OUT meets the claim."""
    held = partial(hold, asked.out, "sluice export", _WAIT_SECONDS)
    if can_be_held(asked.to):
        with hold(asked.to, "sluice export"):
            yield held
    else:
        with held():
            yield nullcontext


def on_ray(ray: RayTable, reporter: ProgressReporter) -> WriteAll:
    """Writes units as a Ray Data Dataset, many at once, skipping those whose marker stands; with
    `ray.address` "none" one after the other in this process."""

    def write_all(job: ExportJob, units: Sequence[ExportUnit]) -> list[ExportedUnit]:
        if not units:
            return []
        table = as_connected(ray)
        with units_session(table):
            return run_phase(_phase_run(job, table, reporter), _phase(job, units))

    return write_all


def in_process(job: ExportJob, units: Sequence[ExportUnit]) -> list[ExportedUnit]:
    """Writes units one after another in this process: for few."""
    return [write_unit(job, unit) for unit in units]


def _check(asked: CorpusExport, index: Index) -> None:
    """RecipeError where the request cannot be met, or the folder is no place for it."""
    check_request(asked.request, index.tokenizer.vocab_size)
    if reads_tokens(asked.request) and not index.has_tokens:
        raise RecipeError(
            f"--format {asked.request.format}: {asked.out.url} holds texts and no tokens (tokenize.off):"
            " choose a format of texts, or tokenize it with sluice run RECIPE --from"
            f" {shlex.quote(asked.out.url)}"
        )
    # Parts of sources have shards of their own, and no files of texts.
    known = sources_of(index) if reads_tokens(asked.request) else {part.source for part in index.documents}
    if unknown := sorted(set(asked.request.sources) - known):
        raise RecipeError(f"--source {unknown[0]}: expected one of {', '.join(sorted(known))}")
    FORMATS[asked.request.format].check(asked.out, asked.request)
    check_outside("--to", asked.to.url)
    _refuse_above(asked)


def _refuse_above(asked: CorpusExport) -> None:
    """RecipeError where OUT lies in the folder to write: its files would be taken for the export's."""
    if f"{asked.out.url}/".startswith(f"{asked.to.url}/"):
        raise RecipeError(
            f"--to {asked.to.url} holds the output {asked.out.url} itself: name a folder of its own"
        )


def write_export(asked: CorpusExport, index: Index, write_all: WriteAll) -> Manifest:
    """Bring the folder to what `index` says, and publish its manifest. The caller holds the folder."""
    planned = (
        shard_units(index, asked.request) if reads_tokens(asked.request) else text_units(index, asked.request)
    )
    before = read_manifest(asked.to)
    kept = {} if before is None else up_to_date(planned, before.units, set(asked.to.names()))
    job = _job(asked, index)
    written = write_all(job, [unit for unit in planned if unit.key not in kept])
    by_name = kept | {unit.unit: unit for unit in written}
    units = tuple(by_name[unit.key] for unit in planned)
    manifest = Manifest(
        name=asked.name,
        format=asked.request.format,
        options=asked.request.to_json(),
        corpus=_corpus(asked.out, index),
        version=index.version,
        units=units,
        index_files=_write_index_files(job, asked.to, units),
    )
    _remove_strays(asked.to, before, manifest)
    asked.to.sync_all(WORK)
    asked.to.publish(MANIFEST, encode_manifest(manifest))
    clear_work(asked.to)
    return manifest


def _job(asked: CorpusExport, index: Index) -> ExportJob:
    return ExportJob(
        out=asked.out.url,
        to=asked.to.url,
        request=asked.request,
        vocab_size=index.tokenizer.vocab_size,
        links=asked.links,
    )


def write_unit(job: ExportJob, unit: ExportUnit) -> ExportedUnit:
    """Write a unit's files, then its marker."""
    to = Folder(job.to)
    sink = ExportSink(to)
    FORMATS[job.request.format].write(job, unit, sink)
    made = ExportedUnit(unit=unit.key, inputs=unit.inputs, files=sink.files)
    return publish_result(to, unit.marker, made)


def _phase(job: ExportJob, units: Sequence[ExportUnit]) -> Phase[ExportJob, ExportUnit, ExportedUnit]:
    return Phase(
        name=f"export {job.request.format}",
        operator=f"export_{job.request.format}",
        kind="export",
        task=write_unit,
        result=ExportedUnit,
        job=job,
        units=units,
        size=lambda unit: unit.size,
        note=_note,
    )


def _note(units: Sequence[ExportedUnit], seconds: float) -> str:
    files = [file for unit in units for file in unit.files]
    num = sum(file.num_documents for file in files)
    return f"{counted(num, 'document')}, {decimal(int(sum(file.bytes for file in files) / seconds))}/s"


def _phase_run(job: ExportJob, ray: RayTable, reporter: ProgressReporter) -> RunState:
    """The runner of phases keeps its markers in the folder to write, not in the OUT, which is closed."""
    recipe = PipelineRecipe(
        run=RunTable(name=f"export {job.request.format}", output=job.to), source=(), ray=ray
    )
    plan = RunPlan(recipe=recipe, out=Folder(job.to), units=(), identity={}, key="")
    return RunState(plan=plan, reporter=reporter)


def _corpus(out: Folder, index: Index) -> str:
    """What an export is made of, for the time of all purges."""
    if index.has_tokens:
        return f"{index.order_fingerprint} {index.tokenizer.hash}"
    # Parts of texts do not say which of them are kept, and what does is rewritten by purges; what its run is
    # a function of stays.
    identity = json.dumps(read_summary(out).identity, sort_keys=True)
    return f"{index.order_fingerprint} {content_hash(identity.encode()).hex()}"


def same_corpus(manifest: Manifest, out: Folder, index: Index) -> bool:
    """Whether an export was made of this OUT, before or after whatever purges."""
    return manifest.corpus == _corpus(out, index)


def _claim(asked: CorpusExport, index: Index) -> dict[str, object]:
    return {
        "name": asked.name,
        "options": asked.request.to_json(),
        "corpus": _corpus(asked.out, index),
    }


def _claimed(asked: CorpusExport, index: Index) -> Manifest | None:
    """The manifest that the folder holds of this export. RecipeError if the folder holds something else."""
    to = asked.to
    manifest = read_manifest(to)
    if manifest is not None:
        held: dict[str, object] = {key: getattr(manifest, key) for key in ("name", "options", "corpus")}
    elif to.exists(CLAIM):
        held = json.loads(to.read(CLAIM))
    else:
        strangers = [found for found in to.names() if found != LEASE_FILE]
        if strangers:
            raise RecipeError(
                f"--to {to.url} is not empty (it holds {strangers[0]!r}) and holds no export: name a new"
                " folder, or empty this one"
            )
        return None
    _refuse_differences(
        asked, held, _corpus(asked.out, index), is_known=manifest is None or _is_known(asked, manifest.name)
    )
    return manifest


def _is_known(asked: CorpusExport, name: str) -> bool:
    """Whether lineage has an export of that name at the place that is asked for: it is recorded before its
    manifest is written. A copy of the OUT made before that, or a run of the same recipe, has none: its purges
    would not meet those of the OUT. A copy made after that has it too, and it stays the original's."""
    known = any((row.name, row.place) == (name, asked.to.url) for row in read_exports(asked.out))
    return known and original_of(asked.out, name, asked.to.url) is None


def _refuse_differences(
    asked: CorpusExport, held: Mapping[str, Any], corpus: str, *, is_known: bool = True
) -> None:
    """RecipeError unless the folder holds the export that is asked for, of whatever version of the corpus,
    and `is_known` to the OUT."""
    ours, theirs = asdict(asked.request), asdict(ExportRequest.from_json(held["options"]))
    found = [f"{key} = {theirs[key]!r}, not {ours[key]!r}" for key in ours if ours[key] != theirs[key]]
    if held["name"] != asked.name:
        found.insert(0, f"its name is {held['name']!r}, not {asked.name!r}")
    if held["corpus"] != corpus or not is_known:
        found.insert(0, "it is of another output")
    if found:
        raise RecipeError(
            f"--to {asked.to.url} holds another export ({'; '.join(found)}): name a new folder, or empty this one"
        )


def _recorded(asked: CorpusExport, manifest: Manifest) -> ExportRow | None:
    """The row of an export that is whole and recorded as it lies there."""
    for row in read_exports(asked.out):
        if (row.name, row.place, row.state, row.version) == (
            asked.name,
            asked.to.url,
            FINISHED,
            manifest.version,
        ):
            return row if row.manifest_hash == content_hash(asked.to.read(MANIFEST)).hex() else None
    return None


def _begin(asked: CorpusExport, index: Index) -> None:
    """Claim the folder and record that it will hold a copy, before the first byte of one. The caller holds
    the OUT."""
    rows = read_exports(asked.out)
    check_name(rows, asked.name, asked.to.url)
    if not asked.to.publish_new(CLAIM, json.dumps(_claim(asked, index), indent=1).encode()):
        _refuse_differences(asked, json.loads(asked.to.read(CLAIM)), _corpus(asked.out, index))
    if not any(is_live(row) and row.name == asked.name for row in rows):
        record_export(
            asked.out,
            ExportRow(
                name=asked.name,
                format=asked.request.format,
                place=asked.to.url,
                version=index.version,
                at=now(),
                num_documents=0,
                num_tokens=0,
                num_files=0,
                bytes=0,
                state=BEGUN,
                options=json.dumps(asked.request.to_json()),
                manifest_hash="",
                fact=0,
            ),
        )


def finished_row(asked: CorpusExport, manifest: Manifest) -> ExportRow:
    """What is to be recorded of an export that is whole."""
    return ExportRow(
        name=manifest.name,
        format=manifest.format,
        place=asked.to.url,
        version=manifest.version,
        at=now(),
        num_documents=manifest.num_documents,
        num_tokens=manifest.num_tokens,
        num_files=len(manifest.files()),
        bytes=manifest.num_bytes,
        state=FINISHED,
        options=json.dumps(dict(manifest.options)),
        manifest_hash=content_hash(encode_manifest(manifest)).hex(),
        fact=0,
    )


def _write_index_files(job: ExportJob, to: Folder, units: Sequence[ExportedUnit]) -> tuple[FileSum, ...]:
    files = sorted((file for unit in units for file in unit.files), key=lambda file: file.file)
    sums = []
    for name, data in sorted(FORMATS[job.request.format].index_files(job, files).items()):
        to.write(name, data)
        sums.append(FileSum(file=name, hash=content_hash(data).hex(), bytes=len(data)))
    return tuple(sums)


def _remove_strays(to: Folder, before: Manifest | None, manifest: Manifest) -> None:
    """Remove what units of an earlier state wrote and those of this one did not; and the index of a split
    that has no document any more, which would name files that are gone."""
    gone = before.files().keys() - manifest.files().keys() if before is not None else set()
    for name in sorted({*strays(to, manifest), *gone}):
        to.remove(name)


def clear_work(to: Folder) -> None:
    """Remove the markers and the claim, the claim last."""
    for name in to.names("work"):
        if name not in (CLAIM, LEASE_FILE):
            to.remove(name)
    to.sync()
    to.remove(CLAIM)
    if not is_remote(to.url):
        to.remove_tree("work")
    to.sync()
