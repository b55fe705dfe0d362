"""GPUs: memory and peak from their makers' data sheets, and the share of a peak that a model makes use of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lineage.recipe import RecipeError
from trainer.model.sizes import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """`memory_bytes` is what the data sheet promises, in decimal gigabytes; `peak_flops` dense bfloat16 operations a
    second, without sparsity."""

    name: str
    memory_bytes: int
    peak_flops: float
    source: str


def _gpu(name: str, gigabytes: int, teraflops: float, source: str) -> Gpu:
    return Gpu(name=name, memory_bytes=gigabytes * 10**9, peak_flops=teraflops * 1e12, source=source)


GPUS: Final[Mapping[str, Gpu]] = {
    gpu.name: gpu
    for gpu in (
        _gpu("H100", 80, 989, "NVIDIA H100 data sheet, SXM"),
        _gpu("H200", 141, 989, "NVIDIA H200 data sheet, SXM"),
        _gpu("B200", 180, 2250, "NVIDIA HGX B200 data sheet"),
        _gpu("A100", 80, 312, "NVIDIA A100 data sheet, SXM, 80 GB"),
        _gpu("A100-40GB", 40, 312, "NVIDIA A100 data sheet, SXM, 40 GB"),
        _gpu("L40S", 48, 362, "NVIDIA L40S data sheet"),
        _gpu("A10G", 24, 70, "NVIDIA A10G data sheet"),
        _gpu("MI300X", 192, 1307, "AMD Instinct MI300X data sheet"),
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
    return next((gpu.peak_flops for known, gpu in GPUS.items() if known in name), None)


def utilisation(flops_per_second: float, peak_flops: float) -> float:
    """Share of the peak: MFU of a model's own operations, HFU where recomputation is counted."""
    return flops_per_second / peak_flops


def mfu(config: ModelConfig, seq_len: int, tokens_per_second: float, peak_flops: float) -> float:
    """Model FLOPs utilisation of one GPU: (6·(N − embeddings) + 12·L·d·s) · tokens/s ÷ peak.

    N − embeddings counts the parameters that a token is multiplied with (the output matrix is, the input embedding is
    not), L layers, d width, s sequence length. Recomputation is not counted, nor that documents shorten attention
    (PaLM, 2204.02311, appendix B). `tokens_per_second` is that of one GPU."""
    return utilisation(config.flops_per_token(seq_len) * tokens_per_second, peak_flops)
