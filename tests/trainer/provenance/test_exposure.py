"""What lineage tells of a run by inverting its order is what was fed, sequence for sequence."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from lineage.ids import tokens_hash
from lineage.storage.folder import Folder, StorageError
from lineage.store.delta import StoreError, read_table
from lineage.store.rows import RunRow, SegmentRow, ShardSpan
from lineage.trace.exposure import Exposure, exposures, fold, plans_of_step
from tests.support.outputs.synthetic import EOT, made_up_tokens, purge_tokens, write_output
from trainer.attempts import Attempt
from trainer.data.blocks import LocalBlocks
from trainer.data.corpus import Corpus, open_corpus
from trainer.data.dataset import Dataset, Slice
from trainer.feed.feed import Feed, FeedOptions, FeedSource
from trainer.options import DataTable
from trainer.order import Order, OrderOptions, plan_order
from trainer.provenance.exposure import find_readings, locate_sequences
from trainer.provenance.facts import FACTS_FILE
from trainer.provenance.reached import read_facts
from trainer.telemetry.step_report import StepReport

SHARDS = {
    "books": [made_up_tokens(9_000, 1, mean_document=30), made_up_tokens(3_333, 2, mean_document=30)],
    "web": [made_up_tokens(7_777, 3, mean_document=30)],
}
WORLD = 3
OPTIONS = OrderOptions(
    seed=5,
    seq_len=64,
    global_batch=8,
    window_blocks=2,
    mixture_block=20,
    mixture=((0, {"books": 0.5, "web": 0.5}), (30, {"books": 0.8, "web": 0.2})),
)
NUM_STEPS = 130  # more than three epochs of the web


def feeds(corpus: Corpus, output: Path, options: OrderOptions = OPTIONS, run: str = "r") -> list[Feed]:
    order = Order(plan_order(corpus.lengths, options))
    found = []
    for rank in range(WORLD):
        part = Slice(rank=rank, num_ranks=WORLD)
        dataset = Dataset(corpus, order, LocalBlocks(), part, skip=((8 * 11 + 3, 8 * 11 + 3),))
        feed_options = FeedOptions(
            run=run,
            output=Folder(str(output)),
            device=torch.device("cpu"),
            keeps_account=rank == 0,
            records=True,
        )
        found.append(Feed(FeedSource(dataset=dataset, open_reader=lambda _: LocalBlocks()), feed_options))
    return found


def run_steps(
    ranks: list[Feed], output: Path, attempt: Attempt, end: int, skipped: tuple[int, ...] = ()
) -> None:
    """The steps of an attempt up to `end`, a checkpoint every 10; steps in `skipped` count as spikes."""
    for feed in ranks:
        feed.start(attempt)
    seen: list[int] = []
    for step in range(attempt.first_step, end):
        listed = ranks[0].is_listed(step)
        for feed in ranks:
            feed.pass_over(step) if listed else feed.micro_batches(step)
        seen += [step] if listed or step in skipped else []
        with open(output / "metrics.jsonl", "a") as metrics:
            reason = "spike" if step in seen else None
            report = StepReport(step=step, attempt=attempt.number, loss=1.0, skipped=reason)
            metrics.write(report.as_json() + "\n")
        if (step + 1) % 10 == 0:
            for feed in ranks:
                feed.commit(step + 1, seen)


def recorded_rows(output: Path) -> list[dict[str, object]]:
    return [
        row for file in sorted(output.glob("batches/*.parquet")) for row in pq.read_table(file).to_pylist()
    ]


def facts_of(out: Path) -> tuple[list[RunRow], list[SegmentRow]]:
    folder = Folder(str(out))
    runs = [RunRow(**row) for row in read_table(folder, "training_runs").to_pylist()]
    return runs, [SegmentRow(**row) for row in read_table(folder, "training_segments").to_pylist()]


def documents(limit: int) -> list[ShardSpan]:
    """Documents (end-of-text included) at random places of all shards."""
    spans = []
    for source, shards in SHARDS.items():
        for shard, tokens in enumerate(shards):
            ends = np.flatnonzero(tokens == EOT) + 1
            starts = np.concatenate(([0], ends[:-1]))
            spans += [ShardSpan(source, shard, int(a), int(b - a)) for a, b in zip(starts, ends, strict=True)]
    assert len(spans) >= limit
    chosen = np.random.default_rng(0).permutation(len(spans))[:limit]
    return [spans[i] for i in chosen]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An output and a run over it: killed at step 57, resumed from the older checkpoint 40, a spike at 45."""
    folder = tmp_path_factory.mktemp("trained")
    out, output = folder / "out", folder / "run"
    output.mkdir()
    write_output(out, SHARDS, store=True)
    corpus = open_corpus([DataTable(out=str(out))])
    first, second = feeds(corpus, output), feeds(corpus, output)
    run_steps(first, output, Attempt(number=1, first_step=0, parent=None, began_at=0.0), 57)
    run_steps(
        second, output, Attempt(number=2, first_step=40, parent=1, began_at=0.0), NUM_STEPS, skipped=(45,)
    )
    for feed in second:
        feed.close()
    return out, output


def told_of(out: Path, *spans: ShardSpan) -> Iterator[list[Exposure]]:
    """The exposures of each, by the facts that stand there now."""
    (run,) = fold(*facts_of(out))
    return (exposures(run, span, find_readings) for span in spans)


def test_traced_rows_are_the_recorded_ones_for_every_document(trained: tuple[Path, Path]) -> None:
    out, output = trained
    fed = recorded_rows(output)
    assert {row["attempt"] for row in fed} == {1, 2}
    missing = extra = compared = 0
    spans = documents(500)
    for span, exposed in zip(spans, told_of(out, *spans), strict=True):
        expected = {
            (row["step"], row["row"], row["sequence"], row["epoch"])
            for row in fed
            if (row["source"], row["shard"]) == (span.source, span.shard)
            and row["start"] < span.start + span.num_tokens
            and span.start < row["start"] + row["num_tokens"]
        }
        told = {(e.step, e.row, e.sequence, e.epoch) for e in exposed}
        missing, extra, compared = (
            missing + len(expected - told),
            extra + len(told - expected),
            compared + len(told),
        )
    assert (missing, extra) == (0, 0)
    assert compared > 1500
    assert max(int(row["epoch"]) for row in fed) >= 2  # type: ignore[call-overload]


def test_recorded_hashes_are_those_of_the_shards_own_bytes(trained: tuple[Path, Path]) -> None:
    out, output = trained
    for row in recorded_rows(output):
        tokens = np.fromfile(out / f"shards/{row['source']}/{row['shard']:05d}.bin", "<u4")
        assert tokens_hash(tokens[row["start"] :][: row["num_tokens"]]).hex() == row["tokens_hash"]


def test_every_sequence_of_a_step_is_recorded_once_and_not_once_a_rank(trained: tuple[Path, Path]) -> None:
    rows = [(row["attempt"], row["step"], row["row"]) for row in recorded_rows(trained[1])]
    assert len(rows) == len(set(rows))
    assert {row for row in rows if row[0] == 2} == {
        (2, step, row) for step in range(40, NUM_STEPS) for row in range(8)
    }


def test_skipped_and_abandoned_steps_are_told_as_not_applied_and_each_row_once(
    trained: tuple[Path, Path],
) -> None:
    out, _ = trained
    told = [exposure for exposed in told_of(out, *documents(500)) for exposure in exposed]
    not_applied = {exposure.step for exposure in told if not exposure.applied}
    assert not_applied == {11, 45}
    assert {e.attempt for e in told if e.step < 40} == {1}
    assert {e.attempt for e in told if e.step >= 40} == {2}


def test_facts_name_each_stretch_with_its_mixture(trained: tuple[Path, Path]) -> None:
    _, segments = facts_of(trained[0])
    latest = {(s.attempt, s.first_step): s for s in sorted(segments, key=lambda s: s.fact or 0)}
    assert {key: (s.last_step, s.parent_attempt) for key, s in latest.items()} == {
        (1, 0): (29, None),
        (1, 30): (56, None),
        (2, 40): (NUM_STEPS - 1, 1),
    }
    assert json.loads(latest[1, 0].weights or "") == {"books": 0.5, "web": 0.5}
    assert json.loads(latest[2, 40].weights or "") == {"books": 0.8, "web": 0.2}
    assert json.loads(latest[2, 40].skipped_steps or "") == [45]


def test_sequences_are_located_as_they_were_recorded(trained: tuple[Path, Path]) -> None:
    out, output = trained
    (run,) = fold(*facts_of(out))
    rows = recorded_rows(output)[:300]
    spans = locate_sequences(run.plan, [int(row["sequence"]) for row in rows])  # type: ignore[call-overload]
    assert spans == [ShardSpan(r["source"], r["shard"], r["start"], r["num_tokens"]) for r in rows]  # type: ignore[arg-type]


def test_the_facts_file_tells_the_same_as_the_store(trained: tuple[Path, Path]) -> None:
    out, output = trained
    more = read_facts([str(output)], str(out))
    (from_file,) = fold(more.runs, more.segments)
    (from_store,) = fold(*facts_of(out))
    for span in documents(20):
        assert exposures(from_file, span, find_readings) == exposures(from_store, span, find_readings)


def edited(first_step: int, books: float) -> OrderOptions:
    """OPTIONS with another second mixture."""
    first, _ = OPTIONS.mixture
    return dataclasses.replace(
        OPTIONS, mixture=(first, (first_step, {"books": books, "web": round(1 - books, 3)}))
    )


def dead_at_step_37_then(
    folder: Path, before: OrderOptions, *after: OrderOptions
) -> tuple[Path, list[Order]]:
    """The data, and the order of each attempt: the first died after its checkpoint of 30 steps, once it had
    fed step 36; each later one began there with another plan and fed steps 30 to 34, and the last two steps
    of each died too."""
    out, output = folder / "out", folder / "run"
    output.mkdir()
    write_output(out, SHARDS, store=True)
    corpus = open_corpus([DataTable(out=str(out))])
    first = feeds(corpus, output, before)
    run_steps(first, output, Attempt(number=1, first_step=0, parent=None, began_at=0.0), 37)
    orders = [first[0].dataset.order]
    for number, options in enumerate(after, start=2):
        ranks = feeds(corpus, output, options)
        run_steps(ranks, output, Attempt(number=number, first_step=30, parent=1, began_at=0.0), 35)
        orders.append(ranks[0].dataset.order)
    for feed in ranks:
        feed.commit(35, ())
        feed.close()
    return out, orders


def fed_in(order: Order, steps: range, span: ShardSpan) -> set[tuple[int, int]]:
    """(step, row) of the sequences that read any of `span`, by where each lies."""
    numbers = np.arange(steps.start * 8, steps.stop * 8)
    places = order.locate(numbers)
    read = (
        (places.source == order.plan.sources.index(span.source))
        & (places.shard == span.shard)
        & (places.start < span.start + span.num_tokens)
        & (span.start < places.start + places.num_tokens)
    )
    return {divmod(number, 8) for number in numbers[read].tolist()}


def test_the_steps_of_a_dead_attempt_are_told_by_its_output_before_the_next_start_records_them(
    tmp_path: Path,
) -> None:
    out, output = tmp_path / "out", tmp_path / "run"
    output.mkdir()
    write_output(out, SHARDS, store=True)
    ranks = feeds(open_corpus([DataTable(out=str(out))]), output)
    run_steps(ranks, output, Attempt(number=1, first_step=0, parent=None, began_at=0.0), 37, skipped=(33,))
    for feed in ranks:
        feed.close()
    (recorded,) = fold(*facts_of(out))
    more = read_facts([str(output)], str(out))
    (told,) = fold(more.runs, more.segments)
    assert (recorded.num_steps, told.num_steps) == (30, 37)
    met = {e.step: e.applied for span in documents(300) for e in exposures(told, span, find_readings)}
    assert met.keys() == set(range(37))
    assert [step for step, applied in met.items() if not applied] == [11, 33]
    ranks = feeds(open_corpus([DataTable(out=str(out))]), output)
    run_steps(ranks, output, Attempt(number=2, first_step=30, parent=1, began_at=0.0), 31)
    for feed in ranks:
        feed.close()
    then = [s for s in fold(*facts_of(out))[0].segments if s.attempt == 1]
    assert [dataclasses.replace(s, fact=0) for s in then] == [
        dataclasses.replace(s, fact=0) for s in told.segments
    ]


def test_what_a_dead_attempt_fed_from_a_later_mixture_is_told_with_that_mixture(tmp_path: Path) -> None:
    out, _ = dead_at_step_37_then(tmp_path, edited(33, 0.8), edited(33, 0.8))
    latest = {(s.attempt, s.first_step): s for s in sorted(facts_of(out)[1], key=lambda s: s.fact or 0)}
    told = {
        key: (s.last_step, json.loads(s.weights or "")["books"], s.first_sequence)
        for key, s in latest.items()
    }
    assert told == {
        (1, 0): (32, 0.5, 0),
        (1, 33): (36, 0.8, 33 * 8),
        (2, 30): (32, 0.5, 30 * 8),
        (2, 33): (34, 0.8, 33 * 8),
    }
    assert json.loads(latest[1, 0].skipped_steps or "") == [11]


@pytest.mark.parametrize(
    ("after", "exact"),
    # A mixture that begins earlier agrees with what is written of the dead attempt's first stretch up to its
    # checkpoint, and no more is certain: then too many rows are told, and none too few.
    [((33, 0.2), True), ((36, 0.2), True), ((31, 0.2), False)],
)
def test_a_dead_attempts_steps_are_told_by_its_own_plan_where_a_mixture_was_edited_since(
    tmp_path: Path, after: tuple[int, float], exact: bool
) -> None:
    out, (before, now) = dead_at_step_37_then(tmp_path, edited(33, 0.8), edited(*after))
    (run,) = fold(*facts_of(out))
    num_dead = 0
    for span in documents(300):
        told = {(e.step, e.row): e for e in exposures(run, span, find_readings)}
        applied = fed_in(now, range(35), span)
        dead = fed_in(before, range(30, 37), span) - applied
        assert {place for place, exposure in told.items() if exposure.step != 11 and exposure.applied} == {
            place for place in applied if place[0] != 11
        }
        assert dead <= {place for place, exposure in told.items() if not exposure.applied}
        assert {told[place].attempt for place in dead} <= {1}
        if exact:
            assert set(told) == applied | dead
        num_dead += len(dead)
    assert num_dead > 50


def test_a_dead_attempts_step_leads_to_the_documents_that_it_read(tmp_path: Path) -> None:
    out, (before, now) = dead_at_step_37_then(tmp_path, edited(33, 0.8), edited(33, 0.2))
    (run,) = fold(*facts_of(out))
    for step, orders in ((31, [now]), (34, [now, before]), (36, [before])):
        sequences = range(step * 8, step * 8 + 8)
        fed = {place for order in orders for place in locate_sequences(order.plan.to_json(), sequences)}
        plans = [fact.plan for fact in plans_of_step(run, step)]
        assert {place for plan in plans for place in locate_sequences(plan, sequences)} == fed


def test_a_mixture_that_was_edited_back_is_the_one_that_counts(tmp_path: Path) -> None:
    out, (first, _, third) = dead_at_step_37_then(tmp_path, edited(33, 0.8), edited(33, 0.2), edited(33, 0.8))
    assert first.plan == third.plan
    (run,) = fold(*facts_of(out))
    assert run.plan == third.plan.to_json()
    for span in documents(100):
        applied = {(e.step, e.row) for e in exposures(run, span, find_readings) if e.applied}
        assert applied == {place for place in fed_in(third, range(35), span) if place[0] != 11}


def test_the_plan_of_an_attempt_whose_store_was_down_is_committed_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "run").mkdir()
    write_output(tmp_path / "out", SHARDS, store=True)
    corpus = open_corpus([DataTable(out=str(tmp_path / "out"))])
    (tmp_path / "out/lineage").rename(tmp_path / "gone")
    first = feeds(corpus, tmp_path / "run", edited(33, 0.8))
    run_steps(first, tmp_path / "run", Attempt(number=1, first_step=0, parent=None, began_at=0.0), 37)
    first[0].close()
    (tmp_path / "gone").rename(tmp_path / "out/lineage")
    second = feeds(corpus, tmp_path / "run", edited(33, 0.2))
    run_steps(second, tmp_path / "run", Attempt(number=2, first_step=30, parent=1, began_at=0.0), 31)
    (run,) = fold(*facts_of(tmp_path / "out"))
    assert [fact.plan for fact in run.plans] == [
        feed[0].dataset.order.plan.to_json() for feed in (second, first)
    ]


def test_a_store_that_is_down_stops_nothing_and_the_next_start_commits(tmp_path: Path) -> None:
    out, output = tmp_path / "out", tmp_path / "run"
    output.mkdir()
    write_output(out, SHARDS, store=True)
    corpus = open_corpus([DataTable(out=str(out))])
    (out / "lineage").rename(out / "gone")
    first = feeds(corpus, output)
    run_steps(first, output, Attempt(number=1, first_step=0, parent=None, began_at=0.0), 10)
    for feed in first:
        feed.close()
    assert (output / FACTS_FILE).exists()
    (out / "gone").rename(out / "lineage")
    assert facts_of(out) == ([], [])
    second = feeds(corpus, output)
    run_steps(second, output, Attempt(number=2, first_step=10, parent=1, began_at=0.0), 11)
    for feed in second:
        feed.close()
    assert {s.attempt for s in facts_of(out)[1]} == {1, 2}


def test_a_run_name_that_another_output_has_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_output(out, SHARDS, store=True)
    corpus = open_corpus([DataTable(out=str(out))])
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
    feeds(corpus, tmp_path / "x")[0].start(Attempt(number=1, first_step=0, parent=None, began_at=0.0))
    with pytest.raises(StoreError, match="give this run another"):
        feeds(corpus, tmp_path / "y")[0].start(Attempt(number=1, first_step=0, parent=None, began_at=0.0))


def test_two_outputs_each_get_their_own_facts_with_their_prefix(tmp_path: Path) -> None:
    outs = [tmp_path / "x", tmp_path / "y"]
    for out in outs:
        write_output(out, {"web": SHARDS["web"]}, store=True)
    tables = [DataTable(out=str(outs[0]), prefix="x/"), DataTable(out=str(outs[1]), prefix="y/")]
    options = OrderOptions(seed=1, seq_len=64, global_batch=8, mixture_block=10)
    (tmp_path / "run").mkdir()
    ranks = feeds(open_corpus(tables), tmp_path / "run", options)
    run_steps(ranks, tmp_path / "run", Attempt(number=1, first_step=0, parent=None, began_at=0.0), 30)
    for feed in ranks:
        feed.close()
    fed = recorded_rows(tmp_path / "run")
    for out, prefix in zip(outs, ("x/", "y/"), strict=True):
        (run,) = fold(*facts_of(out))
        assert run.prefixes == (prefix,)
        told = {(e.step, e.row) for e in exposures(run, ShardSpan("web", 0, 100, 500), find_readings)}
        held = [row for row in fed if row["source"] == f"{prefix}web"]
        assert told == {
            (r["step"], r["row"]) for r in held if r["start"] < 600 and r["start"] + r["num_tokens"] > 100
        }


def test_outputs_of_equal_content_are_told_apart_by_their_places_and_refused_where_both_have_moved(
    tmp_path: Path,
) -> None:
    """Also where an attempt finds each at the other's place, and where one that saved nothing had another prefix."""
    outs = [tmp_path / "x", tmp_path / "y"]
    for out in outs:
        write_output(out, {"web": SHARDS["web"]}, store=True)
    run = tmp_path / "run"
    run.mkdir()
    options = OrderOptions(seed=1, seq_len=64, global_batch=8, mixture_block=10)
    for number, prefixes in enumerate((("b/", "a/"), ("x/", "y/"), ("y/", "x/")), start=1):
        tables = [DataTable(out=str(out), prefix=put) for out, put in zip(outs, prefixes, strict=True)]
        ranks = feeds(open_corpus(tables), run, options)
        first = 10 * (number == 3)
        parent = number - 1 if first else None
        attempt = Attempt(number=number, first_step=first, parent=parent, began_at=0.0)
        run_steps(ranks, run, attempt, 10 + first)
        for feed in ranks:
            feed.close()
    for out, prefixes in zip(outs, (["b/", "x/", "y/"], ["a/", "y/", "x/"]), strict=True):
        segments = fold(*facts_of(out))[0].segments
        more = read_facts([str(run)], str(out))
        assert [segment.prefix for segment in segments] == prefixes
        assert fold(more.runs, more.segments)[0].segments == segments
        (tmp_path / f"link-{out.name}").symlink_to(out)
        assert read_facts([str(run)], str(tmp_path / f"link-{out.name}")).segments == more.segments
    moved = outs[0].rename(tmp_path / "moved")
    with pytest.raises(
        StorageError, match=r"moved holds what .*run has read .* at .*/x.* at .*/y.* make .* a link"
    ):
        read_facts([str(run)], str(moved))


def test_a_run_that_went_on_from_copies_of_equal_outputs_read_each_by_its_prefix(tmp_path: Path) -> None:
    places = [[tmp_path / name for name in names] for names in (("x", "y"), ("x2", "y2"))]
    for out in itertools.chain(*places):
        write_output(out, {"web": SHARDS["web"]}, store=True)
    run = tmp_path / "run"
    run.mkdir()
    options = OrderOptions(seed=1, seq_len=64, global_batch=8, mixture_block=10)
    for number, outs in enumerate(places, start=1):
        tables = [DataTable(out=str(out), prefix=f"{out.name[0]}/") for out in outs]
        ranks = feeds(open_corpus(tables), run, options)
        first = 10 * (number - 1)
        parent = number - 1 if first else None
        attempt = Attempt(number=number, first_step=first, parent=parent, began_at=0.0)
        run_steps(ranks, run, attempt, 10 + first)
        for feed in ranks:
            feed.close()
    for out in itertools.chain(*places):
        more = read_facts([str(run)], str(out))
        (training,) = fold(more.runs, more.segments)
        assert [(s.attempt, s.prefix) for s in training.segments] == [
            (1, f"{out.name[0]}/"),
            (2, f"{out.name[0]}/"),
        ]


def ten_steps_then_a_purge(folder: Path) -> tuple[Path, Path, list[Feed]]:
    """The data, the run's output, and its ranks: they have fed ten steps when tokens that lie ahead are
    purged."""
    out, output = folder / "out", folder / "run"
    output.mkdir()
    write_output(out, {"web": SHARDS["web"]}, store=True)
    options = OrderOptions(seed=5, seq_len=64, global_batch=8, window_blocks=2, mixture_block=20)
    ranks = feeds(open_corpus([DataTable(out=str(out))]), output, options)
    run_steps(ranks, output, Attempt(number=1, first_step=0, parent=None, began_at=0.0), 10)
    purge_tokens(out, "web", 0, 0, 5000)
    return out, output, ranks


def test_a_purge_during_the_run_opens_a_stretch_and_empties_every_later_batch(tmp_path: Path) -> None:
    out, _, ranks = ten_steps_then_a_purge(tmp_path)
    for feed in ranks:
        feed.commit(10, ())
    changed = Dataset(open_corpus([DataTable(out=str(out))]), ranks[0].dataset.order, LocalBlocks(), Slice())
    for rank, feed in enumerate(ranks):
        if rank:
            feed.take(changed.corpus)  # a gloo broadcast where ranks are processes

    def filled(row: list[int]) -> list[int]:
        return row if set(row) != {EOT} else []  # one of the nine rows of three ranks only fills up

    for step in range(10, 40):
        rows = [
            row for feed in ranks for micro in feed.micro_batches(step) for row in micro.inputs_BT.tolist()
        ]
        whole = changed.batch(step)
        assert sorted(map(filled, rows)) == sorted(map(filled, [*whole.inputs_BT.tolist(), [EOT]]))
    for feed in ranks:
        feed.commit(40, ())
        feed.close()
    latest = {(s.attempt, s.first_step): s for s in sorted(facts_of(out)[1], key=lambda s: s.fact or 0)}
    assert [(key, s.last_step) for key, s in latest.items()] == [((1, 0), 9), ((1, 10), 39)]
    assert latest[1, 0].content_fingerprint != latest[1, 10].content_fingerprint


def test_where_one_rank_meets_a_purge_first_the_stretch_ends_at_the_next_checkpoint(tmp_path: Path) -> None:
    out, _, ranks = ten_steps_then_a_purge(tmp_path)
    ranks[0].dataset.close()  # its maps: the others still have the old shard open
    for first in (10, 20):
        for feed in ranks:
            for step in range(first, first + 10):
                feed.micro_batches(step)
        for feed in ranks:
            feed.commit(first + 10, ())
    for feed in ranks:
        feed.close()
    latest = {(s.attempt, s.first_step): s for s in sorted(facts_of(out)[1], key=lambda s: s.fact or 0)}
    assert [(key, s.last_step) for key, s in latest.items()] == [((1, 0), 19), ((1, 20), 29)]
    assert (
        latest[1, 20].content_fingerprint
        == open_corpus([DataTable(out=str(out))]).outputs[0].content_fingerprint
    )


def test_rows_of_an_attempt_are_told_by_its_own_prefix(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    write_output(tmp_path / "out", SHARDS, store=True)
    for number, prefix in ((1, "a-"), (2, "")):  # the first dies before it has saved anything
        corpus = open_corpus([DataTable(out=str(tmp_path / "out"), prefix=prefix)])
        options = dataclasses.replace(OPTIONS, mixture=())
        ranks = feeds(corpus, tmp_path / "run", options)
        run_steps(
            ranks,
            tmp_path / "run",
            Attempt(number=number, first_step=0, parent=None, began_at=0.0),
            9 if prefix else 10,
        )
        for feed in ranks:
            feed.close()
    (run,) = fold(*facts_of(tmp_path / "out"))
    assert run.prefixes == ("a-", "")
    fed = {(row["step"], row["row"]) for row in recorded_rows(tmp_path / "run") if row["attempt"] == 2}
    told = {
        (e.step, e.row)
        for source, shards in SHARDS.items()
        for shard, tokens in enumerate(shards)
        for e in exposures(run, ShardSpan(source, shard, 0, len(tokens)), find_readings)
        if e.applied
    }
    assert told == fed and len(fed) == 80


def test_an_output_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    write_output(tmp_path / "out", SHARDS)
    (tmp_path / "link").symlink_to("out")
    for name in ("out", "link"):
        tables = [
            DataTable(out=str(tmp_path / "out"), prefix="a-"),
            DataTable(out=str(tmp_path / name), prefix="b-"),
        ]
        with pytest.raises(ValueError, match=rf"train.data names .*{name} twice: .*\[\[train.mixture\]\]"):
            open_corpus(tables)
