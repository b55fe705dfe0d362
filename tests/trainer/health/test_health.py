"""The health of machines: known products, what kernel and GPUs count, and replicas bit for bit."""

from __future__ import annotations

import dataclasses
import gc
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.processes.forked import ChildFailedError, run_forked
from tests.support.training.training_runs import AfterStep, Run
from trainer.health.probe import Probe, judge, known_product, probe, wrong_elements
from trainer.health.replicas import checksum
from trainer.health.signs import Sign, SignReader, read_gpus, read_kernel, signs
from trainer.options import TrainRecipe
from trainer.processes.runtime import Process
from trainer.run.parts import LaunchContext
from trainer.run.train import train

SOUND = Probe(
    rank=0,
    host="one",
    wrong_products=0,
    wrong_sums=0,
    product_seconds=1.0,
    collective_seconds=1.0,
    free_disk=0.5,
    free_memory=0.5,
)


def test_a_known_product_is_exact_in_every_order_of_adding() -> None:
    left, right, expected = known_product(torch.device("cpu"))
    assert wrong_elements(left @ right, expected) == 0
    order = torch.randperm(left.shape[1])
    assert wrong_elements(left[:, order] @ right[order], expected) == 0
    half = left.to(torch.bfloat16) @ right.to(torch.bfloat16)
    assert wrong_elements(half, expected.to(torch.bfloat16)) == 0
    found = left @ right
    found.view(torch.int32)[3, 5] ^= 1 << 12
    found[7, 7] = float("nan")
    assert wrong_elements(found, expected) == 2


def _probed(process: Process) -> list[str]:
    return [symptom.text for symptom in judge([probe(process.device, "here", "/nowhere/yet")])]


def test_devices_that_compute_rightly_are_told_of_nothing(tmp_path: Path) -> None:
    for told in run_forked(tmp_path, 2, _probed):
        assert [text for text in told if "wrong" in text] == []


def test_a_rank_that_computes_wrongly_is_named() -> None:
    probes = [dataclasses.replace(SOUND, rank=rank, wrong_products=7 * (rank == 2)) for rank in range(4)]
    (found,) = judge(probes)
    assert (
        found.kind == "corrupt"
        and found.rank == 2
        and found.text.startswith("rank 2 (one) computes wrongly: 7 elements")
    )


def test_slow_devices_and_full_disks_are_told_and_wrong_sums_are_a_links() -> None:
    probes = [
        dataclasses.replace(
            SOUND,
            rank=rank,
            product_seconds=1.6 if rank == 3 else 1.0,
            free_disk=0.01 if rank == 1 else 0.5,
            free_memory=0.001 if rank == 0 else None,
            wrong_sums=int(rank == 2),
        )
        for rank in range(4)
    ]
    told = [symptom.text for symptom in judge(probes)]
    assert told == [
        "a known all-reduce came wrong to rank 2: a link or adapter",
        "rank 0 (one) has 0.1% of its memory free",
        "rank 1 (one) has 1.0% of its disk free",
        "rank 3 (one) is slow: a known product takes 1.6 of the median",
    ]


def kernel(root: Path, **counted: int) -> None:
    """A machine's counters."""
    files = {
        "ce": "sys/devices/system/edac/mc/mc0/ce_count",
        "ue": "sys/devices/system/edac/mc/mc0/ue_count",
        "throttled": "sys/devices/system/cpu/cpu3/thermal_throttle/package_throttle_count",
        "rx": "sys/class/net/eth0/statistics/rx_errors",
        "file_system": "sys/fs/ext4/sda1/errors_count",
    }
    for name, path in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{counted.get(name, 0)}\n")
    disk = root / "sys/block/sda/device/ioerr_cnt"
    disk.parent.mkdir(parents=True, exist_ok=True)
    disk.write_text(f"{counted.get('disk', 0):#x}\n")
    (root / "proc/net").mkdir(parents=True, exist_ok=True)
    sent, again = counted.get("sent", 0), counted.get("again", 0)
    (root / "proc/net/snmp").write_text(
        f"Ip: Forwarding\nIp: 1\nTcp: OutSegs RetransSegs\nTcp: {sent} {again}\n"
    )


def test_what_the_kernel_counts_more_of_is_a_sign(tmp_path: Path) -> None:
    kernel(tmp_path, ce=50, ue=1, disk=3)
    reader = SignReader(str(tmp_path))
    assert reader.read() == []
    kernel(tmp_path, ce=90, ue=2, disk=18, throttled=4, rx=1, file_system=2, sent=10_000, again=500)
    assert reader.read() == [
        Sign(what="disk errors of sda", count=15),
        Sign(what="file system errors of sda1", count=2),
        Sign(what="network errors, received of eth0", count=1),
        Sign(what="times that the processor was throttled of cpu3", count=4),
        Sign(what="uncorrected memory errors of mc0", count=1),
        Sign(what="tcp segments sent again, of 10,000", count=500),
    ]
    kernel(tmp_path, ce=190, ue=2, disk=18, throttled=4, rx=1, file_system=2, sent=1_010_000, again=1000)
    assert reader.read() == [
        Sign(what="corrected memory errors of mc0", count=100)
    ]  # and 0.05% of segments again


def test_a_counter_that_began_anew_counts_from_nothing_and_a_new_one_is_no_sign() -> None:
    assert signs({"disk errors of sda": 9}, {"disk errors of sda": 2}) == [
        Sign(what="disk errors of sda", count=2)
    ]
    assert signs({}, {"disk errors of sdb": 9}) == []


def test_this_machine_can_be_read() -> None:
    assert all(value >= 0 for value in read_kernel().values())


class FakeGpus:
    """As nvidia-ml-py answers: GPU 1 has no NVLink, and neither remaps rows."""

    class NVMLError(Exception):
        """Not supported."""

    NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 0, 1, 0
    NVML_NVLINK_MAX_LINKS, NVML_NVLINK_ERROR_DL_CRC_FLIT, nvmlClocksEventReasonHwSlowdown = 2, 1, 8
    NVML_TEMPERATURE_GPU, NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 0, 1
    nvmlEventTypeXidCriticalError = 8

    def __init__(self) -> None:
        self.uncorrected, self.reasons, self.temperature, self.xids = 0, 0, 60, [79]

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:  # noqa: N802
        return number

    def nvmlDeviceGetTotalEccErrors(self, gpu: int, kind: int, counter: int) -> int:  # noqa: N802
        return self.uncorrected if kind == 1 and gpu == 1 else 0

    def nvmlDeviceGetRemappedRows(self, gpu: int) -> tuple[int, int]:  # noqa: N802
        raise self.NVMLError

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: int) -> int:  # noqa: N802
        return self.reasons

    def nvmlDeviceGetNvLinkErrorCounter(self, gpu: int, link: int, counter: int) -> int:  # noqa: N802
        if gpu == 1:
            raise self.NVMLError
        return 0

    def nvmlDeviceGetTemperatureThreshold(self, gpu: int, kind: int) -> int:  # noqa: N802
        return 90

    def nvmlDeviceGetTemperatureV(self, gpu: int, sensor: int) -> int:  # noqa: N802
        return self.temperature

    def nvmlEventSetCreate(self) -> object:  # noqa: N802
        return object()

    def nvmlDeviceRegisterEvents(self, gpu: int, kinds: int, events: object) -> None:  # noqa: N802
        if gpu == 1:
            raise self.NVMLError

    def nvmlEventSetWait_v2(self, events: object, milliseconds: int) -> Any:  # noqa: N802
        if not self.xids:
            raise self.NVMLError
        return type("Event", (), {"eventData": self.xids.pop()})


def test_what_gpus_count_and_their_critical_errors_are_signs(tmp_path: Path) -> None:
    gpus = FakeGpus()
    assert "NVLink 1 errors of GPU 0" in read_gpus(gpus) and "rows remapped of GPU 0" not in read_gpus(gpus)
    reader = SignReader(str(tmp_path), gpus)
    gpus.uncorrected, gpus.reasons, gpus.temperature = 2, 8, 91
    assert reader.read() == [
        Sign(what="hardware slowdown of GPU 0", count=1),
        Sign(what="hardware slowdown of GPU 1", count=1),
        Sign(what="slowdown temperature of GPU 0", count=1),
        Sign(what="slowdown temperature of GPU 1", count=1),
        Sign(what="uncorrected memory errors of GPU 1", count=2),
        Sign(what="Xid 79 of a GPU", count=1),
    ]
    assert reader.read() == []


def test_nvidias_module_has_what_is_asked_of_it() -> None:
    module = pytest.importorskip("pynvml")
    asked = [name for name in vars(FakeGpus) if name.startswith(("nvml", "NVML"))]
    assert [name for name in asked if not hasattr(module, name)] == []


RETRANSMITTING = """
import socket, sys, threading
from trainer.health.signs import SignReader
reader = SignReader()
server = socket.create_server(("127.0.0.1", 0))
def serve():
    taken, _ = server.accept()
    while taken.recv(1 << 16):
        pass
threading.Thread(target=serve, daemon=True).start()
client = socket.create_connection(server.getsockname())
client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for _ in range(1000):
    client.sendall(b"x" * 1400)
print([sign.what for sign in reader.read()])
"""


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("tc") is None or os.getuid() != 0, reason="needs tc, and a namespace of its own"
)
def test_real_retransmissions_are_a_sign() -> None:
    # A queue of four packets behind 8 megabits a second: TCP sends more at once, and what finds no place is
    # lost.
    made = (
        "ip link set lo mtu 1500 up && tc qdisc add dev lo root tbf rate 8mbit burst 5000 limit 6000 && exec "
    )
    ended = subprocess.run(
        ["unshare", "-n", "sh", "-c", made + '"$0" -c "$1"', sys.executable, RETRANSMITTING],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if "qdisc kind is unknown" in ended.stderr or "Operation not permitted" in ended.stderr:
        pytest.skip(f"no namespace with a queue of its own here: {ended.stderr.strip()}")
    assert "tcp segments sent again" in ended.stdout, ended.stderr


def test_every_flipped_bit_and_every_exchange_changes_a_checksum() -> None:
    numbers = torch.randn(1000, dtype=torch.bfloat16)
    expected = checksum(numbers)
    for bit in range(0, 16_000, 61):
        flipped = numbers.clone()
        flipped.view(torch.int16)[bit // 16] ^= torch.tensor(1 << bit % 16, dtype=torch.int32).to(torch.int16)
        assert not torch.equal(checksum(flipped), expected), bit
    exchanged = numbers.clone()
    exchanged[[3, 700]] = exchanged[[700, 3]]
    assert not torch.equal(checksum(exchanged), expected)
    assert torch.equal(checksum(torch.empty(0)), torch.zeros(2, dtype=torch.int64))
    assert torch.equal(
        checksum(numbers[:3]), checksum(numbers[:3].clone())
    )  # an odd number of bytes of words


def _train_flipped(recipe: TrainRecipe, rank: int, process: Process) -> None:
    """Train, with a bit of a rank's weights flipped after the second step."""

    def after(done: int) -> None:
        if done == 2 and process.rank == rank:
            # The loop gives nobody its model: it is looked for in memory, as a cosmic ray does.
            found = [each for each in gc.get_objects() if isinstance(each, nn.Parameter) and each.ndim == 2]
            shards = [each.to_local() for each in found if isinstance(each, DTensor)]
            (shards or found)[0].detach().view(torch.int64).view(-1)[5] ^= 1 << 40

    train(recipe, LaunchContext(process=process, hooks=AfterStep(after)))


REPLICATED: dict[str, dict[str, Any]] = {
    "ddp": {"workers": 3, "zero": 0},
    "hsdp": {"parallel": {"dp_replicate": 3, "dp_shard": 1}},
    "hsdp 3 x 2": {"parallel": {"dp_replicate": 3, "dp_shard": 2}},
    "tp x dp": {"parallel": {"dp_replicate": 3, "tp": 2}},
}


@pytest.mark.parametrize(
    "layout", [pytest.param(name, marks=[] if name == "ddp" else pytest.mark.slow) for name in REPLICATED]
)
def test_a_flipped_bit_is_found_named_and_mended(layout: str, tmp_path: Path) -> None:
    corpus = make_corpus(str(tmp_path / "out"), {"web": [1700, 530]}).url
    table = {"steps": 6, "recovery": {"check_replicas_every": 2}, "record_batches": False}
    run = Run(data=corpus, output=tmp_path / "run", changes=REPLICATED[layout] | table)
    num = run.recipe().train.num_workers
    run_forked(run.scratch, num, partial(_train_flipped, run.recipe(), 1))
    told = [symptom["text"] for row in run.metrics().values() for symptom in row.get("health", ())]
    (found,) = [line for line in told if "differs" in line]
    others = {3: "0, 2", 6: "3, 5"}[num]
    assert (
        found.startswith(f"after 4 steps rank 1 differs from its replicas {others} in ") and "mended" in found
    )


def test_two_replicas_that_differ_stop_the_run(tmp_path: Path) -> None:
    corpus = make_corpus(str(tmp_path / "out"), {"web": [1700, 530]}).url
    table = {
        "workers": 2,
        "zero": 0,
        "steps": 6,
        "recovery": {"check_replicas_every": 2},
        "record_batches": False,
    }
    run = Run(data=corpus, output=tmp_path / "run", changes=table)
    with pytest.raises(ChildFailedError, match="no majority of them says which is right"):
        run_forked(run.scratch, 2, partial(_train_flipped, run.recipe(), 1))


def test_weights_without_a_replica_are_refused(tmp_path: Path) -> None:
    corpus = make_corpus(str(tmp_path / "out"), {"web": [1700]}).url
    run = Run(data=corpus, output=tmp_path / "run", changes={"recovery": {"check_replicas_every": 2}})
    with pytest.raises(ChildFailedError, match="every weight lies on one process alone"):
        run.start()
