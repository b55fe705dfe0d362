"""Operations, bubble, time of a step and utilisation. Operations are floating point; times in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.options import PlanTable
from trainer.planning.communication import Traffic
from trainer.planning.gpus import Gpu, mfu
from trainer.planning.layout import PlannedLayout


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


def recomputed_flops_per_token(layout: PlannedLayout) -> float:
    """Operations that backward does again for a token: full, forward of the layers; selective, the three of seven
    matrix products that are not kept (keys, attention's output projection, up); attention is kept."""
    config = layout.config
    if layout.recompute == "none":
        return 0.0
    if layout.recompute == "full":
        layers = 2.0 * config.num_layers * config.num_layer_parameters
        return layers + 4.0 * config.num_layers * config.width * layout.seq_len
    again = config.width * (config.head_dim * (config.num_kv_heads + config.num_heads) + config.hidden)
    return 2.0 * config.num_layers * again


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Estimate of a step. `*_seconds` are of one GPU; `exposed_seconds` is communication that computing does not hide;
    `bubble` is a share of the whole pipeline time."""

    step_seconds: float
    compute_seconds: float
    communication_seconds: float
    exposed_seconds: float
    bubble: float
    mfu: float
    hfu: float
    tokens_per_second: float
    tokens_per_second_per_gpu: float


def throughput(layout: PlannedLayout, sent: Sequence[Traffic], plan: PlanTable, gpu: Gpu) -> Throughput:
    """The time of a step and what share of the peak it makes of the GPUs.

    Kernels reach `plan.efficiency` of the peak. Tensor and context peers wait for each other; gathering and reducing
    over dp_shard runs beside forward and backward, the all-reduce over replicas beside the last backward, pipeline
    messages beside other micro-batches: what is longer than what hides it is exposed. The pipeline's bubble lengthens
    computing and waiting by (p−1)/(v·m), and the fullest stage sets the pace. The optimizer's pass over its states and
    the loading of data are not counted."""
    mesh, parts = layout.mesh, layout.num_micro_batches
    share = layout.tokens / mesh.tp * layout.num_stage_layers / layout.config.num_layers
    model_flops = layout.config.flops_per_token(layout.seq_len) * share
    again_flops = recomputed_flops_per_token(layout) * share
    speed = plan.efficiency * gpu.peak_flops
    forward, backward = model_flops / 3 / speed, (model_flops * 2 / 3 + again_flops) / speed

    waiting = sum(kind.seconds for kind in sent if kind.axis in ("tp", "cp")) / parts
    times = 1 if layout.synchronises_once else parts
    gather, reduce = (_seconds(sent, what) / times for what in ("all-gather", "reduce-scatter"))
    gather_forward = gather / 2 if layout.zero == 3 and not layout.synchronises_once else gather
    exposed = times * (
        max(0.0, gather_forward - forward) + max(0.0, gather - gather_forward + reduce - backward)
    ) + max(0.0, _seconds(sent, "all-reduce") - backward)

    idle = bubble_of_useful(mesh.pp, parts, plan.virtual_stages)
    step = (forward + backward + waiting) * parts * (1 + idle) + exposed
    per_gpu = layout.global_batch * layout.seq_len / step / mesh.num_workers
    utilised = mfu(layout.config, layout.seq_len, per_gpu, gpu.peak_flops)
    return Throughput(
        step_seconds=step,
        compute_seconds=(forward + backward) * parts,
        communication_seconds=sum(kind.seconds for kind in sent),
        exposed_seconds=waiting * parts + exposed,
        bubble=bubble_of_whole(mesh.pp, parts, plan.virtual_stages),
        mfu=utilised,
        hfu=utilised * (model_flops + again_flops) / model_flops,
        tokens_per_second=per_gpu * mesh.num_workers,
        tokens_per_second_per_gpu=per_gpu,
    )


def _seconds(sent: Sequence[Traffic], what: str) -> float:
    return sum(kind.seconds for kind in sent if kind.what.startswith(what) and kind.axis.startswith("dp"))
