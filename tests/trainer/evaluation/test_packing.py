"""Requests in rows: each is scored as if it were alone, whatever stands beside it and whoever computes it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from tests.support.training.transformers_models import reference_model
from trainer.data.dataset import IGNORED
from trainer.evaluation.packing import add_losses, pack
from trainer.evaluation.prepared import (
    AboutPrepared,
    AskedItem,
    Prepared,
    Request,
    publish_prepared,
    read_prepared,
)
from trainer.evaluation.scores import TaskScore, score
from trainer.huggingface.opened import open_model


def requests(sizes: list[int], seed: int = 0) -> list[Request]:
    rng = np.random.default_rng(seed)
    return [
        Request(choice=0, tokens=rng.integers(0, 250, size).tolist(), num_scored=int(rng.integers(1, size)))
        for size in sizes
    ]


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_moe"])
def test_a_request_is_scored_as_if_it_were_alone(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp(name)
    opened = open_model(str(reference_model(name).save(folder, torch.float64)), device=torch.device("cpu"))
    asked = requests([2, 9, 30, 31, 5, 12, 33, 3])
    packed = pack(asked, 32)
    assert packed.num_rows < len(asked)
    sums = packed.no_losses(torch.device("cpu"))
    for part in (0, 1):
        for rows in packed.batches(2, part, 2):
            add_losses(sums, rows, opened.losses(rows))
    found = packed.by_request(sums, len(asked))
    for request, loss in zip(asked, found, strict=True):
        tokens = torch.tensor(request.tokens)
        with torch.no_grad():
            logits = reference_model(name).logits(tokens[:-1])
        losses = torch.nn.functional.cross_entropy(logits, tokens[1:], reduction="none")
        assert loss == pytest.approx(float(losses[-request.num_scored :].sum()), abs=1e-6)


def test_each_part_has_as_many_forward_passes() -> None:
    packed = pack(requests([20] * 7), 32)
    assert packed.num_rows == 7
    parts = [list(packed.batches(2, part, 3)) for part in range(3)]
    assert [len(part) for part in parts] == [2, 2, 2]
    numbers = sorted(number for part in parts for rows in part for number in rows.rows_B.tolist())
    assert numbers == [*range(7), *[7] * 5]
    filling = parts[2][1]
    assert (filling.labels_BT == IGNORED).all()
    assert filling.inputs_BT.shape == (2, 32)


def test_a_prepared_evaluation_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory) -> None:
    output = Folder(str(tmp_path_factory.mktemp("run")))
    about = AboutPrepared(
        name="arc",
        kind="choices",
        digest="00",
        texts="01",
        files=("a.jsonl",),
        shots=2,
        tokenizer="02",
        seq_len=32,
    )
    items = (AskedItem(answer=1, num_bytes=(3, 4), requests=tuple(requests([4, 5]))),)
    publish_prepared(output, Prepared(about, items))
    assert read_prepared(output, "arc") == Prepared(about, items)
    with pytest.raises(RecipeError, match=r"'other' is not prepared .*`sluice train RECIPE --prepare`"):
        read_prepared(output, "other")


def prepared(kind: str, *items: tuple[int, tuple[int, ...]]) -> Prepared:
    about = AboutPrepared(
        name="a",
        kind=kind,
        digest="",
        texts="",
        files=(),
        shots=0,
        tokenizer="",
        seq_len=8,  # type: ignore[arg-type]
    )
    return Prepared(
        about, tuple(AskedItem(answer=answer, num_bytes=sizes, requests=()) for answer, sizes in items)
    )


def test_texts_weigh_by_their_bytes() -> None:
    nats = [np.array([8 * np.log(2)]), np.array([90 * np.log(2)])]
    found = score(prepared("text", (0, (8,)), (0, (30,))), nats)
    assert found == TaskScore(num_items=2, bits_per_byte=pytest.approx(98 / 38))
    assert score(prepared("text", (0, (8,)), (0, (30,))), nats, {1}) == TaskScore(
        num_items=1, bits_per_byte=pytest.approx(1)
    )


def test_choices_count_one_by_one() -> None:
    """The first item is right as it is, the second by byte alone; equal losses count for the first choice."""
    nats = [np.array([2.0, 3.0]), np.array([3.0, 4.0]), np.array([5.0, 5.0])]
    found = score(prepared("choices", (0, (1, 3)), (1, (1, 4)), (1, (2, 2))), nats)
    bits = (2 / 1 + 4 / 4 + 5 / 2) / 3 / np.log(2)
    assert found == TaskScore(
        num_items=3, bits_per_byte=pytest.approx(bits), accuracy=1 / 3, accuracy_norm=1 / 3
    )
    assert score(prepared("choices", (0, (1, 1))), nats[:1], {0}) == TaskScore(num_items=0)


def test_losses_that_are_not_finite_are_no_score() -> None:
    nats = [np.array([np.nan, 3.0])]
    assert score(prepared("choices", (0, (1, 1))), nats) == TaskScore(
        num_items=1, accuracy=0, accuracy_norm=0
    )
    assert score(prepared("text", (0, (1,))), [np.array([np.inf])]) == TaskScore(num_items=1)
