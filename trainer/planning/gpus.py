"""GPUs: memory, its bandwidth and peaks from their makers' data sheets, and the share of a peak that a model uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lineage.recipe import RecipeError
from trainer.model.sizes import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """`memory_bytes` is what the data sheet promises, in decimal gigabytes; `memory_bandwidth` its bytes a second;
    `peak_flops` dense bfloat16 operations a second, without sparsity, `peak_float8` those of float8 (None: it has
    none)."""

    name: str
    memory_bytes: int
    memory_bandwidth: float
    peak_flops: float
    peak_float8: float | None
    source: str

    @property
    def ridge(self) -> float:
        """Operations a byte of memory at which bfloat16 products are bound by neither (Williams et al. 2009)."""
        return self.peak_flops / self.memory_bandwidth

    @property
    def float8_ridge(self) -> float:
        """The same of float8 products, where it has them."""
        assert self.peak_float8 is not None
        return self.peak_float8 / self.memory_bandwidth


def _gpu(name: str, memory: tuple[int, float], teraflops: tuple[float, float | None], source: str) -> Gpu:
    """From gigabytes and terabytes a second, and teraflops in bfloat16 and float8."""
    gigabytes, terabytes = memory
    bfloat16, float8 = teraflops
    return Gpu(
        name=name,
        memory_bytes=gigabytes * 10**9,
        memory_bandwidth=terabytes * 1e12,
        peak_flops=bfloat16 * 1e12,
        peak_float8=None if float8 is None else float8 * 1e12,
        source=source,
    )


# Where a sheet prints peaks with sparsity (all of NVIDIA's since the H100 but for float4), half of them stands here.
GPUS: Final[Mapping[str, Gpu]] = {
    gpu.name: gpu
    for gpu in (
        _gpu("H100", (80, 3.35), (989, 1979), "NVIDIA H100 data sheet, SXM"),
        _gpu("H100 PCIe", (80, 2.0), (756, 1513), "NVIDIA H100 data sheet, PCIe: half of 1,513 and 3,026 TF"),
        _gpu("H100 NVL", (94, 3.9), (835, 1670), "NVIDIA H100 NVL data sheet: half of 1,671 and 3,341 TF"),
        _gpu("H200", (141, 4.8), (989, 1979), "NVIDIA H200 data sheet, SXM"),
        _gpu("H200 NVL", (141, 4.8), (835, 1670), "NVIDIA H200 data sheet, NVL: half of 1,671 and 3,341 TF"),
        _gpu("B200", (180, 7.7), (2250, 4500), "NVIDIA HGX B200 data sheet: an eighth of its 1.4 TB, 36 and 72 PF"),
        _gpu("GB200", (186, 8.0), (2500, 5000), "NVIDIA GB200 NVL72 data sheet: 1/72 of 13.4 TB, 360 and 720 PF"),
        _gpu("B300", (270, 7.7), (2250, 4500), "NVIDIA HGX B300 data sheet: an eighth of its 2.1 TB, 36 and 72 PF"),
        _gpu(
            "GB300", (279, 8.0), (2500, 5000), "NVIDIA GB300 NVL72 data sheet: 1/72 of 20 TB, 576 TB/s, 360 and 720 PF"
        ),
        _gpu("A100", (80, 2.039), (312, None), "NVIDIA A100 data sheet, SXM, 80 GB"),
        _gpu("A100-40GB", (40, 1.555), (312, None), "NVIDIA A100 data sheet, SXM, 40 GB"),
        _gpu("L40S", (48, 0.864), (362, 733), "NVIDIA L40S data sheet"),
        _gpu("A10G", (24, 0.6), (70, None), "NVIDIA A10G data sheet"),
        _gpu("MI300X", (192, 5.3), (1307, 2615), "AMD Instinct MI300X data sheet"),
        _gpu("MI355X", (288, 8.0), (2517, 5033), "AMD Instinct MI355X data sheet"),
    )
}


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


def utilisation(flops_per_second: float, peak_flops: float) -> float:
    """Share of the peak: MFU of a model's own operations, HFU where recomputation is counted."""
    return flops_per_second / peak_flops


def mfu(config: ModelConfig, seq_len: int, tokens_per_second: float, peak_flops: float) -> float:
    """Model FLOPs utilisation of one GPU: (6·(N − embeddings) + 12·L·H·Q·T) · tokens/s ÷ peak.

    N − embeddings counts the parameters that a token is multiplied with (the output matrix is, the input embedding is
    not), L layers, H heads of Q numbers, T sequence length. Recomputation is not counted, nor that documents shorten
    attention (PaLM, 2204.02311, appendix B). `tokens_per_second` is that of one GPU."""
    return utilisation(config.flops_per_token(seq_len) * tokens_per_second, peak_flops)
