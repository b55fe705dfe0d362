"""Batches: every token of an epoch once, whatever the world; labels, positions and documents as the order
says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lineage.index.blocks import BLOCK_TOKENS
from tests.support.outputs.synthetic import EOT, made_up_tokens, purge_tokens, write_output
from trainer.data.blocks import DamagedBlockError, LocalBlocks
from trainer.data.corpus import Corpus, open_corpus, reopen
from trainer.data.dataset import IGNORED, Batch, Dataset, Slice, document_layout
from trainer.options import DataTable
from trainer.order import Order, OrderOptions, plan_order
from trainer.ordering.geometry import num_validated

SHARDS = {"a": [made_up_tokens(5000, 1), made_up_tokens(1234, 2)], "b": [made_up_tokens(777, 3)]}
OPTIONS = OrderOptions(seed=1, seq_len=64, global_batch=10, window_blocks=2, mixture_block=50)
WHOLE = Slice()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    out = tmp_path_factory.mktemp("out")
    write_output(out, SHARDS)
    return open_corpus([DataTable(out=str(out))])


def dataset_of(corpus: Corpus, part: Slice = WHOLE, skip: tuple[tuple[int, int], ...] = ()) -> Dataset:
    return Dataset(corpus, Order(plan_order(corpus.lengths, OPTIONS)), LocalBlocks(), part, skip)


def shard_tokens(batch: Batch, row: int, order: Order) -> np.ndarray:
    places = batch.places
    tokens = SHARDS[order.plan.sources[places.source[row]]][places.shard[row]]
    return tokens[places.start[row] : places.start[row] + places.num_tokens[row]]


def test_rows_hold_the_tokens_of_their_places_padded_with_end_of_text(corpus: Corpus) -> None:
    dataset = dataset_of(corpus)
    short = 0
    for step in range(20):
        batch = dataset.batch(step)
        for row in range(batch.num_rows):
            tokens = shard_tokens(batch, row, dataset.order)
            assert np.array_equal(batch.inputs_BT[row, : len(tokens)], tokens)
            assert np.all(batch.inputs_BT[row, len(tokens) :] == EOT)
            short += len(tokens) < 64
    assert short > 0, "no ragged sequence came up: the test shows less than it says"


def test_a_label_is_the_next_token_of_the_same_sequence_and_never_follows_end_of_text(corpus: Corpus) -> None:
    dataset = dataset_of(corpus)
    for step in range(20):
        batch = dataset.batch(step)
        for row in range(batch.num_rows):
            tokens = shard_tokens(batch, row, dataset.order).astype(np.int64)
            expected = np.full(64, IGNORED)
            expected[: len(tokens) - 1] = tokens[1:]
            expected[: len(tokens)][tokens == EOT] = IGNORED
            assert np.array_equal(batch.labels_BT[row], expected)


def test_the_last_token_before_a_cut_has_no_label_although_padding_follows(tmp_path: Path) -> None:
    tokens = np.arange(1, 11, dtype=np.uint32)  # no end-of-text at its end
    write_output(tmp_path, {"a": [tokens]})
    corpus = open_corpus([DataTable(out=str(tmp_path))])
    plan = plan_order(corpus.lengths, OrderOptions(seed=1, seq_len=8, global_batch=2, mixture_block=2))
    batch = Dataset(corpus, Order(plan), LocalBlocks(), Slice()).batch(0)
    short = batch.places.start.tolist().index(8)
    assert batch.inputs_BT[short].tolist() == [9, 10] + [EOT] * 6
    assert batch.labels_BT[short].tolist() == [10] + [IGNORED] * 7


def test_positions_restart_after_end_of_text_and_documents_are_numbered() -> None:
    inputs = np.array([[3, 4, EOT, 5, EOT, EOT, 6, 7], [EOT, 1, 2, 3, 4, 5, 6, 7]])
    positions, documents = document_layout(inputs, EOT)
    assert positions.tolist() == [[0, 1, 2, 0, 1, 0, 0, 1], [0, 0, 1, 2, 3, 4, 5, 6]]
    assert documents.tolist() == [[0, 0, 0, 1, 1, 2, 3, 3], [0, 1, 1, 1, 1, 1, 1, 1]]


@given(st.integers(1, 25), st.integers(0, 60))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_slices_of_any_world_make_up_the_batch_and_have_equal_shapes(
    corpus: Corpus, world: int, step: int
) -> None:
    whole = dataset_of(corpus).batch(step)
    parts = [dataset_of(corpus, Slice(rank=rank, num_ranks=world)).batch(step) for rank in range(world)]
    rows = {
        int(n): (i.tobytes(), la.tobytes())
        for n, i, la in zip(whole.sequence_R, whole.inputs_BT, whole.labels_BT, strict=False)
    }
    seen = [
        (int(n), (i.tobytes(), la.tobytes()))
        for part in parts
        for n, i, la in zip(part.sequence_R, part.inputs_BT, part.labels_BT, strict=False)
    ]
    assert sorted(n for n, _ in seen) == list(range(step * 10, step * 10 + 10))
    assert all(rows[n] == content for n, content in seen)
    assert len({part.inputs_BT.shape for part in parts}) == 1
    for part in parts:
        assert np.all(part.inputs_BT[part.num_rows :] == EOT)
        assert np.all(part.labels_BT[part.num_rows :] == IGNORED)


def test_a_batch_that_holds_a_skipped_sequence_is_left_out_whole(corpus: Corpus) -> None:
    dataset = dataset_of(corpus, skip=((25, 25), (39, 41)))
    assert [step for step in range(8) if dataset.skipped(step)] == [2, 3, 4]


def test_held_out_sequences_are_read_by_slices_too(corpus: Corpus) -> None:
    options = OrderOptions(seed=1, seq_len=64, global_batch=10, mixture_block=50, validation=0.2)
    order = Order(plan_order(corpus.lengths, options))
    held = int(order.num_validation[0])
    starts = []
    for rank in range(3):
        dataset = Dataset(corpus, order, LocalBlocks(), Slice(rank=rank, num_ranks=3))
        for first in range(0, held, 10):
            batch = dataset.validation(0, first)
            starts += list(zip(batch.places.shard.tolist(), batch.places.start.tolist(), strict=True))
            assert batch.inputs_BT.shape[0] == -(-min(10, held - first) // 3)
    assert len(starts) == len(set(starts)) == held


def test_a_bounded_evaluation_reads_sequences_spread_evenly_over_what_is_held_out(corpus: Corpus) -> None:
    options = OrderOptions(seed=1, seq_len=64, global_batch=10, mixture_block=50, validation=0.2)
    order = Order(plan_order(corpus.lengths, options))
    held, most = int(order.num_validation[0]), 13
    assert held > most + 5 and num_validated(held, most) == most and num_validated(5, most) == 5
    starts = []
    for rank in range(3):
        dataset = Dataset(corpus, order, LocalBlocks(), Slice(rank=rank, num_ranks=3))
        for first in range(0, most, 10):
            places = dataset.validation(0, first, most).places
            starts += list(zip(places.shard.tolist(), places.start.tolist(), strict=True))
    wanted = order.validation(order.plan.sources[0], np.arange(most, dtype=np.int64) * held // most)
    assert sorted(starts) == sorted(zip(wanted.shard.tolist(), wanted.start.tolist(), strict=True))


def test_two_outputs_may_share_a_source_name_only_under_different_prefixes(tmp_path: Path) -> None:
    for name in ("x", "y"):
        write_output(tmp_path / name, {"a": [made_up_tokens(100)]})
    tables = [DataTable(out=str(tmp_path / "x")), DataTable(out=str(tmp_path / "y"))]
    with pytest.raises(ValueError, match="source 'a': give one of them a prefix"):
        open_corpus(tables)
    corpus = open_corpus([tables[0], DataTable(out=str(tmp_path / "y"), prefix="y/")])
    assert list(corpus.sources) == ["a", "y/a"]
    assert [output.prefix for output in corpus.outputs] == ["", "y/"]


def test_a_damaged_block_is_met_when_it_is_first_touched(tmp_path: Path) -> None:
    write_output(tmp_path, {"a": [made_up_tokens(BLOCK_TOKENS + 500)]})
    file = tmp_path / "shards" / "a" / "00000.bin"
    data = bytearray(file.read_bytes())
    data[-2] ^= 1
    file.write_bytes(data)
    shard = open_corpus([DataTable(out=str(tmp_path))]).sources["a"][0]
    reader = LocalBlocks()
    assert len(reader.block(shard, 0)) == BLOCK_TOKENS
    with pytest.raises(DamagedBlockError, match=r"block 1 of .*00000\.bin"):
        reader.block(shard, 1)


def test_after_a_purge_the_same_order_reads_end_of_text_there(tmp_path: Path) -> None:
    write_output(tmp_path, SHARDS)
    before = open_corpus([DataTable(out=str(tmp_path))])
    order = Order(plan_order(before.lengths, OPTIONS))
    purge_tokens(tmp_path, "a", 0, 100, 300)
    after = reopen(before)
    assert after.outputs[0].order_fingerprint == before.outputs[0].order_fingerprint
    assert after.outputs[0].content_fingerprint != before.outputs[0].content_fingerprint
    dataset = Dataset(after, order, LocalBlocks(), Slice())
    readings = order.find("a", 0, 100, 300, 400)
    for n, first, num in zip(readings.sequence, readings.first_token, readings.num_tokens, strict=True):
        batch = dataset.batch(int(n) // 10)
        row = batch.sequence_R.tolist().index(int(n))
        assert np.all(batch.inputs_BT[row, first : first + num] == EOT)
        assert np.all(batch.labels_BT[row, first : first + num] == IGNORED)
    with pytest.raises(FileNotFoundError):
        Dataset(before, order, LocalBlocks(), Slice()).batch(0)


def test_an_output_whose_order_changed_is_refused(tmp_path: Path) -> None:
    write_output(tmp_path, {"a": [made_up_tokens(100)]})
    corpus = open_corpus([DataTable(out=str(tmp_path))])
    write_output(tmp_path, {"a": [made_up_tokens(101)]})
    with pytest.raises(ValueError, match="this run began with"):
        reopen(corpus)
