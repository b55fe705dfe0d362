"""What publishers say now of the documents that an output keeps."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.inspect.rights import RightsChanges, check_plan_name, publish_plan, rights_changes
from sluice.messages import in_python


@in_python
def rights(
    outs: str | Sequence[str],
    robots: str | Sequence[str],
    *,
    agents: Sequence[str] = (),
    signals: Sequence[str] = (),
    to: str | None = None,
) -> RightsChanges:
    """The kept documents of one or several outputs that WARC files of robots.txt or tdmrep.json responses (`robots`,
    files or folders) deny and that were not denied when they were fetched, as `sluice rights` finds them. `agents` and
    `signals` are by default those of each output's recipe. With `to`, a name that ends in .json, the plan for `purge`
    is written there (its argument `listed`).

    RecipeError where a file has no such response or an output records no host, NotFinishedError where an output is
    not finished."""
    if to is not None:
        check_plan_name(to)
    changes = rights_changes(
        [outs] if isinstance(outs, str) else outs,
        [robots] if isinstance(robots, str) else robots,
        agents=agents,
        signals=signals,
    )
    if to is not None:
        publish_plan(changes, to)
    return changes
