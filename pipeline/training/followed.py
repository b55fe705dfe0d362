"""Samples of a run while it trains: of its checkpoints, as they appear, in a process beside it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from lineage.storage.folder import Folder
from trainer.attempts import attempt_ends, attempts
from trainer.huggingface.model_card import checkpoints_of

if TYPE_CHECKING:
    from trainer.checkpoint.store import Checkpoint

SAMPLES: Final = "samples.jsonl"
"""In the output of a run: a line for each checkpoint and prompt."""
WAIT_SECONDS: Final = 5.0


class SampleLine(NamedTuple):
    """A line of the file."""

    step: int
    attempt: int
    prompt: str
    text: str
    ended: str
    num_tokens: int
    temperature: float
    top_p: float
    seed: int


class SamplesFile:
    """The samples of a run's output, in the order in which they were made."""

    def __init__(self, output: Folder) -> None:
        self._output = output
        self._data = output.read(SAMPLES) if output.exists(SAMPLES) else b""
        self._known = {SampleLine(**json.loads(line)) for line in self._data.splitlines()}

    def has(
        self, checkpoint: Checkpoint, prompts: Sequence[str], num_tokens: int, asked: tuple[float, float, int]
    ) -> bool:
        """Whether every prompt was put to a checkpoint so before; `num_tokens`: the most that are asked for; `asked`:
        temperature, top_p and seed."""
        made = {
            line.prompt
            for line in self._known
            if (line.step, line.attempt) == (checkpoint.step, checkpoint.attempt)
            and line[-3:] == asked
            and (line.num_tokens == num_tokens if line.ended == "tokens" else line.num_tokens < num_tokens)
        }
        return made >= set(prompts)

    def add(self, lines: Sequence[SampleLine]) -> None:
        """Write some more, on the disk when this returns."""
        rows = (json.dumps(line._asdict(), ensure_ascii=False) + "\n" for line in lines)
        self._data += "".join(rows).encode("utf-8", "backslashreplace")
        self._known.update(lines)
        self._output.publish(SAMPLES, self._data)


def followed(
    output: Folder, every: int, wait: Callable[[], None] = lambda: time.sleep(WAIT_SECONDS)
) -> Iterator[Checkpoint]:
    """The checkpoints at multiples of `every` steps, each once: those that are there, and further ones until the
    newest attempt of the run has ended. `wait` is called where there is none to take."""
    taken: set[tuple[int, int]] = set()
    while True:
        # Asked first: what the attempt saved as it ended is there by then.
        begun, ends = attempts(output), attempt_ends(output)
        is_over = bool(begun) and begun[-1].number in ends
        found = [
            each
            for each in checkpoints_of(output)
            if each.step % every == 0 and (each.step, each.attempt) not in taken
        ]
        for each in found:
            taken.add((each.step, each.attempt))
            yield each
        if is_over and not found:
            return
        if not found:
            wait()
