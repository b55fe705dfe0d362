"""Formulae of the papers of Megatron and ZeRO, to turn what they print into seconds and bytes, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainer.planning.layout import Recompute


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
    """72Blsh²(1 + s/(3h) + V/(12hl)): a step with selective recomputation (2205.05198, appendix A, equation
    8)."""
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


def zero_volume(num_parameters: float, stage: Literal[0, 1, 2, 3]) -> float:
    """Parameters that a GPU sends in a step: 2Ψ for data parallelism and stages 1 and 2, 3Ψ for stage 3
    (ZeRO, 1910.02054, section 7)."""
    return (3 if stage == 3 else 2) * num_parameters


def zero_bytes(num_parameters: float, num_gpus: int, stage: Literal[0, 1, 2, 3]) -> float:
    """Model states of one GPU in mixed precision with Adam: 2 bytes a parameter, 2 a gradient, 12 of states
    (float32 weight, momentum, variance), of which the stage shards over `num_gpus` (ZeRO, 1910.02054, table
    1, figure 1)."""
    shared = {0: 0, 1: 12, 2: 14, 3: 16}[stage]
    return num_parameters * ((16 - shared) + shared / num_gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class GptLayer:
    """A layer of the GPT of 2205.05198: sequence length s, micro-batch b, width h, attention heads a."""

    seq_len: int
    micro_batch: int
    width: int
    num_heads: int


def gpt_layer_activations(
    layer: GptLayer, *, tp: int = 1, sequence_parallel: bool = False, recompute: Recompute = "none"
) -> float:
    """Bytes that a GPT layer keeps for backward at 16 bits (Korthikanti et al., 2205.05198, table 2).

    sbh(10 + 24/t + 5as/(ht)); with sequence parallelism all of it is divided by t; selective recomputation
    drops attention's 5as/h; full recomputation keeps the layer's input, 2sbh."""
    sbh = layer.seq_len * layer.micro_batch * layer.width
    if recompute == "full":
        return 2.0 * sbh
    attention = 5 * layer.num_heads * layer.seq_len / layer.width if recompute == "none" else 0.0
    whole = 10 / tp if sequence_parallel else 10
    return sbh * (whole + 24 / tp + attention / tp)
