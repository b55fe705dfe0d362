"""Who takes whose place, and when all must start again: the supervisor over processes that are only
numbers."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lineage.storage.folder import Folder
from trainer.processes import supervisor
from trainer.processes.result import RankOutcome, TrainingResult
from trainer.processes.sockets import GroupSockets
from trainer.processes.supervisor import StartOutcome, Supervisor


class Store:
    """What of torch's store is used, in this process."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def add(self, key: str, amount: int) -> int:
        self.values[key] = str(int(self.values.get(key, b"0")) + amount).encode()
        return int(self.values[key])

    def tell(self, key: str, value: str = "") -> None:
        self.set(key, value)
        self.add("news", 1)


class Numbers:
    """Processes that end when they are told so. `act(n)` is called at the n-th look: it plays what they
    do."""

    def __init__(self, act: Callable[[int], Sequence[tuple[int, str]]]) -> None:
        self.started: list[int] = []
        self.killed: list[int] = []
        self.is_closed = False
        self._act, self._looks = act, 0

    def start(self, process: int) -> None:
        self.started.append(process)

    def ended(self, seconds: float) -> Sequence[tuple[int, str]]:
        self._looks += 1
        return (
            self._act(self._looks) if self._looks < 50 else [(process, "ended") for process in self.started]
        )

    def kill(self, process: int) -> None:
        self.killed.append(process)

    def close(self) -> None:
        self.is_closed = True


def supervise(
    tmp_path: Path,
    store: Store,
    act: Callable[[int], Sequence[tuple[int, str]]],
    *,
    ranks: int = 2,
    spares: int = 1,
    hung_seconds: float = 600,
) -> tuple[StartOutcome, Numbers, list[str]]:
    numbers, said = Numbers(act), list[str]()
    outcome = Supervisor(
        numbers,
        store,
        Folder(str(tmp_path)),
        num_ranks=ranks,
        num_spares=spares,
        say=said.append,
        hung_seconds=hung_seconds,
    ).run()
    assert numbers.is_closed
    return outcome, numbers, said


def register(store: Store, *processes: int) -> None:
    for process in processes:
        store.tell(f"process/{process}", json.dumps({"pid": 100 + process, "host": "here"}))


def outcome_of(process: int) -> RankOutcome:
    result = TrainingResult(step=process, attempt=1, loss=None, finished=True, checkpoint="")
    return RankOutcome(result=result)


def end_well(store: Store, *processes: int) -> None:
    for process in processes:
        store.tell(f"ended/{process}", json.dumps(outcome_of(process).to_json()))


def test_a_spare_gets_the_number_of_the_rank_that_died_and_another_spare_is_started(tmp_path: Path) -> None:
    store = Store()

    def act(look: int) -> Sequence[tuple[int, str]]:
        if look == 1:
            register(store, 0, 1, 2)
            store.tell("begun/0")
        if look == 2:
            return [(1, "was ended by SIGKILL")]
        if look == 3:
            assert json.loads(store.get("plan/1")) == [0, 2]
            assert b"rank 1 was ended by SIGKILL" in store.get("over/0")
            store.tell("begun/1")
        if look == 4:
            end_well(store, 0, 2)
        return []

    outcome, numbers, said = supervise(tmp_path, store, act)
    assert outcome == StartOutcome(outcome=outcome_of(0))
    assert numbers.started == [0, 1, 2, 3]
    assert said == [
        "rank 1 was ended by SIGKILL: a spare takes its place, in generation 1",
        "generation 1 trains",
    ]
    ranks = json.loads((tmp_path / "ranks.json").read_text())
    assert ranks == [
        {"rank": 0, "pid": 100, "host": "here", "generation": 1, "role": "rank"},
        {"rank": 1, "pid": 102, "host": "here", "generation": 1, "role": "rank"},
    ]


def test_more_deaths_than_spares_are_told_and_all_others_are_ended(tmp_path: Path) -> None:
    outcome, numbers, _ = supervise(
        tmp_path, Store(), lambda look: [(0, "was lost"), (1, "was lost")] if look == 2 else [], ranks=3
    )
    assert outcome == StartOutcome(why="rank 0 was lost; rank 1 was lost, and 1 spare is left")
    assert numbers.killed[0] == 2


def test_an_error_that_a_rank_tells_of_ends_the_start(tmp_path: Path) -> None:
    store, taken = Store(), RankOutcome(error="StoreError", message="the name is taken")

    def act(look: int) -> Sequence[tuple[int, str]]:
        store.tell("ended/1", json.dumps(taken.to_json()))
        return []

    outcome, _, _ = supervise(tmp_path, store, act)
    assert outcome.outcome == taken


def test_a_rank_that_gives_no_sign_of_life_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    monkeypatch.setattr(supervisor, "BEAT_SECONDS", 0.0)

    def act(look: int) -> Sequence[tuple[int, str]]:
        if look == 1:
            register(store, 0, 1, 2)
        store.add("beat/0", 1)
        store.add("beat/2", 1)
        if look == 30:
            end_well(store, 0, 1)
        return []

    _, numbers, said = supervise(tmp_path, store, act, hung_seconds=0.0)
    assert set(numbers.killed) == {1}
    assert said[0] == "process 1 gave no sign of life for 0 s and is killed"


def test_a_rank_that_is_to_be_replaced_is_killed_once(tmp_path: Path) -> None:
    store = Store()

    def act(look: int) -> Sequence[tuple[int, str]]:
        if look == 1:
            register(store, 0, 1, 2)
            store.tell("begun/0")
            store.tell("replace/0", json.dumps([1, "twice as slow as its peers"]))
        if look == 3:
            return [(1, "was ended by SIGKILL")]
        if look == 4:
            end_well(store, 0, 2)
        return []

    outcome, numbers, said = supervise(tmp_path, store, act)
    assert outcome.outcome is not None
    assert numbers.killed == [1]
    assert said[0] == "rank 1 is replaced: twice as slow as its peers"


def test_processes_that_die_without_a_step_between_them_end_the_start(tmp_path: Path) -> None:
    store = Store()

    def act(look: int) -> Sequence[tuple[int, str]]:
        plan = store.values.get(f"plan/{look - 1}")
        return [] if plan is None else [(json.loads(plan)[0], "ended with exit code 1")]

    outcome, numbers, _ = supervise(tmp_path, store, act)
    assert "the last of 13 processes without a step between them" in outcome.why
    assert len(numbers.started) == 3 + 12


def test_connections_of_groups_are_cut_and_no_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = server.getsockname()
        before, sockets = socket.create_connection(place), GroupSockets()
        with sockets.opening():
            of_group = socket.create_connection(place)
        after = socket.create_connection(place)
        waits = threading.Thread(target=of_group.recv, args=(1,))
        waits.start()
        sockets.cut()
        waits.join(10)
        assert not waits.is_alive()
        for other in (before, after):
            other.send(b"x")
        with pytest.raises(OSError, match="Broken pipe"):
            of_group.send(b"x")
        sockets.forget()
        for each in (before, of_group, after):
            each.close()


def test_what_is_opened_while_groups_are_made_is_cut_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        sockets = GroupSockets()
        with sockets.opening():
            connection = socket.create_connection(server.getsockname())
            sockets.cut()
            assert connection.recv(1) == b""
        connection.close()
