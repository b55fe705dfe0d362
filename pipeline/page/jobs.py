"""Work that takes longer than an answer may: a plan, a purge, a check. It goes on whoever looks, and is begun
once."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from lineage.purge.plan import PurgeError

_MOST_JOBS: Final = 100
_MOST_LINES: Final = 200

State = Literal["working", "done", "failed"]


@dataclass(slots=True)
class Job:
    """A piece of work under way or done: what it said, when it began (seconds since 1970), what came of it.
    `followed` is the job that was made of it: a purge of its plan, once."""

    name: str
    what: str
    began: float = field(default_factory=time.time)
    ended: float | None = None
    state: State = "working"
    lines: list[str] = field(default_factory=list)
    result: Any = None
    error: str = ""
    followed: str | None = None

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return (self.ended or time.time()) - self.began

    def say(self, line: str) -> None:
        """A line of progress; of very many the last are kept."""
        self.lines.append(line)
        del self.lines[:-_MOST_LINES]


class Jobs:
    """The jobs of a page, by name; the oldest that ended give way."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._once = threading.Lock()

    def get(self, name: str) -> Job:
        """The job of a name. PurgeError where there is none: names end with the page that gave them."""
        if name not in self._jobs:
            raise PurgeError(
                "there is no such plan here any more: the page was started again since. Plan it anew"
            )
        return self._jobs[name]

    def begin(self, what: str, work: Callable[[Job], Awaitable[Any]]) -> Job:
        """Begin a job; it goes on by itself."""
        job = Job(name=secrets.token_urlsafe(9), what=what)
        self._jobs[job.name] = job
        for name in [name for name, old in self._jobs.items() if old.state != "working"][:-_MOST_JOBS]:
            del self._jobs[name]
        task = asyncio.get_running_loop().create_task(self._carry_out(job, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return job

    def follow(self, plan: Job, what: str, work: Callable[[Job], Awaitable[Any]]) -> Job:
        """The job that is made of a plan: begun by the first call, given again by every other."""
        with self._once:
            if plan.followed is None:
                plan.followed = self.begin(what, work).name
        return self.get(plan.followed)

    async def finish(self) -> None:
        """Wait for what is under way: a purge is not left in the middle because the page ends."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @staticmethod
    async def _carry_out(job: Job, work: Callable[[Job], Awaitable[Any]]) -> None:
        try:
            job.result = await work(job)
            job.state = "done"
        except (OSError, ValueError, RuntimeError) as error:
            job.error, job.state = str(error) or repr(error), "failed"
        except BaseException as error:
            job.error, job.state = repr(error), "failed"
            raise
        finally:
            job.ended = time.time()
