"""Holding an OUT: one at a time, freed by death on disk, leased in S3."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lineage.storage import clients as storage
from lineage.storage import objects
from lineage.storage.folder import Folder, StorageError
from lineage.storage.lock import LEASE_FILE, HeldError, hold, holder_of
from tests.support.checkout import ROOT
from tests.support.processes.wrong_clock import wrong_clock
from tests.support.stores.failing_store import FaultPlan, failing_store
from tests.support.stores.s3_server import s3_server

_HOLDER = """
import sys, time
from lineage.storage.lock import hold
from lineage.storage.folder import Folder
with hold(Folder(sys.argv[1]), "a child", lease_seconds=float(sys.argv[2])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    with s3_server(monkeypatch):
        yield Folder("s3://plain/out")


def start_holder(
    folder: Folder, lease_seconds: float = 60, environment: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, folder.url, str(lease_seconds)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment,
    )
    assert child.stdout is not None and child.stdout.readline() == "held\n"
    return child


def test_a_second_holder_is_refused_and_told_what_to_do(tmp_path: Path) -> None:
    out = Folder(str(tmp_path / "out"))
    with hold(out, "one") as held:
        held.check()
        pid, began = os.getpid(), r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
        named = rf"held by another process \({pid} on {socket.gethostname()}, which began {began}: .*python"
        with pytest.raises(HeldError, match=named), hold(out, "two"):
            pass
    with hold(out, "three"):
        pass


def test_a_file_system_without_locks_is_named_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    out = Folder(str(tmp_path / "out"))
    told = rf"{out.url} cannot be locked \(Function not implemented\).* mount .* with locks .*, or name a folder of a"
    with pytest.raises(StorageError, match=told), hold(out, "one"):
        pass


def test_holding_leaves_no_file_behind(tmp_path: Path) -> None:
    with hold(Folder(str(tmp_path)), "one"):
        assert os.listdir(tmp_path) == []


def test_the_death_of_the_holder_frees_the_folder(tmp_path: Path) -> None:
    out = Folder(str(tmp_path))
    child = start_holder(out)
    with pytest.raises(HeldError), hold(out, "me"):
        pass
    child.send_signal(signal.SIGKILL)
    child.wait()
    with hold(out, "me", wait_seconds=10):
        pass


def test_waiting_ends_with_a_refusal_if_the_holder_lives(tmp_path: Path) -> None:
    out = Folder(str(tmp_path))
    child = start_holder(out)
    with pytest.raises(HeldError), hold(out, "me", wait_seconds=0.5):
        pass
    child.kill()
    child.wait()


def test_a_web_folder_cannot_be_held() -> None:
    with (
        pytest.raises(StorageError, match="cannot hold an output: name a folder"),
        hold(Folder("https://example.org/out"), "me"),
    ):
        pass


def test_a_lease_is_exclusive_and_goes_when_it_is_given_back(bucket: Folder) -> None:
    with hold(bucket, "one") as held:
        held.check()
        with (
            pytest.raises(HeldError, match=r"held by one on .* \(process \d+, since \d{4}-"),
            hold(bucket, "two"),
        ):
            pass
    assert bucket.names() == []
    with hold(bucket, "three"):
        assert bucket.names() == [LEASE_FILE]


@pytest.mark.parametrize("name", ["run#1", "a?b", "a b", "ü"])
def test_a_lease_lies_in_its_folder_whatever_that_is_called(bucket: Folder, name: str) -> None:
    folder, namesake = Folder(f"s3://plain/{name}"), Folder("s3://plain/run")
    with hold(folder, "one"), hold(namesake, "another"):
        assert folder.names() == [LEASE_FILE]


def test_a_dead_holder_s_lease_is_taken_over_when_it_is_old(bucket: Folder) -> None:
    child = start_holder(bucket, lease_seconds=2)
    child.send_signal(signal.SIGKILL)
    child.wait()
    with pytest.raises(HeldError), hold(bucket, "me", lease_seconds=3600):
        pass
    with hold(bucket, "me", wait_seconds=600, lease_seconds=2, clock=stopped_clock) as held:
        held.check()


@pytest.mark.parametrize("hours", [-5, 5])
def test_a_clock_that_is_hours_off_neither_keeps_a_lease_nor_loses_it(
    bucket: Folder, tmp_path: Path, hours: float
) -> None:
    """Neither that of the holder nor that of the taker."""
    environment = wrong_clock(tmp_path / "clock", hours)
    seen = subprocess.run(
        [
            sys.executable,
            "-c",
            "import time, datetime; print(time.time(), datetime.datetime.now().timestamp())",
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert all(abs(float(clock) - time.time() - hours * 3600) < 600 for clock in seen), "the clock is off"
    child = start_holder(bucket, lease_seconds=2, environment=environment)
    with pytest.raises(HeldError), hold(bucket, "me", lease_seconds=600):
        pass
    child.send_signal(signal.SIGKILL)
    child.wait()
    with hold(bucket, "me", wait_seconds=600, lease_seconds=2, clock=stopped_clock):
        taker = subprocess.run(
            [sys.executable, "-c", _HOLDER, bucket.url, "600"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            timeout=60,
        )
        assert "HeldError" in taker.stderr, taker.stderr[-500:]


def stopped_clock() -> float:
    return 0.0


def lease_of(bucket: Folder) -> objects.StoredObject:
    stored = objects.get(bucket.at(LEASE_FILE))
    assert stored is not None
    return stored


def steal(bucket: Folder) -> None:
    """Write another's lease over the holder's, whose renewals may come between the look and the theft."""
    while not objects.put_over(bucket.at(LEASE_FILE), b'{"what": "thief"}', lease_of(bucket).etag):
        pass


def test_a_live_holder_renews_its_lease(bucket: Folder) -> None:
    with hold(bucket, "one", lease_seconds=1, clock=stopped_clock) as held:
        seen = {lease_of(bucket).etag}
        while len(seen) < 3:  # pytest's own limit ends this where nothing is renewed
            seen.add(lease_of(bucket).etag)
        held.check()
        with pytest.raises(HeldError), hold(bucket, "two", lease_seconds=3600):
            pass


def test_a_holder_that_could_not_renew_stops_well_before_another_may_begin(bucket: Folder) -> None:
    now = [100.0]
    with hold(bucket, "suspended", lease_seconds=3600, clock=lambda: now[0]) as held:
        now[0] += 0.74 * 3600
        held.check()
        now[0] += 0.02 * 3600
        with pytest.raises(HeldError, match="nothing more is published"):
            held.check()
        held.renew()
        held.check()


def test_a_holder_whose_lease_was_taken_may_publish_nothing(bucket: Folder) -> None:
    with hold(bucket, "suspended", lease_seconds=3600, clock=stopped_clock) as held:
        steal(bucket)
        held.check()  # it cannot know yet, and its lease has not run out
        with pytest.raises(HeldError, match="nothing more is published"):
            held.renew()
        with pytest.raises(HeldError, match="nothing more is published"):
            held.check()
    assert b"thief" in lease_of(bucket).data, "the other's lease is not ours to give back"


def test_the_renewals_of_a_holder_find_that_its_lease_was_taken(bucket: Folder) -> None:
    with hold(bucket, "suspended", lease_seconds=1, clock=stopped_clock) as held:
        steal(bucket)
        with pytest.raises(HeldError, match="nothing more is published"):
            while True:  # pytest's own limit ends this where nothing is found
                held.check()
                time.sleep(0.01)
    assert b"thief" in lease_of(bucket).data


@contextmanager
def through_a_failing_store(first: tuple[str, ...], notes: Path) -> Iterator[None]:
    """Within the block, what is asked of S3 goes through a proxy that treats the first requests as `first`
    says."""
    with (
        failing_store(os.environ["AWS_ENDPOINT_URL"], FaultPlan(seed=0, first=first), notes) as endpoint,
        pytest.MonkeyPatch.context() as patched,
    ):
        patched.setenv("AWS_ENDPOINT_URL", endpoint)
        patched.setenv(
            "AWS_MAX_ATTEMPTS", "1"
        )  # so that what fails on is seen here; the store's client still tries 5 times
        storage._filesystem.cache_clear()
        try:
            yield
        finally:
            storage._filesystem.cache_clear()


def test_a_lease_is_taken_and_renewed_though_the_store_s_answers_are_lost(
    bucket: Folder, tmp_path: Path
) -> None:
    # Taken: a put of a new object. Renewed: a put over it. Each is done and its answer lost, so the client
    # tries again.
    notes = tmp_path / "notes"
    with (
        through_a_failing_store(("lost",), notes),
        hold(bucket, "one", lease_seconds=3600, clock=stopped_clock) as held,
    ):
        held.check()
    assert notes.read_text().startswith("lost PUT")
    with (
        hold(bucket, "two", lease_seconds=3600, clock=stopped_clock) as held,
        through_a_failing_store(("lost",), tmp_path / "renewal"),
    ):
        held.renew()
        held.check()
    assert (tmp_path / "renewal").read_text().startswith("lost PUT")
    assert objects.get(bucket.at(LEASE_FILE)) is None


def test_a_lease_is_given_back_though_the_store_fails_for_a_while(bucket: Folder, tmp_path: Path) -> None:
    with (
        through_a_failing_store(("fine", *["busy"] * 8), tmp_path / "notes"),
        hold(bucket, "one", lease_seconds=3600, clock=stopped_clock),
    ):
        pass
    assert (tmp_path / "notes").read_text().count("busy DELETE") == 8
    assert objects.get(bucket.at(LEASE_FILE)) is None


def test_a_put_on_condition_fails_when_the_condition_does(bucket: Folder) -> None:
    url = bucket.at("x")
    etag = objects.put_new(url, b"1")
    assert etag is not None and objects.put_new(url, b"2") is None
    assert objects.put_over(url, b"2", '"another"') is None
    assert objects.put_over(url, b"2", etag) is not None
    assert not objects.delete_exactly(url, etag)
    assert objects.get(bucket.at("nothing")) is None
    assert objects.put_over(bucket.at("nothing"), b"2", etag) is None


def test_who_holds_a_folder_is_named_and_nobody_is_nobody(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "out"))
    assert holder_of(folder) is None
    with hold(folder, "a test"):
        assert f"another process ({os.getpid()} on " in str(holder_of(folder))
    assert holder_of(folder) is None
