"""Operations and least memory traffic of an operator, from the shapes that torch.profiler records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

ITEM_SIZES: Final = {
    "float": 4, "double": 8, "int": 4, "long int": 8, "short int": 2, "signed char": 1, "unsigned char": 1,
    "bool": 1, "c10::Half": 2, "c10::BFloat16": 2, "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
    "c10::complex<float>": 8, "c10::complex<double>": 16,
}  # fmt: skip
"""Bytes of a number, by the names that profiles have for dtypes."""
SHORT: Final = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16",
    "c10::Float8_e4m3fn": "float8", "c10::Float8_e5m2": "float8",
}  # fmt: skip
"""The same names as the recipe has them."""

_PRODUCTS: Final = {
    "aten::mm": 0, "aten::bmm": 0, "aten::_scaled_mm": 0, "aten::addmm": 1, "aten::addmm_": 1, "aten::baddbmm": 1,
}  # fmt: skip
"""Products of two matrices, by the place of the first of them among the arguments."""
_ATTENTION: Final = (
    "aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention", "aten::_scaled_dot_product_flash_attention_for_cpu",
)  # fmt: skip

_MOVERS: Final = frozenset(
    f"aten::{name}"
    for words in (
        "add add_ sub sub_ mul mul_ div div_ neg exp log pow sqrt rsqrt abs tanh sigmoid silu silu_backward gelu",
        "gelu_backward tanh_backward where copy_ fill_ zero_ sum mean linalg_vector_norm _foreach_norm _softmax",
        "_log_softmax _softmax_backward_data _log_softmax_backward_data nll_loss_forward nll_loss_backward cat",
        "_fused_rms_norm _fused_rms_norm_backward native_layer_norm _foreach_mul_ _foreach_add_ _fused_adamw_",
        "exp_ amax tanh_ _foreach_copy_ lerp_ addcmul_ addcdiv_ clamp_min clamp_max maximum minimum",
    )
    for name in words.split()
)
"""Operators that read each number of their arguments; of others, as an embedding, the shapes do not tell."""
_WRITERS: Final = ("aten::copy_", "aten::fill_", "aten::zero_", "aten::_foreach_copy_")
"""Operators in place that do not read what they write."""


class Shape(NamedTuple):
    """A tensor argument: its sides, its dtype as the profile names it, and its strides."""

    sides: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] = ()

    @property
    def numel(self) -> int:
        """How many numbers it has."""
        return math.prod(self.sides)

    @property
    def num_bytes(self) -> int:
        """Its bytes in memory, where what is repeated along a side of stride 0 lies once; of an unknown dtype
        four a number."""
        repeated = math.prod(
            side for side, stride in zip(self.sides, self.strides, strict=False) if not stride
        )
        return self.numel // max(1, repeated) * ITEM_SIZES.get(self.dtype, 4)


class OperatorCost(NamedTuple):
    """Operations (None: not known), bytes that must be moved at least (None: not known), dtype."""

    flops: float | None
    num_bytes: float | None
    dtype: str


UNKNOWN: Final = OperatorCost(None, None, "")


def tensors_of(arguments: Mapping[str, object]) -> list[Shape | None]:
    """The arguments of an operator that are tensors, in their places; those of a list one after the other, None
    for what is no tensor. `arguments`: "args" of an event."""
    found: list[Shape | None] = []
    dims = _list(arguments, "Input Dims")
    strides = _list(arguments, "Input Strides") or [[]] * len(dims)
    kinds = _list(arguments, "Input type") or _list(arguments, "Input Type")
    for sides, kind, steps in zip(dims, kinds, strides, strict=False):
        if kind == "TensorList":
            found += [Shape(tuple(one), "") for one in sides if isinstance(one, list)]
        elif kind in ITEM_SIZES and isinstance(sides, list) and all(isinstance(one, int) for one in sides):
            found.append(Shape(tuple(sides), kind, tuple(steps)))
        else:
            found.append(None)
    return found


def _list(arguments: Mapping[str, object], name: str) -> list[Any]:
    found = arguments.get(name)
    return found if isinstance(found, list) else []


def cost_of(operator: str, arguments: Mapping[str, object]) -> OperatorCost:
    """What the operator costs at least. Products have 2·m·n·k operations, attention two of them over all
    positions (as the peak of a kernel without a mask has it: a causal kernel may show up to twice its share)
    and backward five; other operators read each argument once, and those in place write the first one."""
    shapes = tensors_of(arguments)
    given = [shape for shape in shapes if shape is not None]
    if not given:
        return UNKNOWN
    dtype = given[0].dtype
    if operator in _PRODUCTS:
        return _product(shapes[_PRODUCTS[operator] :], given)
    if operator.removesuffix("_backward") in _ATTENTION:
        return _attention(given, backward=operator.endswith("_backward"))
    if operator not in _MOVERS and not operator.startswith("triton_"):
        return OperatorCost(None, None, dtype)
    moved = float(sum(shape.num_bytes for shape in given))
    if operator == "aten::_fused_adamw_":
        # Weights, gradients and both moments are read, all but the gradients written (and steps, which are small).
        moved *= 7 / 4
    elif operator.endswith("_") and operator not in _WRITERS:
        moved += given[0].num_bytes
    return OperatorCost(None, moved, dtype)


def _product(factors: Sequence[Shape | None], given: Sequence[Shape]) -> OperatorCost:
    if len(factors) < 2 or factors[0] is None or factors[1] is None:
        return UNKNOWN
    left, right = factors[0], factors[1]
    if len(left.sides) < 2 or len(right.sides) < 2:
        return UNKNOWN
    columns = right.sides[-1]
    rows = left.numel // max(1, left.sides[-1])
    written = rows * columns * max(2, ITEM_SIZES.get(left.dtype, 4))
    moved = float(sum(shape.num_bytes for shape in given) + written)
    return OperatorCost(2.0 * left.numel * columns, moved, left.dtype)


def _attention(given: Sequence[Shape], *, backward: bool) -> OperatorCost:
    """Queries, keys, values (behind the gradient of the output, in backward): (…, heads, length, width)."""
    queries = given[1 if backward else 0 :][:3]
    if len(queries) < 3 or any(len(shape.sides) < 3 for shape in queries):
        return UNKNOWN
    query, key, value = queries
    rows = query.numel // max(1, query.sides[-1])
    scores, sums = (2.0 * rows * key.sides[-2] * wide for wide in (query.sides[-1], value.sides[-1]))
    flops = 3 * scores + 2 * sums if backward else scores + sums
    moved = float(sum(shape.num_bytes for shape in queries) + query.num_bytes) * (2 if backward else 1)
    return OperatorCost(flops, moved, query.dtype)
