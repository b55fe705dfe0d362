"""The facts of a run: first to `<output>/lineage.jsonl`, then to the store of each output that it reads.

A fact is a line; the newest line about a thing counts. A store that is down or read-only stops no training:
the next start commits what is still missing, and `sluice trace --runs DIR` reads the lines."""

from __future__ import annotations

import datetime
import json
import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa
from deltalake.exceptions import DeltaError

from lineage.index.output_index import INDEX_FILE
from lineage.json_record import JsonRecord
from lineage.recipe import RecipeError
from lineage.storage import objects
from lineage.storage.folder import Folder
from lineage.storage.lock import hold
from lineage.store import delta as store
from lineage.store.checksum_update import is_covered, update_table_checksums
from lineage.store.tables import SCHEMAS
from trainer.attempts import check_fence
from trainer.data.corpus import CorpusOutput
from trainer.order import ORDER_VERSION, OrderPlan

FACTS_FILE: Final = "lineage.jsonl"
_OWNER: Final = "attempts/run"
"""Beside the attempts, whose they all are."""
_TABLES: Final = ("training_runs", "training_segments", "cache_sweeps")
_LOCK_SECONDS: Final = 20.0
_STORE_IS_DOWN: Final = (store.StoreError, OSError, DeltaError)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFact(JsonRecord):
    """A run and the plan of its order; again when later segments of the plan were edited."""

    run: str
    output: str
    plan_fingerprint: str
    order_version: int
    seed: int
    seq_len: int
    global_batch: int
    plan: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFact(JsonRecord):
    """A stretch of one attempt with one mixture and one content, for one output read.

    Steps first_step to last_step (inclusive; first_step - 1: none yet) were fed; `skipped_steps` of them were
    not applied. `last_checkpoint`: steps done at the attempt's newest checkpoint."""

    run: str
    attempt: int
    parent_attempt: int | None
    out: str
    prefix: str
    content_fingerprint: str
    weights: tuple[tuple[str, float], ...]
    first_sequence: int
    first_step: int
    last_step: int
    skipped_steps: tuple[int, ...] = ()
    last_checkpoint: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFact(JsonRecord):
    """A cache folder that holds nothing but what the outputs' indexes name."""

    run: str
    out: str
    host: str
    folder: str
    content_fingerprint: str
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFact(JsonRecord):
    """How an attempt began: by which recipe and, where it did not go on from a checkpoint, with which
    weights: the place that `train.init_from` names and the digest of it, None for the seed's. It stands in
    the output alone."""

    run: str
    attempt: int
    recipe_hash: str
    init_from: str | None
    init_digest: str | None


Fact = RunFact | StartFact | SegmentFact | SweepFact
_KINDS: Final[dict[Literal["run", "start", "segment", "sweep"], type[Fact]]] = {
    "run": RunFact,
    "start": StartFact,
    "segment": SegmentFact,
    "sweep": SweepFact,
}


def run_fact(run: str, output: Folder, plan: OrderPlan) -> RunFact:
    """The fact of a run with this plan; its fingerprint covers every segment."""
    return RunFact(
        run=run,
        output=output.url,
        plan_fingerprint=plan.fingerprint(1 << 62),
        order_version=ORDER_VERSION,
        seed=plan.seed,
        seq_len=plan.seq_len,
        global_batch=plan.global_batch,
        plan=plan.to_json(),
    )


def sweep_fact(run: str, output: CorpusOutput, folder: str) -> SweepFact:
    """The fact that this host's cache at `folder` was swept for `output`, now."""
    at = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return SweepFact(
        run=run,
        out=output.url,
        host=socket.gethostname(),
        folder=folder,
        content_fingerprint=output.content_fingerprint,
        at=at,
    )


class FactLog:
    """`<output>/lineage.jsonl`; without `attempt`, for reading only. What an attempt adds comes after all
    that is there by then, and it adds nothing once a later attempt has begun."""

    def __init__(self, output: Folder, attempt: int | None = None) -> None:
        self._output, self._attempt = output, attempt
        self._lines = _lines_in(output)

    def add(self, *facts: Fact) -> None:
        """Write the facts down, durably, before anything else. FencedOutError: a later attempt has begun."""
        kinds = {shape: kind for kind, shape in _KINDS.items()}
        more = [
            json.dumps({"fact": kinds[type(fact)], **fact.to_json()}, separators=(",", ":")).encode()
            for fact in facts
        ]
        if self._output.is_remote:
            while not self._put_behind(more):  # another attempt was faster: what it wrote comes first
                pass
        else:
            with hold(self._output, "sluice train", wait_seconds=_LOCK_SECONDS):
                self._check_fence()
                self._lines = [*_lines_in(self._output), *more]
                # Whole files only: a killed process leaves the old lines or the new, never half of one.
                self._output.publish(FACTS_FILE, _joined(self._lines))

    def facts(self) -> list[tuple[int, Fact]]:
        """Every fact with its number, in the order they were written. StoreError where a line is damaged."""
        found = []
        for number, line in enumerate(self._lines):
            try:
                found.append((number, _parse(line)))
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise store.StoreError(
                    f"line {number + 1} of {self._output.at(FACTS_FILE)} is damaged ({error}): restore the file"
                ) from error
        return found

    def _put_behind(self, more: list[bytes]) -> bool:
        url = self._output.at(FACTS_FILE)
        stored = objects.get(url)
        # Asked after reading: an attempt that claims the run from here on writes later, and this put fails or
        # is seen.
        self._check_fence()
        lines = [*(stored.data.splitlines() if stored else ()), *more]
        data = _joined(lines)
        etag = objects.put_over(url, data, stored.etag) if stored else objects.put_new(url, data)
        if etag is not None:
            self._lines = lines
        return etag is not None

    def _check_fence(self) -> None:
        assert self._attempt is not None, "a log that was opened for reading"
        check_fence(self._output, self._attempt)


def _lines_in(output: Folder) -> list[bytes]:
    return output.read(FACTS_FILE).splitlines() if output.exists(FACTS_FILE) else []


def _joined(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def _parse(line: bytes) -> Fact:
    fields = json.loads(line)
    return _KINDS[fields.pop("fact")].from_json(fields)


def ablation_name(run: str, point: str) -> str:
    """The name of a proxy's run in an ablation that chooses the mixture of `run`; a certificate knows it by that."""
    return f"{run}-mix-{point}"


def claim_output(run: str, output: Folder) -> None:
    """Make an output that run's own, once and for all, before an attempt begins in it. RecipeError as of
    `check_output`; of two runs that claim it at once one gets it."""
    check_output(run, output)
    output.publish_new(_OWNER, json.dumps({"run": run}).encode())
    check_output(run, output)


def check_output(run: str, output: Folder) -> None:
    """RecipeError where the output is another run's: this one would go on from its weights, and what either
    read would be told of one of them only."""
    if (owner := owner_of(output)) not in (None, run):
        raise RecipeError(
            f"run.name = {run!r}: train.output = {output.url!r} holds the run {owner!r}: give that run.name to"
            " go on with it, or another train.output to begin a run",
            "run.name",
        )


def owner_of(output: Folder) -> str | None:
    """The name of the run that claimed an output; None where none has."""
    return str(json.loads(output.read(_OWNER))["run"]) if output.exists(_OWNER) else None


def require_run(output: Folder) -> str:
    """The name of the run whose output a folder is; RecipeError where it is none's. Asked before anything
    loads torch."""
    if (owner := owner_of(output)) is None:
        raise RecipeError(f"{output.url} is not the output of a training run (train.output)")
    return owner


def recorded_places(output: Folder) -> tuple[str, ...]:
    """Where a run's output lay when its attempts began, by its facts: elsewhere, if it is a copy, or was
    moved, or is reached by a link."""
    return tuple(
        dict.fromkeys(fact.output for _, fact in FactLog(output).facts() if isinstance(fact, RunFact))
    )


def outs_read(output: Folder) -> list[str]:
    """Every output of the data pipeline that the run read, by its own facts. One that an earlier attempt read, and
    that is gone, has moved: the newest attempt, which reads all of the run's data, names where it lies now."""
    facts = [fact for _, fact in FactLog(output).facts() if isinstance(fact, SegmentFact)]
    newest = max((fact.attempt for fact in facts), default=0)
    now = {fact.out for fact in facts if fact.attempt == newest}
    recorded = dict.fromkeys(fact.out for fact in facts)
    return [out for out in recorded if out in now or Folder(out).exists(INDEX_FILE)]


def outs_to_read(output: Folder, outs: Sequence[str]) -> Sequence[str]:
    """`outs` where they are given, or else every output that the run read; RecipeError where its facts name
    none."""
    read = outs or outs_read(output)
    if not read:
        raise RecipeError(
            f"{output.at(FACTS_FILE)} says nothing of what the run read: it is damaged, or was replaced"
        )
    return read


def check_name(run: str, output: Folder, outputs: Sequence[CorpusOutput]) -> None:
    """StoreError if a store that can be read has `run` with another output than ours."""
    for out in outputs:
        try:
            known = store.read_table(Folder(out.url), "training_runs").to_pylist()
        except _STORE_IS_DOWN as error:
            _log.warning("the lineage store of %s cannot be read: %s", out.url, error)
            continue
        for row in known:
            if row["run"] == run and row["output"] != output.url:
                raise store.StoreError(
                    f"run {run!r} is recorded in {out.url} with the output {row['output']!r}, not"
                    f" {output.url!r}: {_way_out(output, row['output'])}"
                )


def _way_out(output: Folder, recorded: str) -> str:
    if recorded not in recorded_places(output):
        return "give this run another run.name"
    if Folder(recorded).exists(FACTS_FILE):
        return f"it is a copy of that one, which alone can go on; train into {recorded}"
    return (
        f"it was moved from there, and a run goes on at the one place where trace and purge look for what it read;"
        f" make {recorded} a link to it, and name that as train.output"
    )


def commit(log: FactLog, outputs: Sequence[CorpusOutput]) -> bool:
    """Commit what each output's store lacks of the newest facts; False if a store could not take them."""
    whole = True
    for output in outputs:
        folder = Folder(output.url)
        try:
            with hold(folder, "sluice train", wait_seconds=_LOCK_SECONDS):
                if _commit_into(folder, log.facts()) or not is_covered(folder, _TABLES):
                    update_table_checksums(folder, _TABLES)
        except _STORE_IS_DOWN as error:
            _log.warning(
                "the lineage store of %s did not take the facts; the next start will: %s", folder.url, error
            )
            whole = False
    return whole


def _commit_into(out: Folder, facts: list[tuple[int, Fact]]) -> bool:
    added = _commit_plans(out, [fact for _, fact in facts if isinstance(fact, RunFact)])
    newest: dict[tuple[object, ...], tuple[int, SegmentFact | SweepFact]] = {}
    for number, fact in facts:
        if isinstance(fact, SegmentFact) and Folder(fact.out).url == out.url:
            newest[fact.attempt, fact.first_step] = (number, fact)
        elif isinstance(fact, SweepFact) and Folder(fact.out).url == out.url:
            newest[fact.host, fact.folder] = (number, fact)
    for number, fact in newest.values():
        if isinstance(fact, SegmentFact):
            table, row = "training_segments", segment_row(number, fact)
        else:
            table, row = "cache_sweeps", {name: getattr(fact, name) for name in SCHEMAS["cache_sweeps"].names}
        rows = pa.Table.from_pylist([row], SCHEMAS[table])
        added |= store.append(out, table, rows, f"{fact.run}:{table}:{number}")
    return added


def _commit_plans(out: Folder, runs: list[RunFact]) -> bool:
    """Commit the newest plan, and before it those that the store lacks: it was down while their attempts
    ran."""
    added = False
    schema = pa.schema([field for field in SCHEMAS["training_runs"] if field.name != "fact"])
    newest = runs[-1:]
    earlier = {
        run.plan_fingerprint: run for run in runs if run.plan_fingerprint != newest[0].plan_fingerprint
    }
    rows = store.read_table(out, "training_runs").to_pylist() if earlier else ()
    known = {(row["run"], row["plan_fingerprint"]) for row in rows}  # another run may have the same plan
    for run in (*(run for run in earlier.values() if (run.run, run.plan_fingerprint) not in known), *newest):
        row = {name: getattr(run, name) for name in schema.names}
        added |= store.append_run(out, pa.Table.from_pylist([row], schema))
    return added


def segment_row(number: int, fact: SegmentFact) -> dict[str, object]:
    """The row of `training_segments` for fact `number`."""
    row: dict[str, object] = {
        name: getattr(fact, name)
        for name in SCHEMAS["training_segments"].names
        if name not in ("fact", "weights", "skipped_steps")
    }
    weights = json.dumps(dict(fact.weights), sort_keys=True)
    return {**row, "fact": number, "weights": weights, "skipped_steps": json.dumps(list(fact.skipped_steps))}
