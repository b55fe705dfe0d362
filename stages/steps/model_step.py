"""Model steps: steps that hold a model, to which documents go in batches on actors of their own.

A chain is cut before such a step. What the model answers for each document of a fragment is kept, the
documents take it up (`Document.answers`), and the step itself only makes an outcome of it. A document without
an answer, as in `sluice explain`, makes the step ask the model in its own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar, cast

from lineage.recipe import RecipeError, key
from stages.document import Document, Finding, Outcome, Rejection, error_rule
from stages.fault import Fault

Answer = float | Outcome | Fault
"""What a model gives for one document: a score, or what a user's class makes of it; the exception that it
raised."""

BATCH: Final = 32
"""Documents that a model gets at once where the recipe says nothing."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class NoRoomError(RuntimeError):
    """A batch does not fit into a GPU's memory: about the recipe, and not about a document."""


class Pool(Protocol):
    """The keys by which a table asks for actors of its own."""

    @property
    def num_cpus(self) -> float | None: ...
    @property
    def num_gpus(self) -> float: ...
    @property
    def resources(self) -> Mapping[str, float]: ...
    @property
    def actors(self) -> tuple[int, int]: ...


WHERE_IT_RUNS: Final = ("num_gpus", "resources", "actors")
"""Keys of a Pool that no byte depends on. (`num_cpus` is also the number of threads, and sums of another
order.)"""


def num_cpus_key() -> Any:
    """The recipe's key `num_cpus` of a table that may ask for actors."""
    return key(
        None,
        at_least=0,
        help="processors of an actor, and its threads (1; with a GPU none is reserved)",
        unit="processors",
    )


def num_gpus_key() -> Any:
    """`num_gpus`."""
    return key(
        0.0,
        at_least=0,
        help="GPUs of an actor; with 0.5, two share one. Without a GPU on any node it runs on CPUs",
    )


def resources_key() -> Any:
    """`resources`."""
    return key(
        {}, help='custom resources that an actor reserves, such as { "accelerator_type:H100" = 0.001 }'
    )


def actors_key() -> Any:
    """`actors`."""
    return key((1, 1), at_least=1, help="minimum and maximum number of actors", unit="actors")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStep:
    """A model of a chain. `name` is its operator's and the key of its answers; `position` is the place, among
    the chain's steps, of the step that takes them; `table` names its table of the recipe in errors. `load`
    gives the model: a function of a fragment's documents to as many answers, on a GPU if it is told so."""

    name: str
    position: int
    table: str
    pool: Pool
    gives_scores: bool
    load: Callable[[bool], Callable[[Sequence[Document]], list[Answer]]]

    @property
    def threads(self) -> int:
        """Threads of an actor."""
        return num_threads(self.pool)


def num_threads(pool: Pool) -> int:
    """Threads that an actor computes with: a function of the recipe alone, since sums depend on it."""
    return max(1, int(pool.num_cpus or 1))


def check_pool(pool: Pool, name: str) -> None:
    """RecipeError where its keys cannot be."""
    fewest, most = pool.actors
    if fewest > most:
        raise RecipeError(f"{name}.actors = [{fewest}, {most}]: expected the fewest first, then the most")
    wrong = [resource for resource, amount in pool.resources.items() if amount <= 0]
    if wrong:
        raise RecipeError(f"{name}.resources.{wrong[0]} = {pool.resources[wrong[0]]:g}: expected more than 0")


def one_by_one(
    together: Callable[[Sequence[Item]], list[Result]], batch: Sequence[Item]
) -> Iterator[Result | Fault]:
    """What `together` gives for a batch; where it raises, what it gives for each item alone, so that only
    those which raise by themselves are lost. What is not about an item passes: a wrong recipe, memory that is
    used up."""
    try:
        yield from together(batch)
    except (RecipeError, MemoryError, NoRoomError):
        raise
    except Exception as error:  # noqa: BLE001 - the user's own code, on hostile pages: anything may come out of it
        if len(batch) == 1:
            yield Fault.of(error)
            return
        for item in batch:
            yield from one_by_one(together, [item])


def answer_of(document: Document, name: str) -> Answer | None:
    """What the model `name` answered for the document; None if it was not asked."""
    return cast(Answer | None, (document.answers or {}).get(name))


def failed(document: Document, stage: str, fault: Fault) -> Rejection:
    """The rejection of a document on which a model raised."""
    finding = Finding(stage=stage, rule=error_rule(stage), rejected=True)
    return Rejection(document=document, finding=finding, fault=fault)
