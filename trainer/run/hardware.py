"""What a process computes on, as far as the bits of a result hang on it."""

from __future__ import annotations

import platform

import torch

from trainer.provenance.setup import Hardware


def hardware_of(device: torch.device) -> Hardware:
    """What this process computes on."""
    if device.type == "cuda":
        return Hardware(name=torch.cuda.get_device_name(device), num_threads=1)
    return Hardware(name=_processor_name(), num_threads=torch.get_num_threads())


def _processor_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            found = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
            return next(found, platform.machine())
    except FileNotFoundError:
        return platform.machine()
