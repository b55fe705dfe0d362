"""`sluice rights`: which kept documents their publishers deny now, and did not when they were fetched."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lineage.index.output_index import read_index
from lineage.pages import page_of
from lineage.purge.plan import PurgeMatch
from lineage.recipe import RecipeError, errors_about
from lineage.secrets import without_secrets
from lineage.storage.folder import Folder, split
from lineage.store.column_names import RIGHTS, SIGNALS, TRAINING_USE
from lineage.store.delta import arrow_dataset, read_table
from pipeline.inspect.purge_targets import PurgeTargets
from pipeline.inspect.purging import PurgeAccount, planned
from pipeline.recipe.load import recipe_of
from stages.rights.decide import from_text, training_use
from stages.rights.signal import KINDS, Signal
from stages.rights.sites import Sites, gathered_sites, site_files, site_of

_OF_SITES: Final = ("robots.txt", "tdmrep.json")
_COLUMNS: Final = ("doc_id", "url", "host", "num_tokens", "status")
_ENDING: Final = ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeniedDocument:
    """A kept document that is denied now and was not: by which kind of signal, and its text."""

    doc_id: str
    out: str
    url: str
    host: str
    signal: str
    value: str
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeniedHost:
    """What one kind of signal denies of a host."""

    out: str
    host: str
    signal: str
    value: str
    num_documents: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RightsChange:
    """What later site files deny of an output. `num_kept`: kept documents that no purge took, of which the files
    have the site of `num_compared`; `num_denied_before`: of these, denied already when they were fetched.
    `purge`: what a purge of the documents takes with their copies, and who read it; None where there are none."""

    out: str
    num_kept: int
    num_compared: int
    num_denied_before: int
    documents: tuple[DeniedDocument, ...]
    purge: PurgeAccount | None

    @property
    def hosts(self) -> tuple[DeniedHost, ...]:
        """The documents by host and signal, those with the most tokens first."""
        documents, tokens = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        values: dict[tuple[str, str], str] = {}
        for each in self.documents:
            key = each.host, each.signal
            documents[key] += 1
            tokens[key] += each.num_tokens
            values[key] = min(values.get(key, each.value), each.value)
        order = sorted(documents, key=lambda key: (-tokens[key], key))
        return tuple(
            DeniedHost(
                out=self.out,
                host=host,
                signal=signal,
                value=values[host, signal],
                num_documents=documents[host, signal],
                num_tokens=tokens[host, signal],
            )
            for host, signal in order
        )

    def as_json(self, *, forget: bool) -> dict[str, object]:
        """As `sluice rights --json` gives it; with `forget` the price of each replay too."""
        training = None if self.purge is None else self.purge.training
        return {
            "out": self.out,
            "num_kept": self.num_kept,
            "num_compared": self.num_compared,
            "num_denied_before": self.num_denied_before,
            "num_documents": len(self.documents),
            "num_tokens": sum(each.num_tokens for each in self.documents),
            "hosts": [asdict(each) for each in self.hosts],
            "purge": None
            if self.purge is None
            else {"num_documents": self.purge.plan.num_documents, "num_tokens": self.purge.plan.num_tokens},
            "exposures": [
                {name: value for name, value in asdict(each).items() if forget or name not in _OF_REPLAY}
                for each in (() if training is None else training.exposures)
            ],
            "exposures_unread": {} if training is None else dict(training.unread),
        }


_OF_REPLAY: Final = frozenset({"replay", "replay_unknown", "replay_call", "recipe_unknown"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RightsChanges:
    """`sluice rights` of several outputs: what the files held, and what they deny."""

    num_files: int
    num_responses: int
    num_unreadable: int
    num_sites: int
    outs: tuple[RightsChange, ...]

    @property
    def documents(self) -> tuple[DeniedDocument, ...]:
        """The documents of all outputs."""
        return tuple(each for out in self.outs for each in out.documents)

    def as_json(self, *, forget: bool) -> dict[str, object]:
        """As `sluice rights --json` gives it."""
        return {
            "robots": {
                "num_files": self.num_files,
                "num_responses": self.num_responses,
                "num_unreadable": self.num_unreadable,
                "num_sites": self.num_sites,
            },
            "num_documents": len(self.documents),
            "num_tokens": sum(each.num_tokens for each in self.documents),
            "outs": [out.as_json(forget=forget) for out in self.outs],
        }


def rights_changes(
    outs: Sequence[str],
    robots: Sequence[str],
    *,
    agents: Sequence[str] = (),
    signals: Sequence[str] = (),
    done: Callable[[int, int], None] = lambda num, of: None,
) -> RightsChanges:
    """What these site files deny of the outputs' kept documents that was not denied when they were fetched.

    `agents` and `signals` are by default those of each output's recipe (rights.agents, rights.record). A signal of
    the page's own response (headers, HTML) holds on; one of its site is replaced where the files have the site.
    `done` is told how many of the files are read. RecipeError where an output records no host, or a file has no
    response for robots.txt or tdmrep.json."""
    folders = [Folder(out) for out in dict.fromkeys(outs)]
    for folder in folders:
        read_index(folder)
    with errors_about("--robots"):
        files = site_files(robots)
    wanted = {folder.url: _asked(folder, agents, signals) for folder in folders}
    read: dict[tuple[str, ...], Sites] = {}
    for tokens, _ in wanted.values():
        if tokens not in read:
            with errors_about("--robots"):
                read[tokens] = gathered_sites(files, tokens, lambda num: done(num, len(files)))
    changes = [_change(folder, read[wanted[folder.url][0]], *wanted[folder.url]) for folder in folders]
    sites = next(iter(read.values()))
    return RightsChanges(
        num_files=len(files),
        num_responses=sites.num_responses,
        num_unreadable=sites.num_unreadable,
        num_sites=len(sites.hosts),
        outs=tuple(changes),
    )


def _asked(
    out: Folder, agents: Sequence[str], signals: Sequence[str]
) -> tuple[tuple[str, ...], frozenset[str]]:
    table = recipe_of(out).rights
    kinds = frozenset(signals or table.record or KINDS)
    return tuple(agents or table.agents), kinds


def _change(out: Folder, sites: Sites, agents: Sequence[str], kinds: frozenset[str]) -> RightsChange:
    counts = Counter[str]()
    documents = tuple(
        sorted(
            _denied(out, sites, agents, kinds, counts), key=lambda each: (each.host, each.url, each.doc_id)
        )
    )
    if not counts["with host"]:
        raise RecipeError(
            f"{out.url} has {counts['kept']:,} kept documents and none with a host: robots.txt is looked up by host,"
            " which comes from the URL (source.url_field for JSONL and Parquet)"
        )
    purge = None
    if documents:
        match = PurgeMatch(
            kind="doc", values=tuple(each.doc_id for each in documents), named_by="sluice rights"
        )
        purge = planned(out, PurgeTargets(match=match))
    return RightsChange(
        out=out.url,
        num_kept=counts["kept"],
        num_compared=counts["compared"],
        num_denied_before=counts["denied before"],
        documents=documents,
        purge=purge,
    )


def _denied(
    out: Folder, sites: Sites, agents: Sequence[str], kinds: frozenset[str], counts: Counter[str]
) -> Iterator[DeniedDocument]:
    dataset = arrow_dataset(out, "documents")
    recorded = [name for name in RIGHTS if name in dataset.schema.names]
    purged = pa.array(read_table(out, "purged")["doc_id"].unique(), pa.binary())
    for batch in dataset.to_batches(columns=[*_COLUMNS, *recorded], filter=pc.field("status") == "kept"):
        left = batch.filter(pc.invert(pc.is_in(batch["doc_id"], purged)))
        counts["kept"] += left.num_rows
        with_host = left.filter(pc.is_valid(left["host"]))
        counts["with host"] += with_host.num_rows
        for row in with_host.to_pylist():
            page = page_of(row["url"])
            if page is None or site_of(page) not in sites.hosts:
                continue
            counts["compared"] += 1
            if row.get(TRAINING_USE) == "denied":
                counts["denied before"] += 1
                continue
            own = [signal for signal in from_text(row.get(SIGNALS)) if signal.where not in _OF_SITES]
            now = [signal for signal in (*own, *sites.signals(page, agents)) if signal.kind in kinds]
            found = training_use(now)
            if found.use == "denied" and found.by is not None:
                yield DeniedDocument(
                    doc_id=row["doc_id"].hex(),
                    out=out.url,
                    url=row["url"],
                    host=row["host"],
                    signal=found.by,
                    value=_value_of(found.by, now),
                    num_tokens=row["num_tokens"] or 0,
                )


def _value_of(kind: str, signals: Sequence[Signal]) -> str:
    return next(signal.value for signal in signals if signal.kind == kind and signal.meaning == "denied")


def publish_plan(changes: RightsChanges, to: str) -> None:
    """Write the list that `sluice purge --from` takes: a JSON list with an object for each document."""
    folder, name = split(to)
    lines = (json.dumps(asdict(each), ensure_ascii=False) for each in changes.documents)
    folder.publish(name, ("[" + ",\n".join(lines) + "]\n").encode("utf-8", "replace"))


def check_plan_name(to: str) -> None:
    """RecipeError unless a plan can be called so."""
    if not to.endswith(_ENDING):
        raise RecipeError(f"--to {without_secrets(to)!r}: expected a name that ends in {_ENDING}")
