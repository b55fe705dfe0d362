"""A Ray that a command starts for itself serves this machine alone; one that it is sent to has to answer."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from pipeline.cli.main import main
from pipeline.cluster.address import check_answers
from pipeline.cluster.capacity import ResourceError
from pipeline.cluster.session import (
    RayStartError,
    _private_folder,
    folder_for_sockets,
    ray_session,
    token_without_home,
)
from tests.support.outputs.runs import ON_RAY, recipe, write_recipe
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.processes.shared_ray import SHARED
from trainer.launch import train_on_ray
from trainer.options import load_train_recipe

JOINS = """
import sys
from pipeline.cluster.session import ray_session
with ray_session(sys.argv[1]):
    import ray
    print(ray.get(ray.remote(lambda: 41 + 1).remote()))
"""


def test_another_process_can_join_a_ray_that_listens_on_loopback_alone(small_ray):
    import ray

    address = ray.get_runtime_context().gcs_address
    assert address.startswith("127.0.0.1:")
    ended = subprocess.run(
        [sys.executable, "-c", JOINS, address], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "42\n"), ended.stderr[-2000:]


START = """
from pipeline.cluster.session import ray_session
around = ray_session("local", num_cpus=1)
"""
LOOK = """
import json, ray
with around:
    assert ray.get(ray.remote(lambda: 41 + 1).remote()) == 42
    print(json.dumps(ray._private.worker._global_node.get_session_dir_path()))
"""
LOOK_AND_LEAVE = """
import json, os, psutil, ray
shutdown, running = ray.shutdown, []
def watched():
    running.extend(" ".join(one.cmdline()) for one in psutil.Process().children() if one.status() != "zombie")
    shutdown()
ray.shutdown = watched
def listening(process):
    return [end.laddr for end in process.net_connections("inet") if end.status == "LISTEN"]
with around:
    maps = ray.get(ray.remote(lambda: open("/proc/self/maps").read()).remote())
    session = ray._private.worker._global_node.get_session_dir_path()
    processes = psutil.Process().children(recursive=True)
    ends = [end for one in processes for end in listening(one)]
    addresses = [end.ip for end in [*ends, *listening(psutil.Process())]]
gone, alive = psutil.wait_procs(processes, timeout=60)
ports = {end.port for end in ends}
print(json.dumps({
    "addresses": addresses, "switch": os.environ.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"), "maps": maps,
    "session": session, "running": running, "num_processes": len(processes),
    "alive": [one.name() for one in alive],
    "ports": [end.laddr.port for end in psutil.net_connections("inet")
              if end.status == "LISTEN" and end.laddr.port in ports],
}))
"""


def start(script: str, folder: Path | None = None) -> Any:
    """What a process prints that starts a local Ray, whose folders lie in `folder`."""
    ended = subprocess.run(
        [sys.executable, "-c", START + script],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | ({} if folder is None else {"RAY_TMPDIR": str(folder)}),
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return json.loads(ended.stdout)


@pytest.fixture(autouse=True)
def no_other_ray(request: pytest.FixtureRequest) -> None:
    """These tests start their own, but for the one that joins another's."""
    if "small_ray" not in request.fixturenames:
        SHARED.stop()


@contextmanager
def short_folder() -> Iterator[Path]:
    """A folder that everybody may write to. The path of a socket has 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="ray-") as short:
        os.chmod(short, 0o1777)
        yield Path(short)


def others_can_enter(path: Path) -> bool:
    """Whether another user can enter each of the folders that this one lies in, and itself."""
    return all(folder.stat().st_mode & 0o001 for folder in [path, *path.parents])


def check_private(session: Path, short: Path) -> None:
    assert others_can_enter(short)
    assert session.is_relative_to(short) and session.is_dir()
    assert not others_can_enter(session)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen of one local Ray, in the folder `short`: the `addresses` that its processes and its
    driver listened at, a `switch` in the driver's environment, the memory `maps` of a worker, the folder of
    its `session`; the driver's children that were `running` when it was ended, how many processes there had
    been, and the names of those `alive` and the `ports` taken after it."""

    short: Path
    addresses: list[str]
    switch: str | None
    maps: str
    session: str
    running: list[str]
    num_processes: int
    alive: list[str]
    ports: list[int]


@pytest.fixture(scope="module")
def seen() -> Iterator[Seen]:
    """One Ray for the tests that look at the same start."""
    SHARED.stop()
    with short_folder() as short:
        yield Seen(short=short, **start(LOOK_AND_LEAVE, short))


def test_every_server_of_a_local_ray_listens_on_loopback(seen: Seen) -> None:
    assert len(seen.addresses) > 5
    assert {address.removeprefix("::ffff:") for address in seen.addresses} == {"127.0.0.1"}
    assert seen.switch is None  # a cluster that this process starts or joins later is none of it


@pytest.mark.parametrize("taken", [False, True])
def test_no_other_user_can_enter_the_folders_of_a_local_ray(taken: bool, seen: Seen) -> None:
    if not taken:
        check_private(Path(seen.session), seen.short)
        return
    with short_folder() as short:
        (short / f"ray-{os.getuid()}").mkdir()
        os.chmod(short / f"ray-{os.getuid()}", 0o777)
        check_private(Path(start(LOOK, short)), short)


def test_a_local_ray_leaves_no_process_and_no_port(seen: Seen) -> None:
    assert any("/gcs_server" in command for command in seen.running)
    assert seen.num_processes >= 4  # that one, the raylet and its two agents
    assert (seen.alive, seen.ports) == ([], [])


WATCH_IMPORTS = """
import os, sys
from pipeline.cli.main import main
from pipeline.cluster.environment import RAY_ENVIRONMENT
class Watch:
    seen = None
    def find_spec(self, name, path=None, target=None):
        if name == "ray" and self.seen is None:
            self.seen = {variable for variable in RAY_ENVIRONMENT if variable in os.environ}
sys.meta_path.insert(0, watch := Watch())
assert main(sys.argv[1:]) == 2
import ray  # where the command did not come so far itself
assert watch.seen == set(RAY_ENVIRONMENT), watch.seen
"""


@pytest.mark.parametrize("command", ["run", "train"])
def test_a_command_sets_rays_variables_before_anything_imports_ray(command: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("[run]\nname = 7\n")
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    ended = subprocess.run(
        [sys.executable, "-c", WATCH_IMPORTS, command, str(tmp_path / "recipe.toml")],
        capture_output=True,
        text=True,
        env=plain,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]


@pytest.mark.skipif(sys.platform != "linux", reason="Ray brings jemalloc for Linux alone")
def test_the_workers_of_a_local_ray_allocate_by_jemalloc(seen: Seen) -> None:
    assert "/libjemalloc.so" in seen.maps


@pytest.fixture
def nobodys_address():
    """A host and port where nobody listens: it stays bound, so that nobody can come to."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def test_an_address_where_no_cluster_answers_is_refused_at_once(nobodys_address):
    # Ray's own words, after two minutes, name its GCS; "refused" are those of a socket.
    words = f"ray.address = '{nobodys_address}': no Ray cluster answers there .*refused"
    with pytest.raises(ResourceError, match=words), ray_session(nobodys_address):
        pass


@pytest.fixture(scope="module")
def training_recipe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A training of two workers over a tiny corpus."""
    folder = tmp_path_factory.mktemp("training")
    train = {
        "data": make_corpus(str(folder / "out"), {"web": [1700]}).url,
        "output": str(folder / "run"),
        "model": "debug",
        "seq_len": 64,
        "global_batch": 2,
        "steps": 1,
        "workers": 2,
    }
    path = folder / "train.toml"
    path.write_text(tomli_w.dumps({"run": {"name": "x"}, "train": train}))
    return str(path)


def test_a_training_says_as_a_run_does_that_no_cluster_answers(nobodys_address, training_recipe, capsys):
    assert main(["train", training_recipe, "--set", f"ray.address={nobodys_address}"]) == 1
    assert (
        f"sluice train: ray.address = '{nobodys_address}': no Ray cluster answers there"
        in capsys.readouterr().err
    )


def test_a_local_ray_with_fewer_processors_than_the_workers_need_is_refused(training_recipe, capsys):
    assert main(["train", training_recipe, "--set", "ray.num_cpus=1"]) == 2
    words = "ray.num_cpus = 1: expected at least 2, train.workers times train.resources.cpus"
    assert words in capsys.readouterr().err


def test_a_training_recipe_that_is_wrong_is_refused_before_a_cluster_is_joined(
    nobodys_address, training_recipe, capsys
):
    wrong = ["--set", "train.workers=3", "--set", "train.parallel.tp=2"]
    assert main(["train", training_recipe, "--set", f"ray.address={nobodys_address}", *wrong]) == 2
    assert "train.workers = 3" in capsys.readouterr().err


def test_a_training_without_a_connected_ray_says_who_connects(training_recipe):
    with pytest.raises(AssertionError, match="the Ray that its caller has connected"):
        train_on_ray(load_train_recipe(training_recipe))


FAILS = """
import os, sys
from pathlib import Path
from ray._private import services
marks, times = Path(sys.argv[1]), int(sys.argv[2])
raylet = marks / "raylet"  # Ray's own program, which the first times ends before it has begun
raylet.write_text(f'''#!/bin/sh
for n in $(seq 1 {times}); do mkdir {marks}/start-$n 2>/dev/null && exit 1; done
exec {services.RAYLET_EXECUTABLE} "$@"
''')
raylet.chmod(0o755)
services.RAYLET_EXECUTABLE = str(raylet)
"""
COUNT = """
import psutil, ray
with around:
    print(ray.get(ray.remote(lambda: 41 + 1).remote()))
    print(sum("gcs_server" in child.name() for child in psutil.Process().children(recursive=True)))
"""
COMMAND = """
from pipeline.cli.main import main
sys.argv[1:3] = []
sys.exit(main(["run", *sys.argv[1:]]))
"""


@pytest.mark.slow  # Ray waits for its servers for half a minute before it gives up
def test_a_ray_that_does_not_come_up_is_started_once_more(tmp_path: Path) -> None:
    script = FAILS + START + COUNT
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), "1"], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "42\n1\n"), ended.stderr[-2000:]
    assert "Ray did not start and is started once more" in ended.stderr


@pytest.mark.slow
def test_a_ray_that_does_not_come_up_twice_is_told_in_two_lines(tmp_path: Path) -> None:
    (tmp_path / "posts.jsonl").write_text(json.dumps({"text": "Some words."}) + "\n")
    path = write_recipe(
        tmp_path / "r.toml",
        recipe(str(tmp_path / "out"), {"a": (str(tmp_path / "posts.jsonl"),)}, ray=ON_RAY),
    )
    ended = subprocess.run(
        [sys.executable, "-c", FAILS + COMMAND, str(tmp_path), "9", str(path)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"RAY_raylet_start_wait_time_s": "1"},
    )
    assert ended.returncode == 1
    told = ended.stderr[ended.stderr.index("sluice run: ") :].splitlines()
    assert len(told) == 2 and "Traceback" not in ended.stderr
    assert told[0].startswith("sluice run: Ray did not start on this machine, twice: ")
    assert "logs" in told[1] and "call again" in told[1]
    assert sorted(path.name for path in tmp_path.glob("start-*")) == ["start-1", "start-2"]


LONGEST = 37 - max(len(f"/ray-{os.getuid()}"), len("/ray-abcdefgh"))
"""Bytes of a folder in which a socket below Ray's own folder of this user still has a path that fits, also
where the usual name of that folder is somebody else's."""


@pytest.fixture
def long_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """TMPDIR as schedulers give it: too long for a socket below it."""
    folder = tmp_path / ("job-" * 20)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    return str(folder)


def test_a_local_ray_starts_under_a_tmpdir_that_is_too_long_for_its_sockets(long_folder: str) -> None:
    start(LOOK)


def test_sockets_lie_in_a_folder_that_nobody_else_can_open_and_that_goes_again(long_folder: str) -> None:
    with folder_for_sockets() as options:
        folder = Path(options["_temp_dir"])
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert len(str(folder)) < 37
        with socket.socket(socket.AF_UNIX) as one:
            sockets = folder / "ray/session_2026-01-01_00-00-00_000000_4194304/sockets"
            sockets.mkdir(parents=True)
            one.bind(str(sockets / "plasma_store.1"))
    assert not folder.exists()
    with pytest.raises(RayStartError), folder_for_sockets() as options:
        raise RayStartError("its logs are there")
    assert Path(options["_temp_dir"]).exists()
    Path(options["_temp_dir"]).rmdir()


def test_a_tmpdir_that_is_short_enough_is_where_ray_makes_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    for num_bytes, is_usual in ((LONGEST, True), (LONGEST + 1, False)):
        monkeypatch.setenv("RAY_TMPDIR", "/" + "t" * (num_bytes - 1))
        with folder_for_sockets() as options:
            assert (options == {}) == is_usual


def test_a_socket_fits_below_a_folder_whose_usual_name_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tempfile.mkdtemp(prefix="t" * (LONGEST - len("/tmp/12345678")), dir="/tmp")
    monkeypatch.setenv("RAY_TMPDIR", folder)
    os.mkdir(f"{folder}/ray-{os.getuid()}", 0o777)
    os.chmod(f"{folder}/ray-{os.getuid()}", 0o777)
    with folder_for_sockets() as options, socket.socket(socket.AF_UNIX) as one:
        assert options == {}
        sockets = Path(_private_folder()) / "session_2026-01-01_00-00-00_000000_4194304/sockets"
        sockets.mkdir(parents=True)
        one.bind(str(sockets / "plasma_store.1"))
    shutil.rmtree(folder)


def test_a_tmpdir_that_is_too_long_is_told_with_how_much_where_no_short_one_can_be(
    long_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.cluster.session._SHORT_FOLDER", "/proc")
    too_long = len(long_folder) - LONGEST
    with pytest.raises(RayStartError) as refused, folder_for_sockets():
        pass
    assert f"TMPDIR = {long_folder!r} is {too_long} bytes too long for Ray's sockets" in str(refused.value)
    assert f"set RAY_TMPDIR to a folder whose path has at most {LONGEST} bytes" in str(refused.value)


def test_what_is_no_host_and_port_is_left_to_ray():
    for address in ("auto", "local", "session_2026-11-22", "host:", ":6379", "host:²", "host:١"):
        check_answers(address)
    for address in ("127.0.0.1:99999", "ray://127.0.0.1:99999", "[::1]:99999"):
        with pytest.raises(ConnectionError):
            check_answers(address)


@pytest.mark.parametrize(
    ("home", "own", "is_made"),
    [("/proc", None, True), (None, None, False), ("/proc", "a token of mine", False)],
)
def test_a_local_ray_has_a_token_where_the_home_keeps_none(
    home: str | None, own: str | None, is_made: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", home or str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    if own:
        monkeypatch.setenv("RAY_AUTH_TOKEN", own)
    with token_without_home():
        token = os.environ.get("RAY_AUTH_TOKEN")
        assert (token not in (None, own) and len(str(token)) == 64) if is_made else token == own
    assert os.environ.get("RAY_AUTH_TOKEN") == own
