"""Keys and values of positions that a model has passed, so that the next one costs one position."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.model.attention import Positions, mask_between


class KeyValueCache:
    """What each layer has made of the tokens so far, of one row or of several of equal length. `windows`: of each
    layer, in order; one with a window keeps what a later position may still see. Keys are kept turned by their
    positions, and those of latent attention as its heads have them."""

    def __init__(self, windows: Sequence[int | None]) -> None:
        self.length = 0
        self._windows = tuple(windows)
        self._kept: list[tuple[Tensor, Tensor] | None] = [None] * len(windows)

    def masks(self, num_new: int, device: torch.device) -> Mapping[int | None, CachedMask]:
        """Masks for a pass of the next `num_new` positions through all layers, which this cache then holds
        too."""
        layers = iter(range(len(self._windows)))
        made = {
            window: CachedMask(cache=self, layers=layers, visible=self._visible(window, num_new, device))
            for window in dict.fromkeys(self._windows)
        }
        self.length += num_new
        return made

    def extended(self, layer: int, key_BTGK: Tensor, value_BTGK: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values of a layer with the new ones behind them."""
        kept = self._kept[layer]
        if kept is not None:
            key_BTGK, value_BTGK = torch.cat((kept[0], key_BTGK), 1), torch.cat((kept[1], value_BTGK), 1)
        first = key_BTGK.shape[1] - self._reach(self._windows[layer], key_BTGK.shape[1])
        self._kept[layer] = (key_BTGK[:, first:], value_BTGK[:, first:])
        return key_BTGK, value_BTGK

    def kept(self, layer: int) -> int:
        """How many positions a layer holds."""
        kept = self._kept[layer]
        return 0 if kept is None else kept[0].shape[1]

    def _reach(self, window: int | None, length: int) -> int:
        """Of so many positions those that the next one sees, beside itself."""
        return length if window is None else min(length, window - 1)

    def _visible(self, window: int | None, num_new: int, device: torch.device) -> Tensor:
        places_T = torch.arange(self.length + num_new, device=device)[None]
        queries, keys = (
            places_T[:, self.length :],
            places_T[:, self.length - self._reach(window, self.length) :],
        )
        asked, held = (
            Positions(documents_BT=torch.zeros_like(places), places_BT=places) for places in (queries, keys)
        )
        visible = mask_between(asked, held, "dense", window)
        assert isinstance(visible, Tensor)
        return visible


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedMask:
    """New positions against those of a cache and each other: bool (1, 1, T, T of keys). Each layer that attends
    takes the next number from `layers`, which the masks of a pass share."""

    cache: KeyValueCache
    layers: Iterator[int]
    visible: Tensor
