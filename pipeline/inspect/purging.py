"""`sluice purge`: the documents that a call names, the plan and the result, for the terminal and for Python."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from lineage.index.output_index import read_index
from lineage.purge.execution import PurgeRequest, PurgeResult, apply, unfinished_purge
from lineage.purge.exports import CleanedExports, PlannedExports, live_exports, plan_exports
from lineage.purge.plan import PARSED_TEXTS_KIND, PurgeError, PurgeMatch, PurgePlan, plan_purge
from lineage.purge.sweeps import UnsweptCache, unswept
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from pipeline.inspect import hooks
from pipeline.inspect.purge_targets import (
    PurgeTargets,
    UnknownName,
    is_scan_evidence,
    listed_targets,
    targets_of_file,
    targets_of_source,
    targets_where,
)
from pipeline.inspect.scan.evidence import ScanEvidence
from pipeline.inspect.trace.tracing import TrainingAccount, training_account
from stages.steps.textfiles import read_named_file


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeAccount:
    """What a purge takes, or took where `applied` is not None, and what else is to be known of it: what training runs
    read, the recorded copies, the caches that still hold blocks, the purge that an earlier call left `unfinished`, and
    the listed names that the output has not got."""

    out: Folder
    plan: PurgePlan
    applied: PurgeResult | None
    training: TrainingAccount
    exports: PlannedExports | CleanedExports
    unswept: tuple[UnsweptCache, ...]
    unfinished: str | None
    unknown: tuple[UnknownName, ...]

    def as_json(self) -> dict[str, object]:
        """As `sluice purge --json` gives it."""
        more = {
            "unswept_caches": [asdict(cache) for cache in self.unswept],
            "unfinished": self.unfinished,
            "exports": exports_json(self.out, self.exports),
        }
        return _as_json(self.plan, self.applied, self.training) | more


def planned(out: Folder, targets: PurgeTargets, forget_exports: Sequence[str] = ()) -> PurgeAccount:
    """What a purge of these documents would do; nothing is changed."""
    plan = plan_purge(out, targets.match, hooks.plan_hooks(out))
    return _account(out, plan, None, targets, planned_exports(out, forget_exports, plan))


def carried_out(
    out: Folder, targets: PurgeTargets, *, by: str, reason: str, forget_exports: Sequence[str] = ()
) -> PurgeAccount:
    """Purge these documents. Errors as of `apply`; one of a store that came after the purge had begun says how it is
    finished."""
    request = PurgeRequest(match=targets.match, by=by, reason=reason, forget_exports=tuple(forget_exports))
    try:
        applied = apply(out, request, hooks.plan_hooks(out), hooks.apply_hooks(), wait_seconds=30)
    except OSError as error:
        if (begun := unfinished_purge(out)) is not None:
            error.add_note(f"Purge {begun} has begun: the same call again finishes it")
        raise
    return _account(out, applied.plan, applied, targets, applied.exports)


def named_targets(
    out: Folder,
    *,
    docs: Sequence[bytes] | None = None,
    urls: Sequence[str] | None = None,
    hosts: Sequence[str] | None = None,
    domains: Sequence[str] | None = None,
    listed: str | None = None,
    where: str | None = None,
    source: str | None = None,
    warc: str | None = None,
    parsed_texts: bool = False,
    promote_duplicates: bool = False,
) -> PurgeTargets:
    """The documents that a call names in one of these ways. RecipeError where it names none or in several ways, or a
    name is wrong; UnknownError where the output has none of them, PurgeError where a scan's evidence is not to be
    purged by."""
    ways = (docs, urls, hosts, domains, listed, where, source, warc, parsed_texts or None)
    if sum(way is not None for way in ways) != 1:
        raise RecipeError(
            "expected one of --doc, --url, --host, --domain, --from, --where, --source, --warc, --parsed-texts"
        )
    if promote_duplicates and parsed_texts:
        raise RecipeError(
            "--promote-duplicates: --parsed-texts takes no document, so nothing could be promoted"
        )
    found: PurgeTargets
    if where is not None:
        found = targets_where(out, where)
    elif source is not None:
        found = targets_of_source(out, source)
    elif warc is not None:
        found = targets_of_file(out, warc)
    elif listed is not None:
        is_list = not is_scan_evidence(listed)
        found = listed_targets(out, listed) if is_list else _of_kind("scan", _scanned(listed))
    elif docs is not None:
        found = _of_kind("doc", [doc_id.hex() for doc_id in docs])
    elif urls is not None:
        found = _of_kind("url", urls)
    elif hosts is not None:
        found = _of_kind("host", hosts)
    elif domains is not None:
        found = _of_kind("domain", domains)
    else:
        found = _of_kind(PARSED_TEXTS_KIND, ())
    return replace(found, match=replace(found.match, promote_duplicates=promote_duplicates))


def _of_kind(kind: Any, values: Sequence[str]) -> PurgeTargets:
    return PurgeTargets(match=PurgeMatch(kind=kind, values=tuple(values)))


def _scanned(path: str) -> list[str]:
    """The ids of a scan's evidence."""
    try:
        evidence = ScanEvidence.from_json(json.loads(read_named_file(path)))
    except (ValueError, LookupError, TypeError) as error:
        raise RecipeError(f"--from {path} is not what `sluice scan` wrote: {error}") from error
    if evidence.refused:
        raise PurgeError(
            f"--from {path}: the scan found a share of {evidence.share:.2%}, above its --max-share"
            f" {evidence.max_share:g}. Look at the evidence; if it is right, scan again with a higher"
            f" --max-share."
        )
    if not evidence.documents:
        raise PurgeError(f"--from {path}: the scan found no document, so there is nothing to purge")
    return [document.doc_id for document in evidence.documents]


def planned_exports(out: Folder, forget: Sequence[str], plan: PurgePlan | None) -> PlannedExports:
    """What will become of the exports; `plan` is None where no document is named. A purge that did not end is
    ended first, and changes the corpus too."""
    purges = plan is not None and (bool(plan.rows) or plan.parsed_texts is not None)
    changes_corpus = purges or unfinished_purge(out) is not None
    return plan_exports(out, read_index(out), forget, changes_corpus=changes_corpus)


def _account(
    out: Folder,
    plan: PurgePlan,
    applied: PurgeResult | None,
    targets: PurgeTargets,
    exports: PlannedExports | CleanedExports,
) -> PurgeAccount:
    placed = sorted({row.doc_id for row in plan.rows if row.shard is not None})
    return PurgeAccount(
        out=out,
        plan=plan,
        applied=applied,
        training=training_account(out.url, placed, applied.purge_id if applied else None),
        exports=exports,
        unswept=unswept(out, read_index(out)),
        unfinished=None if applied else unfinished_purge(out),
        unknown=targets.unknown,
    )


def exports_json(out: Folder, exports: PlannedExports | CleanedExports) -> dict[str, object]:
    """The recorded copies, and what becomes of them: a plan names those `to_clean` and `to_forget`, and none
    that is `cleaned`, `forgotten` or `out_of_reach`."""
    live = [{"name": row.name, "format": row.format, "place": row.place} for row in live_exports(out)]
    planned, done = PlannedExports(to_clean=(), to_forget=()), CleanedExports()
    if isinstance(exports, PlannedExports):
        planned = exports
    else:
        done = exports
    return {
        "recorded": live,
        "to_clean": [row.name for row in planned.to_clean],
        "to_forget": [row.name for row in planned.to_forget],
        **asdict(done),
    }


def _as_json(plan: PurgePlan, applied: PurgeResult | None, account: TrainingAccount) -> dict[str, object]:
    return {
        "applied": applied is not None and applied.purge_id is not None,
        "purge_id": applied.purge_id if applied else None,
        "finished": applied.finished if applied else None,
        "match": json.loads(plan.match.as_json()),
        "num_documents": plan.num_documents,
        "num_tokens": plan.num_tokens,
        "num_without_page": plan.num_without_page,
        **({"num_relying": plan.num_relying} if plan.num_relying != 0 else {}),
        **({"num_staying": plan.num_staying} if plan.num_staying != 0 else {}),
        "num_parsed_texts": 0 if plan.parsed_texts is None else plan.parsed_texts.num_rows,
        "returned": [doc_id.hex() for doc_id in plan.returned],
        "already_purged": [doc_id.hex() for doc_id in plan.already],
        "shards": [{"source": source, "shard": shard} for source, shard in plan.shards],
        "documents": [
            {
                "doc_id": row.doc_id.hex(),
                "role": row.role,
                "status": row.status,
                "source": row.source,
                **({} if row.bucket is None else {"bucket": row.bucket}),
                "shard": row.shard,
                "start": row.start,
                "num_tokens": row.num_tokens,
            }
            for row in plan.rows
        ],
        "elsewhere": [
            {"doc_id": entry.doc_id.hex(), "out": entry.out}
            | ({"not_opened": list(entry.not_opened)} if entry.not_opened else {})
            for entry in plan.elsewhere
        ],
        "exposures": [asdict(each) for each in account.exposures],
        "exposures_unread": dict(account.unread),
    }
