"""Rotary positions (Su et al., 2104.09864) by the rule of a layer."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trainer.model.config.description import LinearScaling, Llama3Scaling, Rotary, YarnScaling

Turns = Tensor
"""Cosines and sines of the rotary embedding's angles, (2, B, T, K/2)."""


def rotary_angles(positions_BT: Tensor, rule: Rotary, size: int, dtype: torch.dtype) -> Tensor:
    """Angles (B, T, K/2) of heads of which `size` numbers are rotated."""
    exponents = torch.arange(0, size, 2, device=positions_BT.device, dtype=dtype) / size
    frequencies, scaling = rule.theta**-exponents, rule.scaling
    if isinstance(scaling, LinearScaling):
        frequencies = frequencies / scaling.factor
    elif isinstance(scaling, Llama3Scaling):
        frequencies = _stretch(frequencies, scaling)
    elif isinstance(scaling, YarnScaling):
        frequencies = _stretch_by_parts(frequencies, scaling, rule.theta)
    return positions_BT[..., None].to(dtype) * frequencies


def _stretch(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Long waves are slowed by `factor`, short ones left, those between blended."""
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0, 1)
    return frequencies * (blend + (1 - blend) / scaling.factor)


def _stretch_by_parts(frequencies: Tensor, scaling: YarnScaling, theta: float) -> Tensor:
    """YaRN's "NTK-by-parts" (2309.00071, section 3.2): the blend runs over the number of a frequency, from where a
    wave turns `beta_fast` times in the original length to where it turns `beta_slow` times."""
    size = 2 * len(frequencies)

    def number(turns: float) -> float:
        length = scaling.original_max_position_embeddings
        return size * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = number(scaling.beta_fast), number(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    high += 0.001 if high == low else 0
    ramp = torch.arange(len(frequencies), device=frequencies.device, dtype=frequencies.dtype)
    slowed = ((ramp - low) / (high - low)).clamp(0, 1)
    return frequencies / scaling.factor * slowed + frequencies * (1 - slowed)


def rotary_turns(positions_BT: Tensor, rule: Rotary, size: int, dtype: torch.dtype) -> Turns:
    """Cosines and sines, which all layers with this rule share: backward needs them."""
    angles_BTK = rotary_angles(positions_BT, rule, size, dtype)
    turns = torch.stack((angles_BTK.cos(), angles_BTK.sin()))
    return turns * rule.scaling.amplitude if isinstance(rule.scaling, YarnScaling) else turns


def rotate(x_BTHK: Tensor, turns: Turns | None, *, interleaved: bool = False) -> Tensor:
    """`x` turned by its position (None: left). Coordinate i turns with i + K/2, as in Hugging Face's layout;
    `interleaved`: 2i with 2i + 1."""
    if turns is None:
        return x_BTHK
    cosine, sine = (of_angles_BTK.unsqueeze(2) for of_angles_BTK in turns)
    wide = x_BTHK.to(cosine.dtype)
    first, second = (wide[..., 0::2], wide[..., 1::2]) if interleaved else wide.chunk(2, dim=-1)
    turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
    return turned.to(x_BTHK.dtype)
