"""The profile of a training run as rows of tables, and as one self-contained HTML page."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pipeline.report.render import escaping

if TYPE_CHECKING:
    from trainer.evidence.profiles.gaps import Cause
    from trainer.evidence.profiles.profile import Profile

COLLECTIVE_HEAD: Final = (
    "collective", "number a rank", "MB sent a rank", "seconds", "hidden", "exposed", "of it waiting for a rank",
)  # fmt: skip
TRAFFIC_HEAD: Final = ("axis and what", "number", "MB sent", "seconds")
KERNEL_HEAD: Final = ("kernel", "number a rank", "seconds", "share of computing", "roofline", "bound by")
GAP_HEAD: Final = ("cause", "phase", "the host was in", "seconds", "stretches")
RANK_HEAD: Final = (
    "rank", "computing", "hidden", "exposed", "waiting", "copying", "idle", "waited most for",
)  # fmt: skip


def render_profile(found: Profile) -> str:
    """The page. What stands in it is escaped."""
    template = escaping("pipeline.report", ".").get_template("training/profile.html")
    return template.render(found=found, words=sys.modules[__name__])


def heading(found: Profile) -> str:
    """What was read."""
    attempt = "" if found.attempt is None else f"attempt {found.attempt}, "
    share = "" if found.hidden_share is None else f"; {found.hidden_share:.1%} of communication is hidden"
    return f"{found.output}: {attempt}{len(found.ranks):,} ranks on {found.device}, by {found.tool}{share}"


def span(found: Profile) -> str:
    """Which time the figures are of."""
    if found.num_steps is None:
        return "The whole trace"
    last = (
        ""
        if found.first_step is None
        else f", steps {found.first_step} to {found.first_step + found.num_steps - 1}"
    )
    return f"A step, the mean of {found.num_steps:,}{last}"


def expected_head(found: Profile) -> str:
    """The head of the plan's column."""
    return "expected" if found.expected is None else f"expected on {found.expected.device}"


def time_rows(found: Profile) -> Iterator[tuple[str, ...]]:
    """Where a step's time goes, measured and expected."""
    plan = found.expected
    expected: dict[str, float | None] = {}
    if plan is not None:
        expected = {
            "whole": plan.step_seconds,
            "computing": plan.computing,
            "communication": plan.communication,
            "  hidden behind computing": max(0.0, plan.communication - plan.exposed),
            "  exposed": plan.exposed,
            "idle": plan.idle,
        }
    waiting = None if any(rank.waiting is None for rank in found.ranks) else found.mean("waiting")
    rows = (
        ("whole", found.mean("seconds")),
        ("computing", found.mean("computing")),
        ("communication", found.mean("communication")),
        ("  hidden behind computing", found.mean("hidden")),
        ("  exposed", found.mean("exposed")),
        ("    of it waiting for a later rank", waiting),
        ("copying", found.mean("copying")),
        ("idle", found.mean("idle")),
    )
    for name, measured in rows:
        yield name, _seconds(measured), _seconds(expected.get(name))
    share = None if plan is None else plan.hidden_share
    yield "share of communication that is hidden", _percent(found.hidden_share), _percent(share)


def collective_rows(found: Profile) -> Iterator[tuple[str, ...]]:
    """Communication by collective, of a step."""
    steps = found.num_steps or 1
    for one in found.collectives:
        yield (
            one.name,
            f"{one.num / steps:,.1f}",
            _megabytes(one.num_bytes, steps),
            _seconds(one.seconds / steps),
            _percent(one.hidden_share),
            _seconds(one.exposed / steps),
            _seconds(None if one.waiting is None else one.waiting / steps),
        )


def traffic_rows(found: Profile) -> Iterator[tuple[str, ...]]:
    """What the plan expects to be sent."""
    for kind in found.expected.traffic if found.expected else ():
        yield (
            f"{kind.axis}: {kind.what}",
            f"{kind.num:,.0f}",
            _megabytes(kind.num_bytes, 1),
            _seconds(kind.seconds),
        )


def kernel_rows(found: Profile) -> Iterator[tuple[str, ...]]:
    """The longest kernels, of a step."""
    steps = found.num_steps or 1
    for one in found.kernels:
        name = one.name if one.operator in ("", one.name) else f"{one.name} ({one.operator})"
        yield (
            name if len(name) <= 100 else name[:99] + "…",
            f"{one.num / steps:,.1f}",
            _seconds(one.seconds / steps),
            _percent(one.share),
            _percent(one.roofline_share),
            one.bound or "",
        )


def gap_rows(found: Profile, most: int) -> Iterator[tuple[str, ...]]:
    """Idle time by cause, the longest first; of a step, the sum of ranks."""
    from trainer.evidence.profiles.gaps import CAUSES, CPU_CAUSES

    steps = found.num_steps or 1
    causes = CPU_CAUSES if found.device == "CPU" else CAUSES
    sums: dict[tuple[Cause, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for rank in found.ranks:
        for gap in rank.gaps:
            own = sums[gap.cause, gap.phase, gap.during]
            own[0] += gap.seconds / steps
            own[1] += gap.num / steps
    longest = sorted(sums, key=lambda key: (-sums[key][0], key))
    for cause, phase, during in longest[:most]:
        seconds, num = sums[cause, phase, during]
        yield causes[cause], phase, during, _seconds(seconds), f"{num:,.1f}"
    if len(longest) > most:
        rest = [sums[key] for key in longest[most:]]
        yield (
            f"{len(rest):,} more", "", "", _seconds(sum(own[0] for own in rest)), f"{sum(own[1] for own in rest):,.1f}",
        )  # fmt: skip


def rank_rows(found: Profile, most: int) -> Iterator[tuple[str, ...]]:
    """Each rank, those with the most exposed communication first; of a step."""
    steps = found.num_steps or 1
    order = sorted(found.ranks, key=lambda rank: (-rank.exposed, rank.rank))
    for rank in order[:most]:
        late = max(rank.waited_for, key=lambda other: rank.waited_for[other], default=None)
        yield (
            f"{rank.rank} on {rank.host_name}" if rank.host_name else str(rank.rank),
            _seconds(rank.computing / steps),
            _seconds(rank.hidden / steps),
            _seconds(rank.exposed / steps),
            _seconds(None if rank.waiting is None else rank.waiting / steps),
            _seconds(rank.copying / steps),
            _seconds(rank.idle / steps),
            "" if late is None else f"rank {late}, {_seconds(rank.waited_for[late] / steps)}",
        )
    if len(order) > most:
        yield (f"{len(order) - most:,} more: --json has them all", *[""] * 7)


def _seconds(value: float | None) -> str:
    return "not known" if value is None else f"{value:.6f}"


def _percent(value: float | None) -> str:
    return "not known" if value is None else f"{value:.1%}"


def _megabytes(value: float | None, steps: int) -> str:
    return "not known" if value is None else f"{value / steps / 1e6:,.3f}"
