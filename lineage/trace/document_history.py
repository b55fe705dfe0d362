"""A document's history as `trace` gives it, and its JSON form, which is a contract with its readers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from lineage.json_record import Json, finite
from lineage.store.rows import DocumentRow
from lineage.trace.exposure import Exposure


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDecision:
    """What one stage decided: "keep", "edit" (rule: the kind of change, value: how many), "reject" or
    "duplicate". `matched`: as in DocumentRow."""

    stage: str
    verdict: str
    rule: str | None = None
    value: float | None = None
    threshold: float | None = None
    matched: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateCluster:
    """The component of duplicates that a document belongs to; members by id, itself included."""

    id: bytes
    duplicate_of: bytes | None
    similarity: float | None
    members: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeOfDocument:
    """How a document was purged; the last three are null while that purge is unfinished."""

    purge_id: str
    role: str
    at: str | None
    by: str | None
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentHistory:
    """All that is known of one document. An epoch of training reads it `repeats` times, where a shard holds
    it; `why_repeated` says why that is not once."""

    row: DocumentRow
    decisions: tuple[StageDecision, ...]
    cluster: DuplicateCluster | None
    exposures: tuple[Exposure, ...]
    purged: PurgeOfDocument | None
    repeats: int = 1
    why_repeated: str | None = None

    @property
    def doc_id(self) -> bytes:
        """The document's id."""
        return self.row.doc_id

    def as_json(self, limit: int | None = None) -> dict[str, Json]:
        """The history as `trace --json` prints it. `limit` cuts every list: decisions, cluster members,
        placements and exposures; for a list that was cut, `<name>_cut` gives its count, its first and its
        last entry."""
        row = self.row
        fields: dict[str, Json] = {
            "doc_id": row.doc_id.hex(),
            "url": row.url,
            "warc": {
                "file": row.warc_file,
                "offset": row.warc_offset,
                "length": row.warc_length,
                "record_id": row.record_id,
            },
            "hashes": {
                "raw": _hex(row.raw_hash),
                "text": _hex(row.text_hash),
                "clean": _hex(row.clean_hash),
                "tokens": _hex(row.tokens_hash),
            },
            "status": row.status,
        }
        _put_cut(fields, "decisions", [_decision(decision) for decision in self.decisions], limit)
        fields["cluster"] = self._cluster(limit)
        _put_cut(fields, "placements", self._placements(), limit)
        _put_cut(fields, "exposures", [asdict(exposure) for exposure in self.exposures], limit)
        fields["purged"] = None if self.purged is None else asdict(self.purged)
        return fields

    def _cluster(self, limit: int | None) -> Json:
        """A document that nothing repeats is a cluster of its own; a rejected one was compared with none."""
        alone = () if self.row.status == "rejected" else (self.doc_id,)
        found = self.cluster or DuplicateCluster(
            id=self.doc_id, duplicate_of=self.row.duplicate_of, similarity=self.row.similarity, members=alone
        )
        fields: dict[str, Json] = {
            "id": found.id.hex() if found.members else None,
            "size": len(found.members),
            "duplicate_of": _hex(found.duplicate_of),
            "similarity": finite(found.similarity),
        }
        _put_cut(fields, "members", [member.hex() for member in found.members], limit)
        return fields

    def _placements(self) -> list[Json]:
        row = self.row
        if row.shard is None:
            return []
        place: dict[str, Json] = {
            "source": row.shard_source,
            "shard": row.shard,
            "start": row.start,
            "num_tokens": row.num_tokens,
        }
        if self.repeats != 1:
            place |= {"repeats": self.repeats, "why_repeated": self.why_repeated}
        return [place]


def documents_json(
    histories: Sequence[DocumentHistory],
    limit: int | None = None,
    num: int | None = None,
    last: DocumentHistory | None = None,
) -> dict[str, Json]:
    """`{"documents": […]}`: the answer in every direction but by id. `num` and `last`: how many there are and
    the last of them, where `histories` are only the first, one at least."""
    fields: dict[str, Json] = {}
    _put_cut(fields, "documents", [history.as_json(limit) for history in histories], limit)
    if num is not None and num > len(histories):
        fields["documents_cut"] = {
            "count": num,
            "first": histories[0].as_json(limit),
            "last": None if last is None else last.as_json(limit),
        }
    return fields


def _put_cut(fields: dict[str, Json], name: str, items: Sequence[Json], limit: int | None) -> None:
    shown = items if limit is None else items[:limit]
    fields[name] = list(shown)
    if len(items) > len(shown):
        fields[f"{name}_cut"] = {"count": len(items), "first": items[0], "last": items[-1]}


def _decision(decision: StageDecision) -> Json:
    matched: dict[str, Json] = {} if decision.matched is None else {"matched": decision.matched}
    return {
        "stage": decision.stage,
        "rule": decision.rule,
        "value": finite(decision.value),
        "threshold": finite(decision.threshold),
        "verdict": decision.verdict,
        **matched,
    }


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()
