"""The order in which each pipeline rank works, and how long it takes: torch's own action tables, executed on
paper.

The tables are those of torch.distributed.pipelining (2.13), action for action; a test compares them. Nothing
here imports torch. A stage is one of the p·v consecutive parts of a model's layers: rank r has stages r, r +
p, … (loop), or r and 2p − 1 − r (zbv, dualpipev). F is a stage's forward pass of one micro-batch, I the
gradient with respect to its input, W with respect to its weights, B both at once."""

from __future__ import annotations

import functools
import operator
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from trainer.recipe_tables.parallelism import Schedule, rank_of_stage

Kind = Literal["F", "B", "I", "W"]

_ROUNDS_UNDER_WAY: Final = 3
"""No schedule but gpipe has a micro-batch under way for more rounds: interleaved ones for 2.5, zbv and
dualpipev 2."""
_ROUNDING: Final = 1e-12
"""Of a step's time: what two times may differ by and be the same."""


class Action(NamedTuple):
    """What a rank does next."""

    stage: int
    kind: Kind
    micro_batch: int


class PipelinePlan(NamedTuple):
    """A schedule over `pp` ranks with `num_stages` stages each."""

    schedule: Schedule
    pp: int
    num_stages: int
    num_micro_batches: int


def round_size(schedule: Schedule, pp: int, num_micro_batches: int) -> int:
    """Micro-batches after which each rank of a long table does the same again."""
    if schedule in ("interleaved", "interleaved_zero_bubble"):
        return num_micro_batches // max(1, num_micro_batches // pp)
    return pp


def _gpipe(rank: int, plan: PipelinePlan) -> list[Action]:
    """All forward passes, then all backward passes (Huang et al., 1811.06965)."""
    return [Action(rank, kind, micro) for kind in ("F", "B") for micro in range(plan.num_micro_batches)]


def _one_f_one_b(rank: int, plan: PipelinePlan) -> list[Action]:
    """p − 1 − r forward passes, then one forward and one backward in turns (2104.04473, section 2.2.1)."""
    ahead = plan.pp - 1 - rank
    actions = [Action(rank, "F", micro) for micro in range(ahead)]
    for micro in range(plan.num_micro_batches):
        if micro + ahead < plan.num_micro_batches:
            actions.append(Action(rank, "F", micro + ahead))
        actions.append(Action(rank, "B", micro))
    return actions


def _interleaved(rank: int, plan: PipelinePlan) -> list[Action]:
    """1F1B over several stages (2104.04473, section 2.2.2); as a zero bubble ZB1P, where W comes `rank`
    backward passes later (2401.10241)."""
    schedule, pp, num_stages, num_micro_batches = plan
    split, in_round = schedule == "interleaved_zero_bubble", round_size(schedule, pp, num_micro_batches)
    total, stages = num_stages * num_micro_batches, range(rank, num_stages * pp, pp)

    def passes(kind: Kind, stages: Sequence[int]) -> list[Action]:
        return [
            Action(stage, kind, micro)
            for begin in range(0, num_micro_batches, in_round)
            for stage in stages
            for micro in range(begin, begin + in_round)
        ]

    forward, backward = passes("F", stages), passes("I" if split else "B", stages[::-1])
    weights = passes("W", stages[::-1]) if split else []
    warmup = min((num_stages - 1) * in_round + (1 if split else 2) * (pp - 1 - rank), total)
    actions = forward[:warmup]
    for position in range(total):
        actions += forward[position + warmup : position + warmup + 1]
        actions.append(backward[position])
        if position >= rank:
            actions += weights[position - rank : position - rank + 1]
    return actions + weights[max(0, total - rank) :]


class _Passes:
    """The actions of a rank as they are made, each of the next micro-batch of its stage. B and I count the
    same backward passes."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self._num: defaultdict[tuple[int, Kind], int] = defaultdict(int)
        self._waiting: deque[tuple[int, int]] = deque()

    def add(self, times: int, *passes: tuple[int, Kind]) -> None:
        begins = []
        for stage, kind in passes:
            counted = stage, "I" if kind == "B" else kind
            begins.append((stage, kind, self._num[counted]))
            self._num[counted] += times
        made = [Action(stage, kind, begin + time) for time in range(times) for stage, kind, begin in begins]
        self.actions += made
        self._waiting += [(stage, micro) for stage, kind, micro in made if kind == "I"]

    def add_oldest_weights(self) -> None:
        """W of the I that has waited longest, whatever its stage."""
        if self._waiting:
            stage, micro = self._waiting.popleft()
            self.actions.append(Action(stage, "W", micro))


def _zbv(rank: int, plan: PipelinePlan) -> list[Action]:
    """Two stages a rank in a V, W right after I until the end (Qi et al., 2405.15362)."""
    pp, first, second = plan.pp, rank, 2 * plan.pp - 1 - rank
    wanted = max(2 * pp - 1, plan.num_micro_batches)
    made = _Passes()
    made.add(2 * (pp - rank) - 1, (first, "F"))
    made.add(rank, (second, "F"), (first, "F"))
    made.add(pp - rank, (second, "F"), (second, "I"), (second, "W"))
    turn: tuple[tuple[int, Kind], ...] = (
        (first, "I"),
        (first, "W"),
        (second, "F"),
        (second, "I"),
        (second, "W"),
    )
    made.add(wanted - 2 * pp + rank + 1, (first, "F"), *turn)
    made.add(pp - rank - 1, *turn)
    made.add(rank, (first, "I"), (second, "I"))
    made.add(pp - rank, (first, "I"), (first, "W"))
    made.add(rank, (second, "W"))
    made.add(rank, (first, "W"))
    # The pattern needs 2p − 1 micro-batches; of fewer, those that there are not are left out.
    return [action for action in made.actions if action.micro_batch < plan.num_micro_batches]


def _dualpipev(rank: int, plan: PipelinePlan) -> list[Action]:
    """Two stages a rank in a V (github.com/deepseek-ai/DualPipe). Its pairs of a forward and a backward pass
    run one after the other, as torch does unless a function that overlaps them is registered."""
    first, second, others = rank, 2 * plan.pp - 1 - rank, plan.pp - rank - 1
    made = _Passes()
    made.add(2 * others, (first, "F"))
    made.add(rank + 1, (first, "F"), (second, "F"))
    for _ in range(others):
        made.add(1, (second, "I"))
        made.add_oldest_weights()
        made.add(1, (second, "F"))
    made.add(
        plan.num_micro_batches - 2 * plan.pp + rank + 1,
        (first, "F"),
        (second, "B"),
        (second, "F"),
        (first, "B"),
    )
    made.add(others, (second, "B"), (second, "F"), (first, "B"))
    for position in range(2 * (rank + 1)):
        made.add(1, (first if position % 2 else second, "I" if position > rank else "B"))
    for _ in range(others):
        made.add_oldest_weights()
        made.add(1, (first, "I"))
    for _ in range(rank + 1):
        made.add_oldest_weights()
    return made.actions


_ACTIONS: Final[Mapping[Schedule, Callable[[int, PipelinePlan], list[Action]]]] = {
    "gpipe": _gpipe,
    "1f1b": _one_f_one_b,
    "interleaved": _interleaved,
    "interleaved_zero_bubble": _interleaved,
    "zbv": _zbv,
    "dualpipev": _dualpipev,
}


def action_table(pipeline: PipelinePlan) -> tuple[tuple[Action, ...], ...]:
    """The actions of each rank, in order, for a number of micro-batches that the schedule takes
    (`PipelineTable.fill_up`)."""
    return tuple(tuple(_ACTIONS[pipeline.schedule](rank, pipeline)) for rank in range(pipeline.pp))


@functools.lru_cache(maxsize=4096)
def _short_actions(pipeline: PipelinePlan, rank: int) -> tuple[Action, ...]:
    return tuple(_ACTIONS[pipeline.schedule](rank, pipeline))


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimes:
    """Seconds, or any unit, of one micro-batch in the whole model: forward, gradient of the input, gradient
    of the weights; and of handing activations to another rank."""

    forward: float
    input: float
    weight: float
    send: float = 0.0

    @property
    def total(self) -> float:
        """All three passes."""
        return self.forward + self.input + self.weight

    def plus(self, other: PassTimes, times: float = 1.0) -> PassTimes:
        """With so many times another's passes."""
        return PassTimes(
            forward=self.forward + times * other.forward,
            input=self.input + times * other.input,
            weight=self.weight + times * other.weight,
        )


def span(pipeline: PipelinePlan, times: PassTimes, shares: Sequence[float]) -> float:
    """From the first action to the last, where each rank does the next of its actions as soon as what it
    needs is there. `shares[c]`: what part of `times` stage c takes; all 1/(p·v) where the layers are spread
    evenly.

    F of a stage waits for F of the stage before, I and B for those of the stage after, W for its own I."""
    return _execute(pipeline, times, shares)[1]


def long_span(pipeline: PipelinePlan, times: PassTimes, shares: Sequence[float]) -> float:
    """`span` of a table of any length, of which no more rounds are executed than it takes until one comes as
    long after the other with all its passes: so then do all that follow, until no forward pass is left to
    begin.

    That can take long: a rank with a little less work than the fullest runs ahead of it for many rounds.
    gpipe has two such stretches, and is executed whole."""
    num = pipeline.num_micro_batches
    size = round_size(pipeline.schedule, pipeline.pp, num)
    rounds = 3 * _ROUNDS_UNDER_WAY
    while pipeline.schedule != "gpipe" and num > rounds * size + num % size:
        short = pipeline._replace(num_micro_batches=rounds * size + num % size)
        done, end = _execute(short, times, shares)
        # What comes after these passes waits for no earlier ones, and before the last of them no rank is at
        # its end.
        first = (rounds - 2 * _ROUNDS_UNDER_WAY - 1) * size
        later = [
            after - before
            for at in range(first, 2 * len(shares) * short.num_micro_batches, short.num_micro_batches)
            for before, after in zip(
                done[at : at + _ROUNDS_UNDER_WAY * size],
                done[at + size : at + (_ROUNDS_UNDER_WAY + 1) * size],
                strict=True,
            )
        ]
        if max(later) - min(later) <= _ROUNDING * end:
            return end + max(later) * (num - short.num_micro_batches) / size
        rounds *= 2
    return span(pipeline, times, shares)


def _execute(pipeline: PipelinePlan, times: PassTimes, shares: Sequence[float]) -> tuple[list[float], float]:
    """When each forward and backward pass of `_in_order` was done, and the last action."""
    kinds = (times.forward, times.input, times.weight, times.input + times.weight)
    costs = [kind * share for kind in kinds for share in shares]
    # When each pass was done, forward ones first; the last two: the step's beginning, and what nothing waits
    # for.
    done = [0.0] * (2 * len(shares) * pipeline.num_micro_batches + 2)
    clock, send = [0.0] * pipeline.pp, times.send
    for rank, needed, made, cost, travels in _in_order(pipeline):
        now, came = clock[rank], done[needed]
        if travels:
            came += send
        clock[rank] = done[made] = (now if now > came else came) + costs[cost]
    return done, max(clock)


@functools.lru_cache(maxsize=16)
def _in_order(pipeline: PipelinePlan) -> list[tuple[int, int, int, int, bool]]:
    """The actions of all ranks, each behind those of its rank before it and behind what it waits for,
    whatever they take: rank, the pass that it waits for, the pass that it is (the last number: a W, for which
    nothing waits), the place of its cost, and whether what it waits for comes from another rank."""
    wanted = _dependencies(pipeline)
    start = 2 * pipeline.pp * pipeline.num_stages * pipeline.num_micro_batches
    is_done, position = bytearray(start + 2), [0] * pipeline.pp
    found: list[tuple[int, int, int, int, bool]] = []
    is_done[start] = True
    num_left = sum(map(len, wanted))
    while num_left > len(found):
        before = len(found)
        for rank, actions in enumerate(wanted):
            at = position[rank]
            while at < len(actions) and is_done[actions[at][1]]:
                is_done[actions[at][2]] = True
                found.append(actions[at])
                at += 1
            position[rank] = at
        assert len(found) > before, "a table whose actions wait for each other in a circle"
    return found


def _dependencies(pipeline: PipelinePlan) -> tuple[list[tuple[int, int, int, int, bool]], ...]:
    """The entries of `_in_order`, of each rank in order."""
    num_stages, num_micro_batches = pipeline.pp * pipeline.num_stages, pipeline.num_micro_batches
    backward, start = num_stages * num_micro_batches, 2 * num_stages * num_micro_batches
    costs = {"F": 0, "I": num_stages, "W": 2 * num_stages, "B": 3 * num_stages}
    home = [rank_of_stage(pipeline.schedule, stage, pipeline.pp) for stage in range(num_stages)]
    wanted = []
    for rank, actions in enumerate(action_table(pipeline)):
        of_rank = []
        for stage, kind, micro in actions:
            place = stage * num_micro_batches + micro
            sender = stage
            if kind == "F":
                sender = max(stage - 1, 0)
                needed, made = place - num_micro_batches if stage else start, place
            elif kind == "W":
                needed, made = backward + place, start + 1
            elif stage == num_stages - 1:
                needed, made = place, backward + place
            else:
                sender = stage + 1
                needed, made = backward + place + num_micro_batches, backward + place
            of_rank.append((rank, needed, made, costs[kind] + stage, home[sender] != rank))
        wanted.append(of_rank)
    return tuple(wanted)


class RankMemory(NamedTuple):
    """What a rank has at one instant: of micro-batches whose backward pass is not over; of those among them
    whose gradients of weights are still to come; and its stages of each kind that have made gradients."""

    kept: float
    between: float
    made: tuple[int, ...]


def fullest_instants(
    actions: Sequence[Action], kept: Sequence[float], between: Sequence[float], kinds: Sequence[int]
) -> tuple[RankMemory, ...]:
    """The fullest instants of a rank before it has made any gradients, and after each of its stages has begun
    to: that with the most, where what is between counts half (see
    `trainer.planning.memory.split_backward_bytes`), and that with the most between.

    `kept[c]` is held for each micro-batch of stage c, of kind `kinds[c]`, from its F until its B or W,
    `between[c]` besides from its I on."""
    # Plain numbers: a search goes through millions of actions.
    alive = waiting = most = 0.0
    made = [0] * (max(kinds) + 1)
    fullest = longest = (0.0, 0.0)
    begun: set[int] = set()
    instants = []
    for stage, kind, _ in actions:
        if kind == "F":
            alive += kept[stage]
        elif kind == "I":
            waiting += between[stage]
        else:
            alive -= kept[stage]
            if kind == "W":
                waiting -= between[stage]
            if stage not in begun:
                begun.add(stage)
                instants += [RankMemory(*most_held, tuple(made)) for most_held in (fullest, longest)]
                made[kinds[stage]] += 1
                most, fullest, longest = alive + waiting / 2, (alive, waiting), (alive, waiting)
            continue
        if alive + waiting / 2 > most:
            most, fullest = alive + waiting / 2, (alive, waiting)
        if waiting > longest[1]:
            longest = (alive, waiting)
    instants += [RankMemory(*most_held, tuple(made)) for most_held in (fullest, longest)]
    return tuple(dict.fromkeys(instants))


def instants_of_ranks(
    pipeline: PipelinePlan,
    ranks: Sequence[int],
    kept: Sequence[float],
    between: Sequence[float],
    kinds: Sequence[int],
) -> tuple[RankMemory, ...]:
    """`fullest_instants` of any of these ranks, without those at which another has no less of anything."""
    found = {
        one
        for rank in ranks
        for one in fullest_instants(_short_actions(pipeline, rank), kept, between, kinds)
    }
    fullest: list[RankMemory] = []
    for one in sorted(found, key=lambda one: (one.made, one.kept, one.between), reverse=True):
        if not any(
            other.kept >= one.kept
            and other.between >= one.between
            and all(map(operator.ge, other.made, one.made))
            for other in fullest
        ):
            fullest.append(one)
    return tuple(fullest)
