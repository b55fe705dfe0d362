"""Tensors that backward makes again in place of keeping them from forward."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor

from trainer.model.peers import local_part


def made_again(tensor: Tensor, make: Callable[[], Tensor]) -> AbstractContextManager[None]:
    """Within it autograd keeps nothing of `tensor`, as a whole, a part or in another shape: backward calls
    `make` for the same values. Where `tensor` is a DTensor and `make` gives one split otherwise, they are
    gathered again: `make` is then collective, and backward asks in the same order on every rank."""
    # Not by address: what kernels save beside their numbers may have none.
    storage = local_part(tensor).untyped_storage()._cdata
    again = _SharedRecomputation(tensor, make)

    def pack(saved: Tensor) -> Any:
        return again.promise(saved) if local_part(saved).untyped_storage()._cdata == storage else saved

    def unpack(packed: Any) -> Tensor:
        return packed if isinstance(packed, Tensor) else packed()

    return saved_tensors_hooks(pack, unpack)


class _SharedRecomputation:
    """Values that several operations of one backward pass ask for: made for the first and let go with the
    last. A schedule that splits backward passes twice, and makes them twice."""

    def __init__(self, tensor: Tensor, make: Callable[[], Tensor]) -> None:
        self._make = make
        self._placements = tensor.placements if isinstance(tensor, DTensor) else None
        self._num_askers = self._num_waiting = 0
        self._made: Tensor | None = None

    def promise(self, saved: Tensor) -> Callable[[], Tensor]:
        """What gives the values as they were saved."""
        self._num_askers += 1
        held = local_part(saved)
        place = (held.shape, held.stride(), held.storage_offset())
        if not isinstance(saved, DTensor):
            return lambda: self._take().as_strided(*place)
        mesh, placements = saved.device_mesh, saved.placements
        return lambda: DTensor.from_local(self._take().as_strided(*place), mesh, placements, run_check=False)

    def _take(self) -> Tensor:
        if self._made is None:
            made = self._make()
            if isinstance(made, DTensor):
                made = made.redistribute(placements=self._placements)
            self._made, self._num_waiting = local_part(made), self._num_askers
        made = self._made
        self._num_waiting -= 1
        if self._num_waiting == 0:
            self._made = None
        return made
