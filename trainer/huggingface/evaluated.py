"""An evaluation on a model in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from trainer.evaluation.packing import add_losses, pack
from trainer.evaluation.prepared import Prepared
from trainer.evaluation.scores import nats_of
from trainer.huggingface.opened import OpenedModel

_ROW_STEP: Final = 64
_POSITIONS_AT_ONCE: Final = 4096


def evaluated(
    model: OpenedModel, prepared: Prepared, done: Callable[[int, int], None] = lambda done, of: None
) -> list[np.ndarray]:
    """The losses of each item's choices, or of its text, in nats; `done` is called with how many rows are done, and of
    how many. Rows are no longer than the longest request needs."""
    requests = prepared.requests
    longest = max((len(request.tokens) - 1 for request in requests), default=1)
    row_len = min(-(-longest // _ROW_STEP) * _ROW_STEP, prepared.about.seq_len)
    packed = pack(requests, row_len)
    sums = packed.no_losses(model.device)
    at_once = min(max(1, _POSITIONS_AT_ONCE // row_len), packed.num_rows)
    for number, rows in enumerate(packed.batches(at_once)):
        on_device = rows.map(lambda tensor: tensor.to(model.device))
        add_losses(sums, on_device, model.losses(on_device))
        done(min((number + 1) * at_once, packed.num_rows), packed.num_rows)
    return nats_of(prepared, packed.by_request(sums, len(requests)))
