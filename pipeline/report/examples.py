"""The documents that the report shows of each rule, from excerpts.parquet, with what lineage says of them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from pipeline.report.data import ExampleGroup, Excerpt, human_value

_PER_GROUP: Final = 4
_Ask = Callable[[str], list[tuple[Any, ...]]]

_TITLES: Final = {
    "near": "Rejected, nearest to the threshold",
    "far": "Rejected, farthest from it",
    "passed": "Passed every step, nearest to the threshold",
    "least": "Some of the rejected",
}


def examples_of_rules(
    ask: _Ask, excerpts: Sequence[Mapping[str, Any]]
) -> dict[tuple[str, str], tuple[ExampleGroup, ...]]:
    """What is shown of each (stage, rule): a document once, for the first reason that there is."""
    known = _measured(ask, sorted({row["doc_id"].hex() for row in excerpts}))
    groups: dict[tuple[str, str], dict[str, list[Excerpt]]] = defaultdict(
        lambda: {choice: [] for choice in _TITLES}
    )
    shown: set[tuple[str, str, str]] = set()
    for row in sorted(excerpts, key=lambda row: list(_TITLES).index(row.get("choice") or "least")):
        doc_id, name = row["doc_id"].hex(), (row["stage"], row["rule"])
        group = groups[name][row.get("choice") or "least"]
        if (doc_id, *name) in shown or len(group) == _PER_GROUP:
            continue
        shown.add((doc_id, *name))
        url, value, note = known.get(doc_id, ("", None, ""))
        value = value if row.get("value") is None else row["value"]
        measured = "" if value is None else f"measured {human_value(value)}"
        group.append(
            Excerpt(
                doc_id=doc_id,
                url=url,
                link=web_link(url),
                note=", ".join(part for part in (measured, note) if part),
                pieces=_marked(row["excerpt"], row.get("marks") or ()),
            )
        )
    return {
        name: tuple(
            ExampleGroup(title=_TITLES[choice], excerpts=tuple(found))
            for choice, found in by.items()
            if found
        )
        for name, by in groups.items()
    }


def _marked(excerpt: str, marks: Collection[int]) -> tuple[tuple[str, bool], ...]:
    """The excerpt in pieces, with the lines that count against it marked."""
    lines = excerpt.split("\n")
    return tuple(
        (line + ("\n" if number < len(lines) - 1 else ""), number in marks)
        for number, line in enumerate(lines)
    )


def web_link(url: str) -> str:
    """The URL as the target of a link: only of the web, since others may run what they hold."""
    return url if re.fullmatch(r"https?://[^\s\x00-\x20]+", url, re.IGNORECASE) else ""


def _measured(ask: _Ask, doc_ids: Sequence[str]) -> dict[str, tuple[str, float | None, str]]:
    """Of each of these documents its URL, what its rule measured, and the language that was seen."""
    found = {}
    for start in range(0, len(doc_ids), 500):
        listed = ", ".join(f"'{doc_id}'" for doc_id in doc_ids[start : start + 500])
        for doc_id, url, value, language, score in ask(
            f"SELECT doc_id, url, value, language, language_score FROM documents WHERE doc_id IN ({listed})"
        ):
            seen = (
                ""
                if language is None
                else f"language {language}" + ("" if score is None else f" {score:.2f}")
            )
            found[doc_id] = (url or "", value, seen)
    return found
