"""How the config.json of each model_type is read: the tables of families.toml. No torch."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple


class Key(NamedTuple):
    """A key whose value is a field of the description, or says something of it. `fields`: their paths; `kind`: what
    it must be."""

    fields: tuple[str, ...]
    kind: str


SIZE, NUMBER, TRUTH = "a whole number from 1", "a number above 0", "true or false"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A model_type: the class of transformers that has its tensors' names, and how its config.json is read.

    `left_out`: keys that it reads beside the usual ones and may leave out, and what they are then, which are
    the defaults of its class; `needed`: those that must be there; `aliases`: other names of keys. `only`: keys that
    may be missing or have this one value, in place of that of `[every.only]`; `harmless`: keys that may have any,
    also those of `[every.only]`. `fixed`: by their paths, the fields of the description that every model of it has
    so, unless a key that it reads says otherwise. `slides`: of `LAYERS`, the layers that have the window where
    `layer_types` does not say so (None: none has); `rotates`: those that have rotary positions (None: every one).
    `local_theta`: layers with a window have a rotary base of their own, this one if none is given, and only the
    others have scaled positions; None: all layers have the same. `scales_embedding`: by the root of its width.
    `planned_only`: it is not trained, and unknown keys are passed over. `own_splitting`: transformers' AutoTokenizer
    splits its texts by a rule of its class, whatever tokenizer.json says. `not_zero`: counts that may be 0
    elsewhere."""

    architecture: str
    left_out: Mapping[str, Any] = field(default_factory=dict)
    needed: Sequence[str] = ()
    only: Mapping[str, Any] = field(default_factory=dict)
    harmless: Sequence[str] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    slides: str | None = None
    rotates: str | None = None
    local_theta: float | None = None
    scales_embedding: bool = False
    planned_only: bool = False
    own_splitting: bool = False
    not_zero: Sequence[str] = ()

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Every key that may be left out, and what it is then."""
        return {**_EVERY["left_out"], **self.left_out}

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key that it reads."""
        return (*_EVERY["needed"], *self.needed, *self.defaults)

    @property
    def only_values(self) -> Mapping[str, Any]:
        """Keys that may have one value alone."""
        every = {**_EVERY["only"], **self.only}
        return {name: value for name, value in every.items() if name not in self.left_out}


def _rotates(raw: Mapping[str, Any], layer: int) -> bool:
    if raw["no_rope_layers"] is not None:
        return bool(raw["no_rope_layers"][layer])
    return bool((layer + 1) % raw["no_rope_layer_interval"])


LAYERS: Final[Mapping[str, Callable[[Mapping[str, Any], int], bool]]] = {
    "every": lambda raw, layer: True,
    "but every 2nd": lambda raw, layer: (layer + 1) % 2 != 0,
    "but every 4th": lambda raw, layer: (layer + 1) % 4 != 0,
    "but every sliding_window_pattern": lambda raw, layer: (layer + 1) % raw["sliding_window_pattern"] != 0,
    "from max_window_layers": lambda raw, layer: layer >= raw["max_window_layers"],
    "with rotation": _rotates,
    "without rotation": lambda raw, layer: not _rotates(raw, layer),
}
"""Whether a layer, counted from 0, is one of those that a row names, by the keys of a config.json."""


def _with_nulls(value: Any) -> Any:
    """TOML has no null."""
    if isinstance(value, dict):
        return {name: _with_nulls(each) for name, each in value.items()}
    return None if value == "none" else value


_TABLES: Final = _with_nulls(tomllib.loads(Path(__file__).with_name("families.toml").read_text("utf-8")))
_EVERY: Final[Mapping[str, Any]] = _TABLES["every"]
KEYS: Final[Mapping[str, Key]] = {
    name: Key(tuple(fields), kind) for kind, keys in _TABLES["keys"].items() for name, fields in keys.items()
}
HARMLESS: Final = frozenset(_EVERY["harmless"])
FAMILIES: Final[Mapping[str, Family]] = {name: Family(**row) for name, row in _TABLES["family"].items()}
