"""Faults of tokens planted in a small OUT, one a document, with every length, hash and checksum recomputed.

So nothing is wrong but what the tokens mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from stages.tokens.tokenizer import load_tokenizer
from tests.support.outputs.small_out.output import SmallOut, default_tokenizer, make_small_out

Tokens = npt.NDArray[np.uint32]

_END: Final = 100_257
_OTHER_SPECIAL: Final = 100_276


def _as_uint32(data: bytes) -> Tokens:
    return np.frombuffer(data[: len(data) // 4 * 4], "<u4")


def _with_end(tokens: Tokens) -> Tokens:
    return np.append(tokens, np.uint32(_END)).astype(np.uint32)


def _of_other_vocabulary(tokens: Tokens) -> Tokens:
    return _with_end(load_tokenizer("o200k_base").encode(default_tokenizer().decode(tokens[:-1])))


FAULTS: Final[dict[str, tuple[Callable[[Tokens], Tokens], ...]]] = {
    "beginning-of-text added": (
        lambda t: np.insert(t, 0, _END),
        lambda t: np.insert(t, 0, _OTHER_SPECIAL),
        lambda t: np.insert(t, 0, np.uint32(1)),
    ),
    "end missing": (
        lambda t: t[:-1],
        lambda t: np.append(t[:-1], np.uint32(_OTHER_SPECIAL)).astype(np.uint32),
    ),
    "other vocabulary": (
        _of_other_vocabulary,
        lambda t: _with_end((t[:-1] + 1) % _END),
        lambda t: _with_end(t[:-1] + 150_000),
    ),
    "cut": (
        lambda t: _with_end(t[: len(t) // 2]),
        lambda t: _with_end(t[:-2]),
        lambda t: _with_end(t[len(t) // 3 : -1]),
        lambda t: t[:0],
    ),
    "shifted": (lambda t: np.roll(t, 1), lambda t: np.roll(t, -1), lambda t: _with_end(np.roll(t[:-1], 1))),
    "wrong width": (
        lambda t: _as_uint32(t.astype("<u2").tobytes()),
        lambda t: _with_end(_as_uint32(t.astype("<u2").tobytes())),
        lambda t: _as_uint32(t.astype("<u8").tobytes()),
        lambda t: t.byteswap(),
    ),
}
"""What is made of a document's tokens, end-of-text included: each kind in some ways."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedOut:
    """The OUT, and which fault each of some documents has, by doc_id."""

    out: SmallOut
    faults: dict[bytes, str]


def make_planted_out(url: str, num: int) -> PlantedOut:
    """An OUT with `num` faults, dealt in turn over kinds and their ways; half as many documents again have
    none."""
    ways = [(kind, at) for at in range(4) for kind, made in FAULTS.items() if at < len(made)]
    faults: dict[bytes, str] = {}

    def plant(doc_id: bytes, tokens: Tokens) -> Tokens:
        if len(faults) == num or doc_id[0] % 3 == 0:
            return tokens
        kind, at = ways[len(faults) % len(ways)]
        changed = FAULTS[kind][at](tokens)
        assert not np.array_equal(changed, tokens)
        faults[doc_id] = kind
        return changed

    made = make_small_out(url, per_file=num // 2 + 12, plant=plant)
    assert len(faults) == num
    return PlantedOut(out=made, faults=faults)
