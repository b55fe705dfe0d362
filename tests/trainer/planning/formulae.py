"""Formulae of Megatron's papers, to turn what they print into seconds and back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpt:
    """The GPT of 2104.04473 and 2205.05198: l layers of width h, vocabulary V, sequence length s."""

    num_layers: int
    width: int
    vocab_size: int = 51_200
    seq_len: int = 2_048


def gpt_parameters(gpt: Gpt) -> float:
    """12lh²(1 + 13/(12h) + (V+s)/(12lh)) (Narayanan et al., 2104.04473, equation 2)."""
    layers, width = gpt.num_layers, gpt.width
    extra = 13 / (12 * width) + (gpt.vocab_size + gpt.seq_len) / (12 * layers * width)
    return 12 * layers * width**2 * (1 + extra)


def gpt_step_flops(gpt: Gpt, batch: int) -> float:
    """96Bslh²(1 + s/(6h) + V/(16lh)): a step with full recomputation (2104.04473, equation 3)."""
    layers, width = gpt.num_layers, gpt.width
    extra = gpt.seq_len / (6 * width) + gpt.vocab_size / (16 * layers * width)
    return 96 * batch * gpt.seq_len * layers * width**2 * (1 + extra)


def gpt_model_flops(gpt: Gpt, batch: int) -> float:
    """72Blsh²(1 + s/(6h) + V/(12hl)): a step, nothing counted twice (2205.05198, appendix A, equation 7)."""
    return _gpt_flops(gpt, batch, attention=6)


def gpt_hardware_flops(gpt: Gpt, batch: int) -> float:
    """72Blsh²(1 + s/(3h) + V/(12hl)): a step with selective recomputation (2205.05198, appendix A, equation 8)."""
    return _gpt_flops(gpt, batch, attention=3)


def _gpt_flops(gpt: Gpt, batch: int, *, attention: int) -> float:
    layers, width = gpt.num_layers, gpt.width
    extra = gpt.seq_len / (attention * width) + gpt.vocab_size / (12 * layers * width)
    return 72 * batch * layers * gpt.seq_len * width**2 * (1 + extra)


def training_seconds(num_tokens: float, num_parameters: float, num_gpus: int, flops_per_gpu: float) -> float:
    """8TP/(nX), with full recomputation (2104.04473, equation 4)."""
    return 8 * num_tokens * num_parameters / (num_gpus * flops_per_gpu)


def bubble_of_useful(stages: int, micro_batches: int, virtual_stages: int = 1) -> float:
    """Idle time over useful time, (p−1)/(v·m) (2104.04473, sections 2.2.1 and 2.2.2)."""
    return (stages - 1) / (virtual_stages * micro_batches)


def bubble_of_whole(stages: int, micro_batches: int, virtual_stages: int = 1) -> float:
    """Idle time over the whole, (p−1)/(v·m + p−1): of 1F1B and GPipe at v = 1."""
    return (stages - 1) / (virtual_stages * micro_batches + stages - 1)
