"""Machines that a network parts, on one machine: each in a network namespace of its own, with a wire between
them that is cut, slow or lossy as a test wants.

The kernel's own emulator (netem) is not in every kernel. So each namespace's way out is a TUN device, and one
process (`python -m tests.support.processes.torn_network NUM`), which holds all of them, passes the packets on.
What a host sends is late and lost as its line says, which is netem at a host's way out; a cut line passes
nothing either way. The namespaces have no other way out and are gone with the processes in them.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from tests.support.checkout import ROOT

DEVICE: Final = "wire0"
_CLONE_NEWNET: Final = 0x40000000
_TUNSETIFF: Final = 0x400454CA
_IFF_TUN_NO_HEADER: Final = 0x1001
_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFMTU = 0x8914, 0x8916, 0x891C, 0x8922
_IFF_UP_RUNNING: Final = 0x41
_MTU: Final = 8_000
_LIBC = ctypes.CDLL(None, use_errno=True)


def why_not() -> str | None:
    """Why this machine parts no networks, or None where it does."""
    tried = subprocess.run(
        [sys.executable, "-m", __name__, "1"], cwd=ROOT, input="", capture_output=True, text=True, check=False
    )
    return None if tried.returncode == 0 else tried.stderr.strip().rsplit("\n", 1)[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A machine: its address, and its namespace as a path."""

    number: int
    address: str
    namespace: str

    def enter(self) -> None:
        """Have this thread, and what it starts, on the host from now on."""
        _enter(self.namespace)


@dataclass(slots=True, kw_only=True)
class Network:
    """Hosts that reach each other, and no one else."""

    hosts: Sequence[Host]
    _wire: subprocess.Popen[str]

    def line(self, host: Host, *, delay: float = 0.0, loss: float = 0.0, is_cut: bool = False) -> None:
        """From now on what the host sends is `delay` seconds late, a share `loss` of its packets is lost, and
        if `is_cut` nothing comes or goes."""
        self._say({"host": host.number, "delay": delay, "loss": loss, "is_cut": is_cut})

    def num_passed(self) -> list[int]:
        """How many packets each host's line has taken on so far."""
        return list(self._say({}))

    def _say(self, what: dict[str, Any]) -> Any:
        assert self._wire.stdin is not None and self._wire.stdout is not None
        self._wire.stdin.write(json.dumps(what) + "\n")
        self._wire.stdin.flush()
        return json.loads(self._wire.stdout.readline())


@contextmanager
def torn_network(num_hosts: int) -> Iterator[Network]:
    """So many hosts, with this thread on the first as long as this lasts."""
    wire = subprocess.Popen(
        [sys.executable, "-m", __name__, str(num_hosts)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert wire.stdin is not None and wire.stdout is not None
        hosts = [
            Host(number=number, address=_address(number), namespace=f"/proc/{wire.pid}/fd/{namespace}")
            for number, namespace in enumerate(json.loads(wire.stdout.readline()))
        ]
        with _back_again():
            hosts[0].enter()
            yield Network(hosts=hosts, _wire=wire)
    finally:
        wire.kill()
        wire.wait()


@contextmanager
def _back_again() -> Iterator[None]:
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        yield
    finally:
        _enter(f"/proc/self/fd/{before}")
        os.close(before)


def _address(number: int) -> str:
    return f"10.77.0.{number + 1}"


def _call(what: str, *arguments: int) -> None:
    if getattr(_LIBC, what)(*arguments):
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def _enter(namespace: str) -> None:
    found = os.open(namespace, os.O_RDONLY)
    try:
        _call("setns", found, _CLONE_NEWNET)
    finally:
        os.close(found)


def _make_host(number: int) -> tuple[int, int]:
    """Namespace and TUN device of a host, as file descriptors; this process is in the namespace then."""
    _call("unshare", _CLONE_NEWNET)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN_NO_HEADER))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for request, address in ((_SIOCSIFADDR, _address(number)), (_SIOCSIFNETMASK, "255.255.255.0")):
            packed = struct.pack("16sHH4s16x", DEVICE.encode(), socket.AF_INET, 0, socket.inet_aton(address))
            fcntl.ioctl(control, request, packed)
        fcntl.ioctl(control, _SIOCSIFMTU, struct.pack("16si20x", DEVICE.encode(), _MTU))
        for name in (DEVICE, "lo"):
            fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", name.encode(), _IFF_UP_RUNNING))
    return os.open("/proc/self/ns/net", os.O_RDONLY), device


class _Wire:
    """Passes packets on until its standard input ends, which tells it of lines."""

    def __init__(self, devices: Sequence[int]) -> None:
        self._devices = devices
        self._delays, self._losses = [0.0] * len(devices), [0.0] * len(devices)
        self._are_cut = [False] * len(devices)
        self._num_passed = [0] * len(devices)
        self._late: list[tuple[float, int, int, bytes]] = []
        self._random = random.Random(0)

    def run(self) -> None:
        number_of = {device: number for number, device in enumerate(self._devices)}
        while True:
            wait = max(self._late[0][0] - time.monotonic(), 0.0) if self._late else None
            ready, _, _ = select.select([0, *self._devices], [], [], wait)
            for device in ready:
                if device:
                    self._take(number_of[device], device)
                elif not self._listen():
                    return
            while self._late and self._late[0][0] <= time.monotonic():
                _, _, to, packet = heapq.heappop(self._late)
                self._give(to, packet)

    def _take(self, sender: int, device: int) -> None:
        for _ in range(64):
            try:
                packet = os.read(device, 1 << 16)
            except BlockingIOError:
                return
            # Of IPv4's header, bytes 16 to 20 are where to; of IPv6, which nobody has an address of, nothing passes.
            to = packet[19] - 1 if packet[0] >> 4 == 4 and packet[16:19] == b"\x0a\x4d\x00" else -1
            if not 0 <= to < len(self._devices) or self._random.random() < self._losses[sender]:
                continue
            if self._are_cut[sender] or self._are_cut[to]:
                continue
            self._num_passed[sender] += 1
            if self._delays[sender]:
                at = time.monotonic() + self._delays[sender]
                heapq.heappush(self._late, (at, self._num_passed[sender], to, packet))
            else:
                self._give(to, packet)

    def _give(self, to: int, packet: bytes) -> None:
        if not self._are_cut[to]:
            try:
                os.write(self._devices[to], packet)
            except BlockingIOError:
                return  # as a full queue loses it

    def _listen(self) -> bool:
        line = sys.stdin.readline()
        if not line:
            return False
        told = json.loads(line)
        if told:
            host = told["host"]
            self._delays[host], self._losses[host] = told["delay"], told["loss"]
            self._are_cut[host] = told["is_cut"]
        print(json.dumps(self._num_passed), flush=True)
        return True


def _main() -> None:
    made = [_make_host(number) for number in range(int(sys.argv[1]))]
    print(json.dumps([namespace for namespace, _ in made]), flush=True)
    _Wire([device for _, device in made]).run()


if __name__ == "__main__":
    _main()
