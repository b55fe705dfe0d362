"""Machines: GPUs with memory, bandwidth, peaks and links from their makers' data sheets; the share of a peak
that a model uses."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from lineage.recipe import RecipeError
from trainer.model.config.description import ModelConfig
from trainer.options import PlanTable
from trainer.planning.counts import flops_per_token


@dataclass(frozen=True, slots=True)
class Gpu:
    """`memory_bytes` is what the data sheet promises, in decimal gigabytes; `memory_bandwidth` its bytes a
    second; `peak_flops` dense bfloat16 operations a second, without sparsity, `peak_float8` those of float8
    (None: it has none). Of the machines it is sold in: GPUs of a node, GPUs that share the fast link (its
    NVLink domain), and gigabits a second and GPU, one way, over that link and between nodes."""

    name: str
    memory_bytes: int
    memory_bandwidth: float
    peak_flops: float
    peak_float8: float | None
    gpus_per_node: int
    gpu_domain: int
    intra_gbps: float
    inter_gbps: float
    source: str

    def ridge(self, *, float8: bool = False) -> float:
        """Operations a byte of memory at which products are bound by neither (Williams et al. 2009)."""
        return ((self.peak_float8 if float8 else None) or self.peak_flops) / self.memory_bandwidth


def _gpu(
    name: str,
    memory: tuple[int, float],
    teraflops: tuple[float, float | None],
    links: tuple[int, int, float, float],
    source: str,
) -> Gpu:
    """From gigabytes and terabytes a second, teraflops in bfloat16 and float8, and what the links are."""
    (gigabytes, terabytes), (bfloat16, float8), (node, domain, intra, inter) = memory, teraflops, links
    size, bandwidth, peak = gigabytes * 10**9, terabytes * 1e12, bfloat16 * 1e12
    peak_float8 = None if float8 is None else float8 * 1e12
    return Gpu(name, size, bandwidth, peak, peak_float8, node, domain, intra, inter, source)


# Where a sheet prints peaks with sparsity (all of NVIDIA's since the H100 but for float4), half of them
# stands here; of a link's bandwidth in both directions too. Without a bridge the fast link is PCIe (gen 4:
# 256, gen 5: 512 gigabits). Adapters are those of the makers' reference machines (DGX, HGX, NVL72), of boards
# with PCIe those of clouds.
# fmt: off
GPUS: Final[Mapping[str, Gpu]] = {
    gpu.name: gpu
    for gpu in (
        _gpu("H100", (80, 3.35), (989, 1979), (8, 8, 3600, 400), "NVIDIA H100 data sheet, SXM; DGX H100"),
        _gpu("H100-96GB", (96, 2.4), (989, 1979), (8, 8, 3600, 400),
             "H100 with HBM2e at 500 W: torchtitan's benchmarks/llama3_h100_202412_torchtitan.md"),
        _gpu("H100 PCIe", (80, 2.0), (756, 1513), (8, 8, 512, 200),
             "NVIDIA H100 data sheet, PCIe: half of 1,513 and 3,026 TF"),
        _gpu("H100 NVL", (94, 3.9), (835, 1670), (8, 2, 2400, 200),
             "NVIDIA H100 NVL data sheet: half of 1,671 and 3,341 TF; bridges of two"),
        _gpu("H200", (141, 4.8), (989, 1979), (8, 8, 3600, 400), "NVIDIA H200 data sheet, SXM"),
        _gpu("H200 NVL", (141, 4.8), (835, 1670), (8, 4, 3600, 400),
             "NVIDIA H200 data sheet, NVL: half of 1,671 and 3,341 TF; bridges of four"),
        _gpu("H800", (80, 3.35), (989, 1979), (8, 8, 1600, 400),
             "NVIDIA H800: an H100 with 400 GB/s of NVLink; DeepSeek-V3 (2412.19437, section 3.1)"),
        _gpu("B200", (180, 7.7), (2250, 4500), (8, 8, 7200, 400),
             "NVIDIA HGX B200 data sheet: an eighth of its 1.4 TB, 36 and 72 PF"),
        _gpu("GB200", (186, 8.0), (2500, 5000), (4, 72, 7200, 400),
             "NVIDIA GB200 NVL72 data sheet: 1/72 of 13.4 TB, 360 and 720 PF; trays of 4"),
        _gpu("B300", (270, 7.7), (2250, 4500), (8, 8, 7200, 800),
             "NVIDIA HGX B300 data sheet: an eighth of its 2.1 TB, 36 and 72 PF"),
        _gpu("GB300", (279, 8.0), (2500, 5000), (4, 72, 7200, 800),
             "NVIDIA GB300 NVL72 data sheet: 1/72 of 20 TB, 576 TB/s, 360 and 720 PF"),
        _gpu("A100", (80, 2.039), (312, None), (8, 8, 2400, 200),
             "NVIDIA A100 data sheet, SXM, 80 GB; DGX A100"),
        _gpu("A100-40GB", (40, 1.555), (312, None), (8, 8, 2400, 200), "NVIDIA A100 data sheet, SXM, 40 GB"),
        _gpu("L40S", (48, 0.864), (362, 733), (8, 8, 256, 50), "NVIDIA L40S data sheet; AWS g6e.48xlarge"),
        _gpu("A10G", (24, 0.6), (70, None), (8, 8, 256, 12.5), "NVIDIA A10G data sheet; AWS g5.48xlarge"),
        _gpu("MI300X", (192, 5.3), (1307, 2615), (8, 8, 3584, 400),
             "AMD Instinct MI300X data sheet: 7 of 128 GB/s"),
        _gpu("MI355X", (288, 8.0), (2517, 5033), (8, 8, 4301, 400),
             "AMD Instinct MI355X data sheet: 7 of 153.6 GB/s"),
    )
}
# fmt: on


REACHED: Final[Mapping[str, tuple[float, float, float]]] = {
    "A100": (0.859, 0.859, 0.6),
    "H100": (0.801, 0.709, 0.339),
    "H200": (0.803, 0.734, 0.339),
    "H800": (0.801, 0.709, 0.339),
    "B200": (0.776, 0.763, 0.3),
    "B300": (0.786, 0.745, 0.3),
    "GB200": (0.729, 0.723, 0.3),
    "GB300": (0.850, 0.843, 0.35),
    "MI300X": (0.601, 0.601, 0.3),
    "H100-96GB": (0.62, 0.549, 0.262),
}
"""Shares of a peak: what the best of large products reaches alone, in bfloat16 and in float8 (Bekman,
"Machine Learning Engineering", table of maximum achievable matmul FLOPS), and fused attention with its
backward pass, of the bfloat16 one (FlashAttention-2, 2307.08691, section 4.1: 190 of 312 TF on A100, 335 on
H100; guessed for B200 and MI300X).

An H800 computes as an H100 does. Products are bound by power: nobody has measured a GB300 so, and its shares
are a GB200's times 1,400 over 1,200 W (NVIDIA's sheets of the two racks); an H100 of 500 W reaches .62 in
bfloat16 (fitted), and of the others the same part of what one of 700 W does."""
GUESSED: Final = (0.75, 0.7, 0.3)
"""The same of GPUs that nobody measured so."""
SUSTAINED: Final = 0.93
"""What products keep up of that in training, where power and clocks sink: fitted to the runs of CALIBRATED in
tests/trainer/planning/published.py."""
COPIES: Final = 0.85
"""What of the memory's bandwidth kernels reach that it bounds: fitted."""
LINKS: Final = (0.75, 0.85)
"""What of the rate of the fast link, and of that between nodes, collectives of large messages reach:
fitted."""


class MeasuredLayer(NamedTuple):
    """Seconds of a layer's forward and backward pass, and of an update of its parameters, all by one rank."""

    forward: float
    backward: float
    update: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredDevice:
    """What `sluice plan --measure` found. Seconds of the products of each shape; of each kind of layer
    (`Kernels.described`); of forward and backward of embedding, head and loss, and of an update of their
    parameters; a hop of its collectives, microseconds."""

    device: str
    products: Mapping[tuple[int, int, int], float]
    layers: Mapping[str, MeasuredLayer]
    ends: tuple[float, float]
    update: float
    hop_us: float | None


def _read_measured(path: str) -> tuple[Gpu, MeasuredDevice]:
    """The device as a GPU, and its table."""
    try:
        raw = json.loads(Path(path).read_text(encoding="utf-8"))
        device, peak = raw["device"], peak_of_device(raw["device"])
        known = next((gpu for gpu in GPUS.values() if gpu.peak_flops == peak and gpu.name in device), None)
        link = raw["link"]
        if known is None:
            links = (1, 1, link["gbps"], link["gbps"])
            known = _gpu(device, (0, 0.0), (raw["peak_flops"] / 1e12, None), links, "")
        gpu = replace(
            known,
            name=device,
            memory_bytes=raw["memory_bytes"],
            memory_bandwidth=raw["copy_bytes_per_second"],
            source=f"measured: {path}",
        )
        products = {tuple(product["shape"]): product["seconds"] for product in raw["products"]}
        return gpu, MeasuredDevice(
            device=device,
            products=products,
            layers={one["of"]: MeasuredLayer(*one["seconds"]) for one in raw.get("layers", ())},
            ends=raw.get("ends", (0.0, 0.0)),
            update=raw.get("update", 0.0),
            hop_us=link and link["hop_us"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecipeError(
            f"plan.measured = {path!r}: expected a file of `sluice plan --measure` ({error!r})"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Machine:
    """The machines of a plan: the keys of `[plan]`, and for those that it leaves out what belongs to the
    GPU's name."""

    gpu: Gpu
    plan: PlanTable
    gpus_per_node: int
    gpu_domain: int
    intra_gbps: float
    inter_gbps: float
    reached: float
    reached_float8: float
    attention: float
    memory_bandwidth: float
    usable_bytes: float
    measured: MeasuredDevice | None = None

    @property
    def origin(self) -> str:
        """Where the speed of kernels comes from, and what MFU is then."""
        if self.plan.efficiency is not None:
            return "given by plan.efficiency: MFU is an input"
        if self.measured is not None:
            return f"measured on {self.measured.device}: MFU is a result"
        if self.gpu.name in REACHED:
            return "from published measurements of this GPU: MFU is a result"
        return "guessed, as nobody has published any of this GPU: MFU is a result"


def machine_of(plan: PlanTable) -> Machine:
    """RecipeError where the GPU is not known. A recipe that gives `gpus_per_node` alone means the fast link's
    too."""
    gpu, measured = (gpu_named(plan.gpu), None) if plan.measured is None else _read_measured(plan.measured)
    products, float8, attention = REACHED.get(gpu.name, GUESSED)
    reached, copies, (intra, inter) = products * SUSTAINED, COPIES, LINKS
    if measured is not None:
        # What was measured is reached whole.
        best = max(2.0 * math.prod(shape) / seconds for shape, seconds in measured.products.items())
        reached, copies, intra, inter = best / gpu.peak_flops, 1.0, 1.0, 1.0
        if measured.hop_us is not None:
            # What was timed between processes takes the processors that compute: nothing of it is hidden.
            plan = replace(plan, latency_us=(measured.hop_us,) * 3, overlap=0.0)
    return Machine(
        gpu=gpu,
        plan=plan,
        gpus_per_node=plan.gpus_per_node or gpu.gpus_per_node,
        gpu_domain=plan.gpu_domain or plan.gpus_per_node or gpu.gpu_domain,
        intra_gbps=plan.intra_gbps or intra * gpu.intra_gbps,
        inter_gbps=plan.inter_gbps or inter * gpu.inter_gbps,
        reached=reached,
        reached_float8=reached * float8 / products,
        attention=attention,
        memory_bandwidth=copies * gpu.memory_bandwidth,
        usable_bytes=gpu.memory_bytes * (1 - plan.headroom),
        measured=measured,
    )


def gpu_named(name: str) -> Gpu:
    """The GPU of `plan.gpu`, upper or lower case; RecipeError names those that are known."""
    for known, gpu in GPUS.items():
        if known.lower() == name.lower():
            return gpu
    raise RecipeError(f"plan.gpu = {name!r}: expected one of {', '.join(GPUS)}")


def peak_of_device(name: str) -> float | None:
    """The peak of a device that calls itself so, as "NVIDIA H100 80GB HBM3"; None if it is none of `GPUS`."""
    # The longest name first: B200 is part of the name of a GB200, and H100 of that of an H100 PCIe.
    names = sorted(GPUS, key=len, reverse=True)
    return next((GPUS[known].peak_flops for known in names if known in name), None)


def mfu(config: ModelConfig, seq_len: int, tokens_per_second: float, peak_flops: float) -> float:
    """Model FLOPs utilisation of one GPU: (6·(N − embeddings) + 12·L·H·Q·T) · tokens/s ÷ peak.

    N − embeddings counts the parameters that a token is multiplied with (the output matrix is, the input
    embedding is not), L layers, H heads of Q numbers, T sequence length. Recomputation is not counted, nor
    that documents shorten attention (PaLM, 2204.02311, appendix B). `tokens_per_second` is that of one
    GPU."""
    return flops_per_token(config, seq_len) * tokens_per_second / peak_flops
