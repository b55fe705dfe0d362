"""The Slurm script under a real Slurm of one node, started for the test as ordinary processes of this
machine."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.checkout import ROOT
from tests.support.inputs.tiny_crawl import make_tiny_crawl
from tests.support.outputs.runs import ON_RAY, fingerprint, recipe, run, write_recipe
from tests.support.processes.ray_nodes import free_ports, wait_until

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "deploy" / "slurm" / "sluice.sbatch"
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


@contextmanager
def daemon(folder: Path, *command: str) -> Iterator[None]:
    """A program that runs as long as this lasts; its log is beside its files."""
    with (folder / f"{command[0]}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Slurm with one node of two processors, named by SLURM_CONF; its folder."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("munged", "slurmctld", "slurmd", "sbatch"))):
        pytest.skip(
            "no Slurm to start here: as root, install Debian's packages slurm-wlm and munge to run this"
        )
    folder = tmp_path / "slurm"
    (folder / "state").mkdir(parents=True)
    (folder / "spool").mkdir()
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(1024))
    text = CONFIGURATION.format(host=socket.gethostname(), ports=free_ports(2), folder=folder)
    (folder / "slurm.conf").write_text(text)
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    names = ("socket", "pid-file", "log-file", "seed-file")
    files = [f"--{name}={folder}/munge.{name.split('-')[0]}" for name in names]
    with ExitStack() as stack:
        stack.enter_context(daemon(folder, "munged", "--foreground", "--force", f"--key-file={key}", *files))
        wait_until((folder / "munge.socket").exists, "munged listens")
        stack.enter_context(daemon(folder, "slurmctld", "-D"))
        stack.enter_context(daemon(folder, "slurmd", "-D", "-N", "node1"))
        wait_until(lambda: "idle" in told("sinfo", "--noheader", "--format=%T"), "the node is idle")
        yield folder


def told(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def test_the_script_runs_a_command_on_an_allocation_and_leaves_nothing_behind(
    slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "crawl").mkdir()
    sources = make_tiny_crawl(tmp_path / "crawl")
    path = write_recipe(tmp_path / "recipe.toml", recipe(str(tmp_path / "there"), sources, ray=ON_RAY))
    run(tmp_path / "local", recipe(str(tmp_path / "here"), sources))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SLUICE_RAY_PORT", str(free_ports(1)[0]))
    ray = Path("/tmp") / f"sb{os.getpid()}"  # Ray's sockets need a short path
    monkeypatch.setenv("SLUICE_RAY_TEMP", str(ray))
    log = tmp_path / "log.txt"
    submit = ("sbatch", "--wait", f"--output={log}", str(SCRIPT), "run", str(path))
    ended = subprocess.run(submit, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, log.read_text() + ended.stderr
    assert not list(tmp_path.glob(".sluice-*")), "the token is gone"
    wait_until(lambda: str(ray) not in told("ps", "-eo", "args"), "every process of Ray has ended")
    shutil.rmtree(ray)
    assert fingerprint(str(tmp_path / "there")) == fingerprint(str(tmp_path / "here"))

    wrong = ("sbatch", "--wait", f"--output={log}", str(SCRIPT), "run", str(tmp_path / "missing.toml"))
    assert subprocess.run(wrong, timeout=600, check=False).returncode == 2
    shutil.rmtree(ray)

    monkeypatch.setenv("SLUICE_RAY_PORT", "10500")  # among those of its workers, which Ray refuses
    impossible = ("sbatch", "--wait", f"--output={log}", str(SCRIPT), "run", str(path))
    assert subprocess.run(impossible, timeout=600, check=False).returncode == 1
    assert "ray start has ended with 1 before all nodes had joined" in log.read_text()
    assert not list(tmp_path.glob(".sluice-*")), "the token is gone"
