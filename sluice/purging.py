"""Take documents out of an output again: a plan first, then its application."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from lineage.purge.exports import CleanedExports, OutOfReach
from lineage.storage.folder import Folder
from lineage.store.lookup import Lookup
from pipeline.inspect.purge_targets import PurgeTargets, UnknownName
from pipeline.inspect.purging import PurgeAccount, carried_out, named_targets, planned
from pipeline.inspect.trace.tracing import ExposedRun
from sluice.history import DocId, id_of
from sluice.messages import in_python
from sluice.shown import shown_table

_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgedDocument:
    """A document of a purge: a target, a suppressed twin of one, or the kept copy of a suppressed target. Its shard
    is one of `source`, or of `source.bucket` where the source is parted."""

    doc_id: str
    role: str
    status: str
    source: str
    url: str | None
    bucket: str | None
    shard: int | None
    start: int | None
    num_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Purge:
    """What a purge takes or took: different documents, in order of id, and their tokens. `unknown` are listed names
    that the output has not got. `exposures` are what training runs read of the documents, one for each run,
    with the fields of `sluice purge --json`; `exposures_unread` says, by run, why the steps since its last
    checkpoint are not known: its output cannot be read."""

    out: str
    documents: tuple[PurgedDocument, ...]
    num_documents: int
    num_tokens: int
    unknown: tuple[UnknownName, ...]
    exposures: tuple[ExposedRun, ...]
    exposures_unread: Mapping[str, str]

    def _shown(self, what: str, note: str) -> str:
        rows = [(each.doc_id, each.role, each.status, each.url, each.num_tokens) for each in self.documents]
        more = f"The first {_SHOWN} rows of {len(rows):,}. " if len(rows) > _SHOWN else ""
        caption = f"{what} {self.out}: {self.num_documents:,} documents, {self.num_tokens:,} tokens"
        unread = "".join(
            f"What run {run} read since its last checkpoint is unknown: {why}. "
            for run, why in self.exposures_unread.items()
        )
        columns = ("doc_id", "role", "status", "url", "tokens")
        return shown_table(caption, columns, rows[:_SHOWN], more + unread + note)


_AnyPurge = TypeVar("_AnyPurge", bound=_Purge)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPurge(_Purge):
    """A plan, which has changed nothing. `exports` are the recorded copies that would be cleaned too."""

    targets: PurgeTargets
    exports: tuple[str, ...]

    @in_python
    def apply(self, *, reason: str, by: str, forget_exports: Sequence[str] = ()) -> AppliedPurge:
        """Carry it out, of the output as it is now; `reason` and `by` stay in the audit row. Killed at any point, the
        same calls finish it. HeldError where another process is at the output, PurgeError where bytes would stay."""
        for name, value in (("reason", reason), ("by", by)):
            if not value.strip():
                raise ValueError(f"{name} is empty: expected a text, which is kept with the purge")
        account = carried_out(
            Folder(self.out), self.targets, by=by, reason=reason, forget_exports=forget_exports
        )
        applied = account.applied
        assert applied is not None
        return _of_account(
            AppliedPurge,
            account,
            purge_id=applied.purge_id,
            finished=applied.finished,
            cleaned=applied.exports.cleaned,
            out_of_reach=applied.exports.out_of_reach,
        )

    def _repr_html_(self) -> str:
        return self._shown(
            "Plan of a purge of", "Nothing is changed yet: .apply(reason=…, by=…) carries it out."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedPurge(_Purge):
    """A purge that was carried out. `purge_id` is None where all was purged already; `finished` names one that an
    earlier call had begun. Exports were `cleaned`, or are `out_of_reach` and may still hold purged text."""

    purge_id: str | None
    finished: str | None
    cleaned: tuple[str, ...]
    out_of_reach: tuple[OutOfReach, ...]

    def _repr_html_(self) -> str:
        missed = ", ".join(f"{each.name} at {each.place}" for each in self.out_of_reach)
        note = f"Out of reach, and may hold purged text: {missed}. " if missed else ""
        return self._shown(f"Purge {self.purge_id} of", note + "sluice.verify proves it.")


@in_python
def purge(
    out: str,
    *,
    docs: DocId | Sequence[DocId] | None = None,
    urls: str | Sequence[str] | None = None,
    hosts: str | Sequence[str] | None = None,
    domains: str | Sequence[str] | None = None,
    listed: str | None = None,
    where: str | None = None,
    source: str | None = None,
    warc: str | None = None,
    parsed_texts: bool = False,
    promote_duplicates: bool = False,
) -> PlannedPurge:
    """The plan of a purge, as `sluice purge` shows it; `apply` carries it out. The documents are named in one way:
    by ids, URLs, hosts or domains, one or several; by a file that lists ids or URLs or that `scan` wrote (`listed`), a
    SQL condition, a source or an input file; `parsed_texts` takes all texts kept after parse, and no document.

    RecipeError where the call is wrong, UnknownError or PurgeError where the output has none of them."""
    folder = Folder(out)
    targets = named_targets(
        folder,
        docs=None if docs is None else list(map(id_of, [docs] if isinstance(docs, str | bytes) else docs)),
        urls=[urls] if isinstance(urls, str) else urls,
        hosts=[hosts] if isinstance(hosts, str) else hosts,
        domains=[domains] if isinstance(domains, str) else domains,
        listed=listed,
        where=where,
        source=source,
        warc=warc,
        parsed_texts=parsed_texts,
        promote_duplicates=promote_duplicates,
    )
    account = planned(folder, targets)
    exports = account.exports
    to_clean = () if isinstance(exports, CleanedExports) else tuple(row.name for row in exports.to_clean)
    return _of_account(PlannedPurge, account, targets=targets, exports=to_clean)


def _of_account(kind: type[_AnyPurge], account: PurgeAccount, **own: Any) -> _AnyPurge:
    rows = account.plan.rows
    urls = {
        row.doc_id: row.url for row in Lookup(account.out).documents(sorted({row.doc_id for row in rows}))
    }
    documents = (
        PurgedDocument(
            doc_id=row.doc_id.hex(),
            role=row.role,
            status=row.status,
            source=row.source,
            url=urls[row.doc_id],
            bucket=row.bucket,
            shard=row.shard,
            start=row.start,
            num_tokens=row.num_tokens,
        )
        for row in rows
    )
    return kind(
        out=account.out.url,
        documents=tuple(documents),
        num_documents=account.plan.num_documents,
        num_tokens=account.plan.num_tokens,
        unknown=account.unknown,
        exposures=account.training.exposures,
        exposures_unread=account.training.unread,
        **own,
    )
