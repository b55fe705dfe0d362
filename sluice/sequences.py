"""The sequences of a training run as a torch Dataset, for somebody else's loop."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset as TorchDataset

from lineage.recipe import as_plain, parse_table
from lineage.storage.folder import is_remote
from sluice.running import load_train_recipe
from trainer.data.corpus import open_corpus
from trainer.data.dataset import Dataset, Slice, document_layout
from trainer.data.recipe_order import make_order
from trainer.feed.loading import open_reader
from trainer.options import TrainRecipe

Item = dict[str, torch.Tensor]


class Sequences(TorchDataset[Item]):
    """The sequences that `sluice train` would read, by number: item n is row n % global_batch of step
    n // global_batch.

    A DataLoader with `batch_size=global_batch` and no shuffling gives the batches of the run in their order;
    a rank of several reads the numbers that it takes, as with any map-style Dataset. Each item has tensors of
    shape (seq_len,): `input_ids`; `labels`, the next token, or -100 where it does not count (so they are not
    to be shifted again); `position_ids`, which restart after each end-of-text, and `document_ids`, equal
    within a document. `sequence` is the number.

    `mixture` gives sources their shares of every step; without it they are read in proportion to their
    tokens. Blocks of remote shards are kept in `cache_dir` (a folder of the system's temporary one).
    RecipeError where sizes or mixture do not fit the data, NotFinishedError where `data` is no finished
    output."""

    def __init__(
        self,
        data: str | Sequence[str],
        *,
        seq_len: int,
        global_batch: int,
        steps: int,
        seed: int = 0,
        mixture: Mapping[str, float] | None = None,
        validation: float = 0.0,
        cache_dir: str | None = None,
    ) -> None:
        outs = [data] if isinstance(data, str) else list(data)
        if cache_dir is None and any(is_remote(out) for out in outs):
            cache_dir = os.path.join(tempfile.gettempdir(), "sluice-cache")
        plain: dict[str, object] = {
            "data": [{"out": out} for out in outs],
            "output": os.path.join(tempfile.gettempdir(), "sluice-unused"),
            "model": "debug",
            "seq_len": seq_len,
            "global_batch": global_batch,
            "steps": steps,
            "validation": validation,
            "cache": {} if cache_dir is None else {"dir": cache_dir},
        }
        if mixture is not None:
            plain["mixture"] = [{"weights": dict(mixture)}]
        self._begin(parse_table(TrainRecipe, {"run": {"name": "library", "seed": seed}, "train": plain}))

    @classmethod
    def from_recipe(cls, recipe: str | Path | TrainRecipe, overrides: Sequence[str] = ()) -> Sequences:
        """Those of a training recipe, mixtures that change included."""
        made = cls.__new__(cls)
        made._begin(load_train_recipe(recipe, overrides))
        return made

    def _begin(self, recipe: TrainRecipe) -> None:
        self.recipe = recipe
        self.corpus = open_corpus(recipe.train.outs)
        self.order = make_order(recipe, self.corpus)
        self._opened: tuple[int, Dataset] | None = None

    def __len__(self) -> int:
        return self.recipe.train.steps * self.recipe.train.global_batch

    def __getitem__(self, number: int) -> Item:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Item]:
        """Several sequences at once, as a DataLoader asks for them."""
        wanted = np.asarray([number + len(self) if number < 0 else number for number in numbers], np.int64)
        outside = wanted[(wanted < 0) | (wanted >= len(self))]
        if len(outside):
            raise IndexError(f"sequence {int(outside[0])}: expected 0 to {len(self) - 1}")
        batch = self._here().sequences(wanted)
        positions, documents = document_layout(batch.inputs_BT, self.corpus.tokenizer.eot_id)
        columns = {
            "input_ids": batch.inputs_BT,
            "labels": batch.labels_BT,
            "position_ids": positions.astype(np.int64),
            "document_ids": documents.astype(np.int64),
            "sequence": wanted,
        }
        tensors = {name: torch.from_numpy(column) for name, column in columns.items()}
        return [{name: column[row] for name, column in tensors.items()} for row in range(len(wanted))]

    def _here(self) -> Dataset:
        """The reader of this process: a forked worker of a DataLoader has none of the threads of its
        parent's."""
        if self._opened is None or self._opened[0] != os.getpid():
            part = Slice()
            reader = open_reader(self.recipe, self.corpus, self.order, part)
            self._opened = (os.getpid(), Dataset(self.corpus, self.order, reader, part))
        return self._opened[1]

    def __reduce__(self) -> tuple[Callable[..., Sequences], tuple[object, ...]]:
        return _from_plain, (as_plain(self.recipe),)


def _from_plain(plain: dict[str, object]) -> Sequences:
    return Sequences.from_recipe(parse_table(TrainRecipe, plain))
