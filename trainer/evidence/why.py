"""Why a step came out as it did: its data, or what computed it.

A replay from the checkpoint before gives the step's loss by row and by document, and norms by layer. If it
gives the recorded numbers of every step again, to the bit, the data made them. If it does not, something
computed wrongly, then or now: a second replay that agrees with the first says that it was then (transient);
one that does not, that it still does (persistent). With `train.record_losses` the rows of the first step that
differs name the ranks that had them. No torch here: the replay comes as a function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
import pyarrow.parquet as pq

from lineage.index.output_index import read_index
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.storage.places import shown_place
from lineage.store.lookup import Lookup
from lineage.store.rows import Span
from trainer.checkpoint.store import Checkpoint, newest_with_files
from trainer.data.asked_order import make_order
from trainer.data.corpus import Corpus, open_corpus
from trainer.data.row_loss import RowLoss
from trainer.evidence.observed import Observed, ObservedStep, ObserveRequest
from trainer.evidence.origin import origin_of
from trainer.huggingface.model_card import checkpoints_of, read_card
from trainer.options import TrainRecipe
from trainer.provenance.facts import FactLog, SegmentFact, owner_of
from trainer.provenance.setup import Hardware, Setup, located_at, make_setup, read_recipe, read_setup
from trainer.telemetry.metrics_file import read_reports
from trainer.telemetry.step_report import StepReport

Cause = Literal["data", "hardware", "unknown"]
Duration = Literal["transient", "persistent"]

_USUAL_STEPS: Final = 16
"""Steps before it, of whose losses a source's usual one is the mean: few, since losses fall fast early in a
run, and a usual loss that is too high ranks short documents first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedStep:
    """A step of a run that is to be done again. `attempt` did it last; `recorded` are the reports of the
    steps from the checkpoint on, `before` those of the steps before it; `changed` says what is not as it was
    then: then a difference proves nothing."""

    output: Folder
    recipe: TrainRecipe
    setup: Setup | None
    attempt: int
    step: int
    checkpoint: Checkpoint | None
    recorded: Mapping[int, StepReport]
    before: Sequence[StepReport]
    changed: tuple[str, ...]

    @property
    def read(self) -> tuple[str, ...]:
        """The folders that a replay reads: the weights that it begins with, and the data."""
        table = self.recipe.train
        begins = table.init_from
        if self.checkpoint is not None:
            begins = Folder(table.checkpoint.path or self.output.at("checkpoints")).at(self.checkpoint.name)
        return tuple(shown_place(Folder(url)) for url in (begins, *(data.out for data in table.outs)) if url)

    @property
    def request(self) -> ObserveRequest:
        """What a replay is asked for."""
        hardware = None if self.setup is None else self.setup.hardware
        return ObserveRequest(
            checkpoint=None if self.checkpoint is None else self.checkpoint.name,
            step=self.step,
            num_threads=0 if hardware is None else hardware.num_threads,
        )


Replay = Callable[[ReplayedStep], tuple[Observed, Hardware]]
"""Does the steps again on the run's layout: what was seen, and what computed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentInStep:
    """A document's part of a row. `loss`: nats a counted label; `usual` that of its source; `excess`: what it
    adds to the sum of the step's losses beyond the usual, by which documents are ranked. `doc_id` in hex;
    None where lineage has none, as for what was purged since."""

    doc_id: str | None
    url: str | None
    out: str | None
    source: str
    row: int
    first_token: int
    num_labels: int
    loss: float
    usual: float
    excess: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RowInStep:
    """A row of the batch: `loss` in nats a counted label."""

    row: int
    sequence: int
    source: str
    shard: int
    start: int
    num_tokens: int
    num_labels: int
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`cause`, and why. Of hardware: the first step that differs, the ranks that computed its differing rows
    (none where they cannot be told), and whether a second replay agrees with the first."""

    cause: Cause
    why: str
    first_step: int | None = None
    ranks: tuple[int, ...] = ()
    duration: Duration | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyStep:
    """All that is known of a step. `read`: the folders that the replay read; `recorded_loss`: None where it
    was not finite, or no attempt has recorded it. Documents come by what they add, the most first; rows by
    their loss."""

    run: str
    output: str
    read: tuple[str, ...]
    step: int
    attempt: int
    replayed_from: str | None
    num_replayed: int
    skipped: str | None
    recorded_loss: float | None
    loss: float | None
    gradient_norm: float | None
    lr: float | None
    verdict: Verdict
    layers: Mapping[str, float]
    usual: Mapping[str, float]
    rows: tuple[RowInStep, ...]
    documents: tuple[DocumentInStep, ...] = field(default=())


def ask_why(output: Folder, step: int, recipe: TrainRecipe | None = None) -> ReplayedStep:
    """A step that a run has done. `recipe`: the run's, where its attempts recorded none.

    RecipeError where it is no run's output, the step is not recorded, or the recipe is not known."""
    run = owner_of(output)
    if run is None:
        raise RecipeError(f"{output.url} is not the output of a training run (train.output) of this release")
    reports = read_reports(output)
    done = {report.step: report for report in reports if report.skipped != "listed"}
    if step not in done:
        reached = max((report.step for report in reports), default=None)
        there = "no step is recorded" if reached is None else f"steps 0 to {reached} are recorded"
        listed = any(report.step == step for report in reports)
        why = "the run left it out (train.skip), so it was never done" if listed else there
        raise RecipeError(f"--step {step}: {why}, in metrics.jsonl of {output.url}")
    attempt = done[step].attempt
    known = read_recipe(output, attempt) or recipe
    if known is None:
        raise RecipeError(
            f"attempt {attempt} of {output.url} is of an earlier release and recorded no recipe: name it with"
            f" --recipe"
        )
    if known.run.name != run:
        raise RecipeError(
            f"--recipe is of the run {known.run.name!r}, and {output.url} holds the run {run!r}"
        )
    folder = Folder(read_card(output).checkpoints)
    known = located_at(known, output, folder)
    chosen = newest_with_files(folder, checkpoints_of(output), step)
    first = 0 if chosen is None else chosen.step
    setup = read_setup(output, attempt)
    recorded = {number: report for number, report in done.items() if first <= number <= step}
    return ReplayedStep(
        output=output,
        recipe=known,
        setup=setup,
        attempt=attempt,
        step=step,
        checkpoint=chosen,
        recorded=recorded,
        before=[done[number] for number in sorted(done) if step - _USUAL_STEPS <= number < step],
        changed=tuple(_changed(output, known, setup, recorded, from_first=chosen is None)),
    )


def _changed(
    output: Folder,
    recipe: TrainRecipe,
    setup: Setup | None,
    recorded: Mapping[int, StepReport],
    *,
    from_first: bool,
) -> Iterator[str]:
    """What is not as it was when these steps were done: contents, versions, layout, the weights to begin
    with."""
    now = {
        Folder(table.out).url: read_index(Folder(table.out)).content_fingerprint
        for table in recipe.train.outs
    }
    facts = [fact for _, fact in FactLog(output).facts() if isinstance(fact, SegmentFact)]
    for out, content in now.items():
        read = {
            fact.content_fingerprint
            for fact in facts
            if Folder(fact.out).url == out
            for number, report in recorded.items()
            if fact.attempt == report.attempt
            and fact.first_step <= number <= max(fact.last_step, fact.first_step)
        }
        if read - {content}:
            yield f"{out} has another content than these steps read, as after a purge"
    if setup is None:
        yield "with which versions and in which layout the step was done is not recorded"
        return
    if from_first and setup.origin is not None and origin_of(setup.origin.url).digest != setup.origin.digest:
        yield f"{setup.origin.url} holds other weights than the run began with"
    ours = make_setup(recipe, setup.device, None)
    for name, was in setup.versions.items():
        if ours.versions.get(name) != was:
            yield f"{name} is {ours.versions.get(name)} and was {was}"
    if ours.layout != setup.layout:
        yield "the layout is another"


def explain_step(asked: ReplayedStep, replay: Replay) -> WhyStep:
    """Do the steps again, and again where they differ; what came of it. Errors as of the replay."""
    first, hardware = replay(asked)
    changed = [*asked.changed, *_other_hardware(asked.setup, hardware)]
    differing = _differing(asked, first)
    second = None if differing is None else replay(asked)[0]
    verdict = _judge(asked, first, second, differing, changed)
    corpus = open_corpus(asked.recipe.train.outs)
    usual = _usual(asked, first.last)
    rows, documents = _rows_and_documents(asked, corpus, first, usual)
    last = first.last
    return WhyStep(
        run=asked.recipe.run.name,
        output=asked.output.url,
        read=asked.read,
        step=asked.step,
        attempt=asked.attempt,
        replayed_from=None if asked.checkpoint is None else asked.checkpoint.name,
        num_replayed=len(first.steps),
        skipped=asked.recorded[asked.step].skipped,
        recorded_loss=asked.recorded[asked.step].loss,
        loss=last.loss,
        gradient_norm=last.gradient_norm,
        lr=last.lr,
        verdict=verdict,
        layers=first.layers,
        usual=usual,
        rows=rows,
        documents=documents,
    )


def _other_hardware(setup: Setup | None, now: Hardware) -> Iterator[str]:
    was = None if setup is None else setup.hardware
    if was is not None and was.name != now.name:
        yield f"this replay ran on {now.name}, the run on {was.name}"


def _differing(asked: ReplayedStep, seen: Observed) -> int | None:
    """The first step whose numbers are not those that were recorded; None where all are."""
    for step in seen.steps:
        report = asked.recorded.get(step.step)
        if report is not None and step.skipped != "listed" and not _same(report, step):
            return step.step
    return None


def _same(report: StepReport, step: ObservedStep) -> bool:
    pairs = [(report.loss, step.loss), (report.gradient_norm, step.gradient_norm)]
    names = report.loss_by_source.keys() | step.losses_by_source.keys()
    pairs += [(report.loss_by_source.get(name), step.losses_by_source.get(name)) for name in names]
    return all(_finite(was) == _finite(now) for was, now in pairs)


def _finite(value: float | None) -> float | None:
    """What a report has of a number: one that is not finite is null."""
    return value if value is not None and math.isfinite(value) else None


def _judge(
    asked: ReplayedStep,
    first: Observed,
    second: Observed | None,
    differing: int | None,
    changed: Sequence[str],
) -> Verdict:
    if differing is None:
        return Verdict(
            cause="data",
            why=f"the replay gives the recorded numbers of {len(first.steps):,} steps again, to the bit",
        )
    assert second is not None
    what = f"step {differing} gives other numbers than were recorded"
    again = _numbers(first) == _numbers(second)
    if changed and again:
        return Verdict(cause="unknown", why=f"{what}, and {'; '.join(changed)}", first_step=differing)
    ranks, how = _ranks(asked, first, differing)
    duration: Duration = "transient" if again else "persistent"
    said = {
        "transient": "a second replay agrees with the first: it computed wrongly then, and does so no more",
        "persistent": "a second replay disagrees with the first: it computes wrongly now",
    }[duration]
    return Verdict(
        cause="hardware", why=f"{what}; {said}; {how}", first_step=differing, ranks=ranks, duration=duration
    )


def _numbers(seen: Observed) -> list[tuple[object, ...]]:
    return [(step.step, repr(step.loss), repr(step.gradient_norm), repr(step.rows)) for step in seen.steps]


def _ranks(asked: ReplayedStep, seen: Observed, step: int) -> tuple[tuple[int, ...], str]:
    """The ranks whose rows differ in a step, and how that is known."""
    recorded = dict(_recorded_rows(asked.output, asked.recorded[step].attempt, step))
    now = next(one for one in seen.steps if one.step == step).rows
    if not recorded:
        return (), "which rank did is not known: train.record_losses = true would tell"
    differing = {
        slice_
        for row, (slice_, loss) in recorded.items()
        if repr(loss) != repr((now[row].loss, now[row].num_labels))
    }
    mesh = asked.recipe.train.mesh
    slices = {slice_ for slice_, _ in recorded.values()}
    if not differing:
        return (
            (),
            "the losses of all rows are those recorded: it was in backward or in the exchange of gradients",
        )
    if differing == slices and len(slices) > 1:
        return (
            (),
            "the rows of all ranks differ, as where what is wrong is in weights that all use: no rank is"
            " named",
        )
    ranks = tuple(rank for rank in range(mesh.num_workers) if mesh.dp_rank(rank) in differing)
    return ranks, f"only the rows of rank {', '.join(map(str, ranks))} differ"


def _recorded_rows(
    output: Folder, attempt: int, step: int
) -> Iterator[tuple[int, tuple[int, tuple[float, int]]]]:
    """(row, (data parallel rank, loss)) of a step as `record_losses` kept them."""
    for name in output.names("batches"):
        file = name.rsplit("/", 1)[-1]
        if not file.startswith(f"batches-{attempt:05d}-"):
            continue
        _, _, rank, first, end = file.removesuffix(".parquet").split("-")
        if int(first) <= step < int(end):
            with output.open(name) as stream:
                table = pq.read_table(stream, filters=[("step", "==", step)])
            if "loss" in table.column_names:
                for row in table.select(["row", "loss", "num_labels"]).to_pylist():
                    if row["loss"] is not None:
                        yield row["row"], (int(rank), (row["loss"], row["num_labels"]))


def _usual(asked: ReplayedStep, last: ObservedStep) -> dict[str, float]:
    """The usual loss of each source: over the steps before that counted, or the step's own where there are
    none."""
    sums: dict[str, list[float]] = {}
    for report in asked.before:
        if report.skipped is None:
            for name, loss in report.loss_by_source.items():
                count = report.tokens_by_source.get(name, 0)
                total = sums.setdefault(name, [0.0, 0.0])
                total[0] += loss * count
                total[1] += count
    usual = {name: total / count for name, (total, count) in sums.items() if count}
    return {**last.losses_by_source, **usual}


def _rows_and_documents(
    asked: ReplayedStep, corpus: Corpus, seen: Observed, usual: Mapping[str, float]
) -> tuple[tuple[RowInStep, ...], tuple[DocumentInStep, ...]]:
    """The rows and the documents of the step, with what lineage knows of these."""
    order = make_order(asked.recipe, corpus)
    size = asked.recipe.train.global_batch
    numbers = np.arange(asked.step * size, (asked.step + 1) * size, dtype=np.int64)
    located = order.locate(numbers)
    columns = (located.source, located.shard, located.start, located.num_tokens)
    places = [
        Span(order.plan.sources[source], shard, start, num)
        for source, shard, start, num in zip(*(column.tolist() for column in columns), strict=True)
    ]
    losses = seen.last.rows or (RowLoss(math.nan, 0),) * size
    rows = [
        RowInStep(
            row=row, sequence=int(numbers[row]), **place._asdict(), num_labels=loss.num_labels, loss=loss.mean
        )
        for row, (place, loss) in enumerate(zip(places, losses, strict=True))
    ]
    documents = []
    known = _placed(corpus, places)
    for row, first, num_labels, loss in seen.documents:
        place = places[row]
        at = place.start + first
        placed = next((one for one in known.get(place, ()) if one.start <= at < one.end), None)
        mean, expected = loss / num_labels, usual.get(place.source, math.nan)
        documents.append(
            DocumentInStep(
                doc_id=None if placed is None else placed.doc_id.hex(),
                url=None if placed is None else placed.url,
                out=None if placed is None else placed.out,
                source=place.source,
                row=row,
                first_token=first,
                num_labels=num_labels,
                loss=mean,
                usual=expected,
                excess=num_labels * (mean - expected),
            )
        )
    return (
        tuple(sorted(rows, key=lambda row: (not math.isnan(row.loss), -row.loss, row.row))),
        tuple(
            sorted(
                documents, key=lambda one: (not math.isnan(one.excess), -one.excess, one.row, one.first_token)
            )
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """A document's tokens [start, end) of a shard."""

    doc_id: bytes
    url: str | None
    out: str
    start: int
    end: int


def _placed(corpus: Corpus, places: Sequence[Span]) -> dict[Span, list[_Placed]]:
    """The documents of each span that the lineage of its output has."""
    found: dict[Span, list[_Placed]] = {}
    for output in corpus.outputs:
        lookup = Lookup(Folder(output.url))
        mine = [place for place in places if place.source.startswith(output.prefix)]
        own = [place._replace(source=place.source.removeprefix(output.prefix)) for place in mine]
        placements = lookup.at_spans(own)
        ids = list(dict.fromkeys(one.doc_id for each in placements for one in each))
        urls = {row.doc_id: row.url for row in lookup.documents(ids)}
        for place, of_place in zip(mine, placements, strict=True):
            found.setdefault(place, []).extend(
                _Placed(
                    doc_id=one.doc_id,
                    url=urls.get(one.doc_id),
                    out=output.url,
                    start=one.start,
                    end=one.start + one.num_tokens,
                )
                for one in of_place
            )
    return found
