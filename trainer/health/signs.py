"""Signs that announce a node's death: what the Linux kernel counts, and what an NVIDIA GPU says of itself.

A reading is a set of counters; what grew between two readings, and by how much, is a sign or is not. No torch
here."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

Counters = dict[str, int]
"""By name: what is counted, and where."""

_RETRANSMITTED: Final = "tcp segments sent again"
_SENT: Final = "tcp segments sent"
_LEAST_SEGMENTS: Final = 100
_RETRANSMITTED_SHARE: Final = 0.01
"""One of a hundred segments: TCP's rate falls with the root of the loss (Mathis et al. 1997), here to some
megabits a second over a wide link, which is less than any training asks for."""
_CORRECTED: Final = "corrected"
_LEAST_CORRECTED: Final = 100
"""Corrected memory errors are common, in bursts they announce others (Schroeder et al. 2009, "DRAM errors in
the wild", section 4)."""

_FILES: Final[Mapping[str, str]] = {
    "sys/devices/system/edac/mc/mc*/ce_count": "corrected memory errors",
    "sys/devices/system/edac/mc/mc*/ue_count": "uncorrected memory errors",
    "sys/devices/system/cpu/cpu*/thermal_throttle/package_throttle_count": "times that the processor was throttled",
    "sys/class/net/*/statistics/rx_errors": "network errors, received",
    "sys/class/net/*/statistics/tx_errors": "network errors, sent",
    "sys/block/*/device/ioerr_cnt": "disk errors",
    "sys/fs/ext4/*/errors_count": "file system errors",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """What was counted, and how often since the reading before."""

    what: str
    count: int


def read_kernel(root: str = "/") -> Counters:
    """The kernel's counters; those that a machine does not have are not there."""
    found: Counters = {}
    for pattern, what in _FILES.items():
        for path in sorted(glob.glob(os.path.join(root, pattern))):
            parts = Path(path).parts
            star = len(Path(root).parts) + pattern.split("/").index(
                next(p for p in pattern.split("/") if "*" in p)
            )
            try:
                # ioerr_cnt is in hexadecimal with 0x before it, all others are decimal.
                found[f"{what} of {parts[star]}"] = int(Path(path).read_text().strip() or "0", 0)
            except (OSError, ValueError):
                continue  # a device that is going away, or has no such counter behind its file
    try:
        rows = [
            line.split()
            for line in Path(root, "proc/net/snmp").read_text().splitlines()
            if line.startswith("Tcp:")
        ]
        tcp = dict(zip(rows[0][1:], rows[1][1:], strict=False))
        found[_RETRANSMITTED], found[_SENT] = int(tcp["RetransSegs"]), int(tcp["OutSegs"])
    except (OSError, KeyError, ValueError, IndexError):
        pass
    return found


def read_gpus(nvml: Any) -> Counters:
    """What the GPUs of this node count, through nvidia-ml-py's module (or one that answers as it does). What
    a GPU does not support is left out."""
    found: Counters = {}
    for number in range(nvml.nvmlDeviceGetCount()):
        gpu = nvml.nvmlDeviceGetHandleByIndex(number)
        for what, question in _questions(nvml, gpu).items():
            try:
                found[f"{what} of GPU {number}"] = int(question())
            except nvml.NVMLError:
                continue  # not supported by this GPU
    return found


def _questions(nvml: Any, gpu: Any) -> dict[str, Callable[[], Any]]:
    """What is asked of a GPU: counters, and states that are 0 or 1."""

    def memory_errors(kind: int) -> Any:
        return nvml.nvmlDeviceGetTotalEccErrors(gpu, kind, nvml.NVML_VOLATILE_ECC)

    def is_hot() -> bool:
        limit = nvml.nvmlDeviceGetTemperatureThreshold(gpu, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
        return bool(nvml.nvmlDeviceGetTemperatureV(gpu, nvml.NVML_TEMPERATURE_GPU) >= limit)

    def link_errors(link: int) -> Any:
        return nvml.nvmlDeviceGetNvLinkErrorCounter(gpu, link, nvml.NVML_NVLINK_ERROR_DL_CRC_FLIT)

    slowed = nvml.nvmlClocksEventReasonHwSlowdown
    asked: dict[str, Callable[[], Any]] = {
        "corrected memory errors": partial(memory_errors, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        "uncorrected memory errors": partial(memory_errors, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        "rows remapped": lambda: nvml.nvmlDeviceGetRemappedRows(gpu)[1],
        "hardware slowdown": lambda: bool(nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu) & slowed),
        "slowdown temperature": is_hot,
    }
    return asked | {
        f"NVLink {link} errors": partial(link_errors, link) for link in range(nvml.NVML_NVLINK_MAX_LINKS)
    }


class Xids:
    """The critical errors (Xid) that a node's GPUs report; nothing where they cannot be watched."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._events = nvml.nvmlEventSetCreate()
        for number in range(nvml.nvmlDeviceGetCount()):
            try:
                gpu = nvml.nvmlDeviceGetHandleByIndex(number)
                nvml.nvmlDeviceRegisterEvents(gpu, nvml.nvmlEventTypeXidCriticalError, self._events)
            except nvml.NVMLError:
                continue  # a GPU without events is watched by its counters alone

    def came(self) -> Iterator[Sign]:
        """Those since the last call."""
        while True:
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except self._nvml.NVMLError:
                return  # none is waiting
            yield Sign(what=f"Xid {event.eventData} of a GPU", count=1)


def signs(before: Counters, now: Counters) -> list[Sign]:
    """What grew from one reading to the next and means something. A counter that is new, or began anew,
    counts from nothing."""
    grown = {
        name: value - (before.get(name, 0) if value >= before.get(name, 0) else 0)
        for name, value in now.items()
    }
    grown = {name: count for name, count in grown.items() if name in before and count > 0}
    again, sent = grown.pop(_RETRANSMITTED, 0), grown.pop(_SENT, 0)
    found = [
        Sign(what=name, count=count)
        for name, count in sorted(grown.items())
        if not name.startswith(_CORRECTED) or count >= _LEAST_CORRECTED
    ]
    if again >= _LEAST_SEGMENTS and again > _RETRANSMITTED_SHARE * sent:
        found.append(Sign(what=f"{_RETRANSMITTED}, of {sent:,}", count=again))
    return found


class SignReader:
    """The signs of this node, from one call to the next."""

    def __init__(self, root: str = "/", nvml: Any = None) -> None:
        self._root, self._nvml = root, nvml
        self._xids = None if nvml is None else Xids(nvml)
        self._before = self._read()

    def read(self) -> list[Sign]:
        """What has come since the last call, or since this reader was made."""
        before, self._before = self._before, self._read()
        return [*signs(before, self._before), *(() if self._xids is None else self._xids.came())]

    def _read(self) -> Counters:
        return read_kernel(self._root) | ({} if self._nvml is None else read_gpus(self._nvml))


def open_nvml() -> Any:
    """nvidia-ml-py's module, ready; None where it is not installed, or finds no driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml
