"""Traces of a GPU for tests, in the forms that torch.profiler and Nsight Systems write. Times in microseconds."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SQUARE = 4096
"""Sides of the product's matrices: 2·4,096³ operations."""


@dataclass
class GpuTrace:
    """Kernels and the host's calls, written down one after the other."""

    rank: int = 0
    world: int = 2
    device: str = "NVIDIA H200"
    host_name: str = "node"
    base: int = 1_700_000_000_000_000_000
    events: list[dict[str, Any]] = field(default_factory=list)

    def host(self, name: str, start: float, end: float, kind: str = "cpu_op", **arguments: Any) -> None:
        self._add(kind, name, start, end, tid=1, args=arguments)

    def kernel(self, name: str, start: float, end: float, launched: float, **arguments: Any) -> None:
        """A kernel, and the call that launched it."""
        number = len(self.events)
        self._add(
            "cuda_runtime", "cudaLaunchKernel", launched, launched + 1, tid=1, args={"correlation": number}
        )
        self._add("kernel", name, start, end, tid=7, args={"correlation": number, "stream": 7, **arguments})

    def all_reduce(self, start: float, end: float, launched: float, elements: int = 1_000_000) -> None:
        self.kernel(
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", start, end, launched,
            **{
                "Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements,
                "Group size": self.world, "dtype": "BFloat16", "Process Group Name": "3",
            },
        )  # fmt: skip

    def phase(self, name: str, start: float, end: float) -> None:
        self.host(name, start, end, "user_annotation")

    def product(self, start: float, end: float, launched: float) -> None:
        """A product of two matrices in bfloat16, and the operator that it comes from."""
        number = 10_000 + len(self.events)
        sides = [[SQUARE, SQUARE], [SQUARE, SQUARE]]
        shapes = {
            "Input Dims": sides, "Input Strides": [[SQUARE, 1], [1, SQUARE]], "Input type": ["c10::BFloat16"] * 2,
        }  # fmt: skip
        self.host("aten::mm", launched - 1, launched + 2, **{"External id": number}, **shapes)
        self.kernel("sm90_xmma_gemm_bf16", start, end, launched, **{"External id": number})

    def as_bytes(self) -> bytes:
        ranks = list(range(self.world))
        group = {"pg_name": "3", "pg_desc": "mesh_fsdp", "pg_size": self.world, "ranks": ranks}
        return json.dumps(
            {
                "schemaVersion": 1,
                "deviceProperties": [{"id": 0, "name": self.device}],
                "distributedInfo": {"backend": "nccl", "rank": self.rank, "pg_config": [group]},
                "host_name": self.host_name,
                "baseTimeNanoseconds": self.base,
                "sluice_steps": {"first_step": 4, "last_step": 4},
                "traceEvents": self.events,
            }
        ).encode()

    def _add(self, kind: str, name: str, start: float, end: float, *, tid: int, args: dict[str, Any]) -> None:
        event = {"ph": "X", "cat": kind, "name": name, "pid": 0, "tid": tid, "ts": start, "dur": end - start}
        self.events.append(event | {"args": args})


SCHEMA = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT,
  isDiscrete INTEGER, l2CacheSize INTEGER, totalMemory INTEGER, memoryBandwidth INTEGER, chipName TEXT);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT, name TEXT, nameEnum INTEGER, value TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
  globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER,
  launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL,
  gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL,
  blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL,
  localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL,
  sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
  globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, deprecatedSrcId INTEGER, srcKind INTEGER,
  dstKind INTEGER, srcDeviceId INTEGER, srcContextId INTEGER, dstDeviceId INTEGER, dstContextId INTEGER,
  migrationCause INTEGER, graphNodeId INTEGER, virtualAddress INTEGER, copyCount INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
  globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL,
  callchainId INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
  category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER,
  domainId INTEGER, uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, uint32Value INTEGER,
  int32Value INTEGER, floatValue REAL, jsonTextId INTEGER, jsonText TEXT, binaryData TEXT);
"""
"""The tables of NVIDIA's "SQLite Export Schema Reference" (Nsight Systems 2025) that a recording of CUDA and NVTX
has."""
PROCESS = 0x1000_0123_4500_0000
"""A globalPid: hardware and virtual machine above the process, the low 24 bits are free for a thread."""


class NsightExport:
    """An export in that schema."""

    def __init__(self, path: Path, device: str = "NVIDIA H200") -> None:
        self._database = sqlite3.connect(path)
        self._database.executescript(SCHEMA)
        self._names: dict[str, int] = {}
        self._insert("TARGET_INFO_GPU", vmId=0, id=0, name=device)
        self._insert("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_700_000_000_000_000_000)
        self._insert("TARGET_INFO_SYSTEM_ENV", name="Hostname", value="node")
        self._calls = 0

    def kernel(self, name: str, start: float, end: float, launched: float) -> None:
        call = self.call("cudaLaunchKernel_v7000", launched, launched + 1)
        sides = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "registersPerThread", "gridId")
        memory = ("staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread", "localMemoryTotal")
        self._insert(
            "CUPTI_ACTIVITY_KIND_KERNEL", **self._on_device(start, end, call),
            demangledName=self._string(f"void {name}<float>(float*)"), shortName=self._string(name),
            **dict.fromkeys((*sides, *memory), 1),
        )  # fmt: skip

    def copy(self, start: float, end: float, launched: float, num_bytes: int) -> None:
        call = self.call("cudaMemcpyAsync_v3020", launched, launched + 1)
        self._insert(
            "CUPTI_ACTIVITY_KIND_MEMCPY", **self._on_device(start, end, call), bytes=num_bytes, copyKind=1
        )

    def call(self, name: str, start: float, end: float) -> int:
        self._calls += 1
        self._insert(
            "CUPTI_ACTIVITY_KIND_RUNTIME", start=_ns(start), end=_ns(end), eventClass=0, globalTid=PROCESS + 9,
            correlationId=self._calls, nameId=self._string(name), returnValue=0,
        )  # fmt: skip
        return self._calls

    def range(self, name: str, start: float, end: float) -> None:
        self._insert(
            "NVTX_EVENTS", start=_ns(start), end=_ns(end), eventType=59, textId=self._string(name),
            globalTid=PROCESS + 9, domainId=0,
        )  # fmt: skip

    def close(self) -> None:
        self._database.commit()
        self._database.close()

    def _on_device(self, start: float, end: float, call: int) -> dict[str, int]:
        return {
            "start": _ns(start), "end": _ns(end), "deviceId": 0, "contextId": 1, "streamId": 7,
            "correlationId": call, "globalPid": PROCESS,
        }  # fmt: skip

    def _string(self, value: str) -> int:
        if value not in self._names:
            self._names[value] = len(self._names) + 1
            self._insert("StringIds", id=self._names[value], value=value)
        return self._names[value]

    def _insert(self, table: str, **row: Any) -> None:
        columns, values = ", ".join(f'"{name}"' for name in row), ", ".join("?" * len(row))
        self._database.execute(f"INSERT INTO {table} ({columns}) VALUES ({values})", _values(row.values()))


def _values(values: Any) -> Sequence[Any]:
    return list(values)


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)
