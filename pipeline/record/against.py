"""What changed between two records of one form, and whether that is material: whether the public summary must be
published again before its six months are over."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, Final

from pipeline.record.forms.eu_summary import size_bin

_DUE_DAYS: Final = 182
"""Notice to C(2025) 8311 final: updates every six months, or sooner where the change is material."""
_MATERIAL: Final = 0.1
"""A share of the tokens by which their number is another: ours, since the notice gives none."""


def changed_since(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, object]:
    """`is_material` with its reasons, `is_due`, and each figure, source, domain and field that differs."""
    reasons = _reasons(old, new)
    days = (_day(new) - _day(old)).days
    before, now = _values(old), _values(new)
    return {
        "since": old.get("as_of"),
        "days": days,
        "is_due": days > _DUE_DAYS,
        "is_material": bool(reasons),
        "reasons": reasons,
        "figures": {
            name: [before.get(name), now.get(name)] for name in now if before.get(name) != now.get(name)
        },
        "sources": _names_changed(old, new, "sources", "source"),
        "domains": _names_changed(old, new, "domains", "domain"),
        "purges": [row for row in new["purges"] if row not in old.get("purges", [])],
        "fields": {
            name: [was, is_now]
            for name, (was, is_now) in _paired(_fields(old), _fields(new)).items()
            if was != is_now and name not in ("last_update",)
        },
    }


def _reasons(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    before, now = _values(old), _values(new)
    found = []
    bins = [size_bin(values.get("tokens") or 0) for values in (before, now)]
    if bins[0] != bins[1]:
        found.append(f"the size of the training data was {bins[0]!r} and is {bins[1]!r}")
    for name in ("tokens", "read_tokens"):
        was, is_now = before.get(name) or 0, now.get(name) or 0
        if abs(is_now - was) > _MATERIAL * was:
            found.append(
                f"{name} were {was:,} and are {is_now:,}, which differs by more than {_MATERIAL:.0%}"
            )
    sources = _names_changed(old, new, "sources", "source")
    found += [f"source {name} is new" for name in sources["new"]]
    found += [f"source {name} is gone" for name in sources["gone"]]
    runs = [{(run["run"], run["checkpoint"]) for run in row.get("runs", ())} for row in (old, new)]
    found += [f"run {run} is read up to {checkpoint}" for run, checkpoint in sorted(runs[1] - runs[0])]
    return found


def _names_changed(
    old: Mapping[str, Any], new: Mapping[str, Any], table: str, column: str
) -> dict[str, list[str]]:
    was, is_now = ({row[column] for row in record[table]} for record in (old, new))
    return {"new": sorted(is_now - was), "gone": sorted(was - is_now)}


def _values(record: Mapping[str, Any]) -> dict[str, int | None]:
    return {figure["name"]: figure["value"] for figure in record["figures"]}


def _fields(record: Mapping[str, Any]) -> dict[str, str]:
    return {field["field"]: field["value"] for field in record["fields"]}


def _paired(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    return {name: (old.get(name), new.get(name)) for name in dict.fromkeys((*old, *new))}


def _day(record: Mapping[str, Any]) -> datetime.date:
    return datetime.date.fromisoformat(record["as_of"])
