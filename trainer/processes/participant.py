"""One process of a run that recovers in place: what it hears of the others, and what it tells them, through a
store.

The store lives in the process that started all (`supervisor.py`) and outlives every rank. A generation is a
set of processes that form groups together. Its keys, with the generation's number:

    assigned/<process>     the generation in which the process gets a rank; "end": it is not needed any more
    plan/<generation>      the processes of it, by rank
    over/<generation>      why it has ended: one of its processes died
    report/<generation>/…  what each rank holds when it begins (`processes/agreement.py`)
    begun/<generation>     it trains; stepped/<generation>: it has done a step
    replace/<generation>   a rank that is no good, and why
    hung/<generation>      a rank that has made no progress for too long, and asks who hangs
    progress/<generation>/<rank>  each rank's answer to that
    stop                   the run is to save a checkpoint and end
    beat/<process>         rises as long as the process lives and is not stopped

Each client is used by one thread: a client that waits in one thread would keep all others waiting.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

import torch.distributed as dist

from trainer.processes.agreement import RankReport
from trainer.processes.result import RankOutcome
from trainer.processes.runtime import collective_timeout
from trainer.processes.sockets import GroupSockets
from trainer.processes.watchdog import RankProgress

EXIT_ORPHANED: Final = 76
"""Exit code of a process whose supervisor is gone (EX_PROTOCOL of sysexits.h)."""
BEAT_SECONDS: Final = 1.0
"""How often each process says that it lives, and looks whether it is to stop or another one hangs."""
_ASK_EVERY_SECONDS: Final = 0.01
"""How often the store is asked while a generation forms."""
_CUT_EVERY_SECONDS: Final = 0.02
_FOREVER: Final = datetime.timedelta(days=365)
_PATIENCE_SECONDS: Final = 15.0
"""How long a rank that met an error waits to hear that another one died, before it takes the error for its
own."""


class GenerationOverError(RuntimeError):
    """A process of this generation died; the ones that are left form the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Where the supervisor's store is, and the number of this process there."""

    host: str
    port: int
    process: int


def open_store(place: Rendezvous) -> Any:
    """A client of the supervisor's store, for one thread."""
    return cast(Any, dist).TCPStore(
        place.host, place.port, is_master=False, timeout=datetime.timedelta(seconds=60)
    )


class Participant:
    """This process among those of the run. Made on the thread that trains."""

    def __init__(self, place: Rendezvous, watchdog_seconds: float) -> None:
        self._place = place
        self._watchdog_seconds = watchdog_seconds
        self._store = open_store(place)
        self._place_store, self._asks_place = open_store(place), threading.Lock()
        self._sockets = GroupSockets()
        self.generation = -1
        self.rank = -1
        self.num_ranks = 0
        self._over = threading.Condition()
        self._over_up_to = -2
        self._has_groups = False
        self._stop = threading.Event()
        self._progress = RankProgress(num_markers=0, step=0, where="start")
        self._since = math.inf
        self._told_hung = -1
        self.dump: Callable[[str], None] = lambda why: None
        """Keeps what this process did last and where it is, when a rank hangs."""
        row = {"pid": os.getpid(), "host": socket.gethostname()}
        self._store.set(f"process/{place.process}", json.dumps(row))
        self._store.add("news", 1)
        self._in_thread(self._hear_of_the_end, "generation")
        self._in_thread(self._look, "beat")

    # What the thread that trains calls.

    def await_rank(self) -> bool:
        """Wait until this process gets a rank, as a spare does for as long as no other dies; False: it is not
        needed. In a generation already: until the next one has been planned."""
        if self.generation < 0:
            # Asked by its own thread, and with one request: a spare may wait for weeks.
            self._store.wait([f"assigned/{self._place.process}"], _FOREVER)
            told = self._get(f"assigned/{self._place.process}")
            if told == "end":
                return False
            generation = int(told)
        else:
            self._wait_until_over(None)
            generation = self.generation + 1
        return self._enter(generation)

    def form_group(self) -> None:
        """Make the default process group of this generation. GenerationOverError where one of its processes
        died before it was made."""
        timeout = collective_timeout(self._watchdog_seconds)
        with self.opening_groups():
            # A client of its own: cutting it ends the wait for a process that will never come.
            own = open_store(self._place)
            store = cast(Any, dist).PrefixStore(f"groups/{self.generation}", own)
            dist.init_process_group(
                "gloo", store=store, rank=self.rank, world_size=self.num_ranks, timeout=timeout
            )

    @contextmanager
    def opening_groups(self) -> Iterator[None]:
        """Wraps whatever makes process groups."""
        with self._sockets.opening():
            yield

    def leave_group(self) -> None:
        """Drop the groups of the generation that is over."""
        if not dist.is_initialized():
            # torch numbers groups in a process, and the store's keys have the numbers. A default group that
            # failed half way has been counted, and only the end of a default group counts from zero again, as
            # a new process does.
            dist.init_process_group("gloo", store=cast(Any, dist).HashStore(), rank=0, world_size=1)
        dist.destroy_process_group()
        self._has_groups = False
        self._sockets.forget()

    def tell(self, report: RankReport) -> None:
        """Say what this rank holds, for `reports` of all."""
        self._store.set(f"report/{self.generation}/{report.rank}", json.dumps(report.to_json()))

    def reports(self) -> list[RankReport]:
        """What every rank of the generation holds; GenerationOverError where one dies before it has said
        so."""
        told = (self._get(f"report/{self.generation}/{rank}") for rank in range(self.num_ranks))
        return [RankReport.from_json(json.loads(report)) for report in told]

    def begun(self) -> None:
        """Say that the generation trains. By its rank 0."""
        self._store.set(f"begun/{self.generation}", "")
        self._store.add("news", 1)

    def stepped(self) -> None:
        """Say that the generation has done a step. By its rank 0."""
        self._store.set(f"stepped/{self.generation}", "")
        self._store.add("news", 1)

    def replace(self, rank: int, why: str) -> None:
        """Ask that a spare take the place of a rank that is no good, though it lives."""
        self._store.set(f"replace/{self.generation}", json.dumps([rank, why]))
        self._store.add("news", 1)

    def cannot_recover(self, why: str) -> None:
        """Say why what was lost cannot be filled: the supervisor starts all processes again."""
        self._store.set(f"cannot/{self.generation}", why)
        self._store.add("news", 1)

    def ended(self, outcome: RankOutcome) -> None:
        """Say how the run ended on this rank."""
        self._store.set(f"ended/{self._place.process}", json.dumps(outcome.to_json()))
        self._store.add("news", 1)

    def await_end(self) -> None:
        """Return when the supervisor needs this process no more."""
        while self._get(f"assigned/{self._place.process}") != "end":
            time.sleep(_ASK_EVERY_SECONDS)

    def await_over(self, error: BaseException) -> None:
        """Return once this generation is known to be over: then the error came from another rank's death.
        Else it is this rank's own, and is raised."""
        if not self._wait_until_over(_PATIENCE_SECONDS):
            raise error

    def check_place(self) -> None:
        """GenerationOverError where this generation is over: this process may have been stopped and woken up,
        and another one has its rank. From any thread."""
        if self._is_there(f"over/{self.generation}"):
            raise GenerationOverError(f"generation {self.generation} is over")

    def is_replaced(self) -> bool:
        """Whether the next generation does without this process, or the supervisor is gone. From any
        thread."""
        try:
            if not self._is_there(f"over/{self.generation}"):
                return False
            with self._asks_place:
                plan = json.loads(self._place_store.get(f"plan/{self.generation + 1}"))
        except RuntimeError:  # every error of the store is one
            return True
        return self._place.process not in plan

    @property
    def is_over(self) -> bool:
        """Whether a process of this generation has died."""
        return self._over_up_to >= self.generation

    def stop_requested(self) -> bool:
        """Whether the run is to end with a checkpoint."""
        return self._stop.is_set()

    # As of a Watchdog.

    def at(self, step: int, where: str) -> None:
        """Pass a marker."""
        self._progress = RankProgress(num_markers=self._progress.num_markers + 1, step=step, where=where)
        self._since = time.monotonic()

    def rest(self) -> None:
        """What follows may take long; the next marker wakes the watchdog."""
        self._since = math.inf

    def close(self) -> None:
        """The watch goes on: it hears of the others' deaths."""
        self.rest()

    def _enter(self, generation: int) -> bool:
        """False where the newest generation does without this process: it was given up while nobody reached
        it, and its machine is back."""
        while True:
            self.generation = generation
            processes = json.loads(self._get(f"plan/{generation}"))
            if not self._store.check([f"over/{generation}"]):
                break
            generation += 1
        if self._place.process not in processes:
            return False
        self.rank, self.num_ranks = processes.index(self._place.process), len(processes)
        self._progress = RankProgress(num_markers=0, step=0, where="start")
        self.rest()
        self._has_groups = True
        return True

    def _get(self, key: str) -> str:
        while not self._store.check([key]):
            if self.is_over:
                raise GenerationOverError(f"generation {self.generation} is over")
            time.sleep(_ASK_EVERY_SECONDS)
        return str(self._store.get(key).decode())

    def _is_there(self, key: str) -> bool:
        with self._asks_place:
            return bool(self._place_store.check([key]))

    def _wait_until_over(self, seconds: float | None) -> bool:
        with self._over:
            return self._over.wait_for(lambda: self.is_over, seconds)

    # What threads of their own do, each with a client of its own.

    def _in_thread(self, look: Callable[[Any], None], name: str) -> None:
        def work() -> None:
            try:
                store = open_store(self._place)
                while True:
                    look(store)
            except RuntimeError as error:  # every error of the store is one
                sys.stderr.write(f"sluice: the process that started this one is gone: {error}\n")
                sys.stderr.flush()
                os._exit(EXIT_ORPHANED)

        threading.Thread(target=work, name=name, daemon=True).start()

    def _hear_of_the_end(self, store: Any) -> None:
        """Wait for the end of this generation, and cut what it has open until it is left."""
        generation = self.generation
        if generation < 0 or self.is_over:
            if self.is_over and self._has_groups:
                self._sockets.cut()  # again and again: the thread that trains may be opening further ones
            time.sleep(_CUT_EVERY_SECONDS)
            return
        store.wait([f"over/{generation}"], _FOREVER)
        with self._over:
            self._over_up_to = max(self._over_up_to, generation)
            self._over.notify_all()

    def _look(self, store: Any) -> None:
        """Say that this process lives; hear of a stop and of ranks that hang."""
        store.add(f"beat/{self._place.process}", 1)
        if store.check(["stop"]):
            self._stop.set()
        if self.generation >= 0:
            self._look_for_hangs(store, self.generation)
        time.sleep(BEAT_SECONDS)

    def _look_for_hangs(self, store: Any, generation: int) -> None:
        key = f"hung/{generation}"
        if time.monotonic() - self._since > self._watchdog_seconds and not store.check([key]):
            store.set(key, f"rank {self.rank} made no progress for {self._watchdog_seconds:g} s")
            store.add("news", 1)
        if self._told_hung < generation and store.check([key]):
            self._told_hung = generation
            # Beside: the storage may be what hangs, and the supervisor waits for the answer.
            threading.Thread(target=self.dump, args=("a rank hangs",), daemon=True).start()
            store.set(f"progress/{generation}/{self.rank}", json.dumps(dataclasses.asdict(self._progress)))
