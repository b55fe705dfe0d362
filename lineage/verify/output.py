"""`verify`: recompute every checksum and balance of an OUT, and list what does not hold.

1. files              seals, index.json, checksums.json, every hash, nothing missing, nothing extra
2. shards             blocks, tiling, tokens of each document, purged spans, placements
3. documents          texts, places, dedup state, uniqueness, the tables that index them
4. duplicates         each has its edge to a kept document
5. steps              in = out + rejected, as counts and digests, from the inputs to what is kept
6. repeats            how often an epoch reads each shard, from the recipe's [repeat], clusters and scores
7. here               purges, training facts, report: whole, once, and leading to the index as it is; what was purged
                      is not back
8. exports            each copy in another format: its files, and that it is of this version of the corpus
9. retokenize         where it is asked for: each text gives the tokens of its shard, and they give the text

Parts 3 to 7 and 9 compare facts with one another, so they are left out where part 1 finds the facts damaged.
Everything streams by shard and by bucket: memory is that of about a million rows, whatever the size of the
OUT."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Final

import pyarrow.parquet as pq

from lineage.ids import content_hash
from lineage.index.checksums import CHECKSUMS_FILE, DamagedFileError
from lineage.index.names import EXCERPTS_FILE, RECIPE_FILE, REPORT_FILE, RUN_FILE
from lineage.index.output_index import INDEX_FILE, Index, read_index
from lineage.index.parsed_texts import TEXTS_FILE
from lineage.purge.returned import find_returned, finished_purges, strays
from lineage.storage.folder import Folder
from lineage.store.delta import read_table, state
from lineage.store.purged_spans import PurgedSpans, read_purged
from lineage.store.shuffle import Shuffle
from lineage.store.tables import APPENDED
from lineage.store.write import num_ranges
from lineage.verify.documents import (
    Facts,
    check_documents,
    check_indexes,
    shuffle_documents,
    shuffle_others,
    shuffle_parts,
)
from lineage.verify.duplicates import check_edges, check_similarities
from lineage.verify.exports import check_exports
from lineage.verify.files import check_files
from lineage.verify.parsed_texts import check_parsed_texts
from lineage.verify.problems import Problem, Verification, VerifyHooks, guarded
from lineage.verify.retokenize import Retokenize, RetokenizeCounts, check_retokenized
from lineage.verify.shards import check_shards
from lineage.verify.steps import check_steps

MOST_PROBLEMS: Final = 1000
_FACTS: Final = ("lineage/", "documents/", "texts/", "dedup/", EXCERPTS_FILE, "checksums.json")
"""Where facts lie: if one of these files is damaged, comparing what is left would only make noise."""


def verify(
    out: Folder, hooks: VerifyHooks, most: int = MOST_PROBLEMS, retokenize: Retokenize | None = None
) -> Verification:
    """Everything that does not hold in the finished OUT, the first `most` of it, and whether there is more;
    with `retokenize` the texts are compared with the tokens too.

    NotFinishedError if there is no index. Damage is never an exception: it is a problem that names the
    file. Where something does not hold and the OUT was written to meanwhile, a note says so."""
    written = _written(out)
    try:
        index = read_index(out)
    except DamagedFileError as error:
        return Verification(
            problems=(Problem("index.damaged", INDEX_FILE, str(error)),),
            notes=(),
            num_files=0,
            num_documents=0,
            num_tokens=0,
        )
    facts, retokenized = Facts(), RetokenizeCounts()
    checks = _problems(out, index, facts, hooks)
    if retokenize is not None:
        checks = chain(checks, _check_retokenized(out, index, facts, retokenize, retokenized))
    problems = tuple(islice(checks, most + 1))
    facts.notes += retokenized.notes()
    if problems and _written(out) != written:
        facts.notes.append(
            Problem("output.changed", out.url, "it was written to while it was read: verify again")
        )
    return Verification(
        problems=problems[:most],
        notes=tuple(sorted(facts.notes, key=lambda note: note.where)),
        has_more=len(problems) > most,
        num_files=len(out.names()),
        num_documents=sum(total.num for total in facts.tally.by_source.values()),
        num_tokens=index.num_tokens - facts.num_tokens_purged,
        num_retokenized=retokenized.num,
    )


def _written(out: Folder) -> list[bytes | None]:
    """Hashes of what each run, purge and commit of facts writes last."""
    return [
        content_hash(out.read(name)) if out.exists(name) else None for name in (INDEX_FILE, CHECKSUMS_FILE)
    ]


def _problems(out: Folder, index: Index, facts: Facts, hooks: VerifyHooks) -> Iterator[Problem]:
    damaged = set()
    for problem in check_files(out, index):
        damaged.add(problem.where)
        yield problem
    facts_are_whole = not any(where.startswith(_FACTS) for where in damaged)
    purged = read_purged(out) if facts_are_whole else PurgedSpans()
    facts.num_tokens_purged = purged.num_tokens
    yield from check_shards(out, index, purged if facts_are_whole else None, damaged)
    suspects = [] if TEXTS_FILE in damaged else strays(out, index)
    suspects += [] if facts_are_whole else [*index.files(), EXCERPTS_FILE]
    yield from guarded("purged.unreadable", "lineage/purged", _check_returned(out, index, suspects))
    if not any(where.startswith("lineage/exports") for where in damaged):
        yield from guarded("exports.unreadable", "lineage/exports", check_exports(out, index, facts.notes))
    if REPORT_FILE not in damaged:
        yield from guarded("report.unreadable", REPORT_FILE, _check_report(out, index, hooks))
    if not facts_are_whole:
        facts.notes.append(
            Problem("facts.skipped", "lineage/", "not compared with one another: damaged files, see above")
        )
        return
    yield from guarded("excerpts.unreadable", EXCERPTS_FILE, _check_excerpts(out, facts, purged))
    yield from _check_documents(out, index, facts, purged, hooks)
    yield from guarded("steps.unreadable", "lineage/steps", check_steps(out, facts.tally))
    if not {INDEX_FILE, RECIPE_FILE, RUN_FILE} & damaged:
        yield from guarded("repeats.unreadable", INDEX_FILE, hooks.wrong_repeats(out, index))
    yield from guarded("purges.unreadable", "lineage/purges", _check_purges(out, index))
    for table in APPENDED:
        yield from guarded("table.unreadable", f"lineage/{table}", _check_once(out, table))


def _check_documents(
    out: Folder, index: Index, facts: Facts, purged: PurgedSpans, hooks: VerifyHooks
) -> Iterator[Problem]:
    with Shuffle(num_ranges(state(out, "documents").num_rows)) as shuffle:
        documents = "lineage/documents"
        yield from guarded("table.unreadable", documents, shuffle_documents(out, shuffle, facts, purged))
        yield from shuffle_parts(out, index, shuffle)
        yield from shuffle_others(out, index, shuffle)
        yield from check_documents(shuffle, facts, purged, has_tokens=index.has_tokens)
        yield from check_indexes(shuffle)
        yield from guarded(
            "duplicates.unreadable", documents, check_edges(out, shuffle, index, purged, hooks)
        )
        yield from check_similarities(out, index, shuffle, hooks)
        yield from guarded("texts.unreadable", TEXTS_FILE, check_parsed_texts(out, shuffle, purged))


def _check_retokenized(
    out: Folder, index: Index, facts: Facts, retokenize: Retokenize, found: RetokenizeCounts
) -> Iterator[Problem]:
    """Part 9, unless the facts are damaged: then there is nothing sure to compare texts with."""
    if not any(note.check == "facts.skipped" for note in facts.notes):
        yield from check_retokenized(out, index, read_purged(out), retokenize, found)


def _check_returned(out: Folder, index: Index, files: Sequence[str]) -> Iterator[Problem]:
    """What `files` hold of documents that were purged: a backup may have brought them back."""
    purged = finished_purges(out) if files else PurgedSpans()
    found: dict[bytes, list[str]] = {}
    for entry in find_returned(out, index.tokenizer.eot_id, purged, files):
        found.setdefault(entry.doc_id, []).append(entry.file)
    for doc_id, holding in sorted(found.items()):
        yield Problem(
            "purged.returned",
            f"document {doc_id.hex()}",
            f"was purged and is there again, in {', '.join(dict.fromkeys(holding))}; purge it again with"
            f" sluice purge {shlex.quote(out.url)} --doc {doc_id.hex()} --reason … --by … --apply",
        )


def _check_report(out: Folder, index: Index, hooks: VerifyHooks) -> Iterator[Problem]:
    message = hooks.stale_report(out, index)
    if message is not None:
        yield Problem("report.stale", REPORT_FILE, message)


def _check_excerpts(out: Folder, facts: Facts, purged: PurgedSpans) -> Iterator[Problem]:
    with out.open(EXCERPTS_FILE) as file:
        facts.excerpts = set(pq.read_table(file, columns=["doc_id"])["doc_id"].to_pylist())
    for doc_id in sorted(facts.excerpts & purged.doc_ids):
        yield Problem(
            "purged.excerpt", f"document {doc_id.hex()}", f"was purged and is still in {EXCERPTS_FILE}"
        )


def _check_purges(out: Folder, index: Index) -> Iterator[Problem]:
    """Each purge is whole, and the last of them left the index as it is."""
    purges, purged = read_table(out, "purges").to_pylist(), read_table(out, "purged").to_pylist()
    where = "lineage/purges"
    for purge_id in sorted({row["purge_id"] for row in purged} - {row["purge_id"] for row in purges}):
        yield Problem(
            "purges.unfinished", where, f"purge {purge_id} did not end; call the same command again"
        )
    for row in purges:
        of_purge = [entry for entry in purged if entry["purge_id"] == row["purge_id"]]
        found = (
            len({entry["doc_id"] for entry in of_purge}),
            sum(entry["num_tokens"] or 0 for entry in of_purge),
        )
        if found != (row["num_documents"], row["num_tokens"]):
            yield Problem(
                "purges.rows",
                where,
                f"purge {row['purge_id']} took {row['num_documents']} documents with "
                f"{row['num_tokens']} tokens, `purged` has {found[0]} with {found[1]}",
            )
    for purge_id, number in Counter(row["purge_id"] for row in purges).items():
        if number > 1:
            yield Problem("purges.repeated", where, f"{number} rows for purge {purge_id}")
    if index.version != 1 + len(purges):
        yield Problem("purges.version", INDEX_FILE, f"version {index.version} after {len(purges)} purges")
    pairs = [(row["content_fingerprint_before"], row["content_fingerprint_after"]) for row in purges]
    if purges and not _leads_to(pairs, index.content_fingerprint):
        yield Problem("purges.fingerprint", INDEX_FILE, "its content_fingerprint is not what the purges left")


def _leads_to(pairs: Sequence[tuple[str, str]], now: str) -> bool:
    """Whether purges, as (content before, content after), left the content `now`.

    What a purge left, another began from or is there now. Unless a backup undid it: then a later purge began
    once more from a content that one of them had begun from before."""
    after = {left for _, left in pairs}
    known_from = {left: {began for began, other in pairs if other == left} for left in after}
    begun = Counter(began for began, _ in pairs)

    def undone(left: str) -> bool:
        behind, seen = [left], {left}
        while behind:
            for began in known_from.get(behind.pop(), set()) - seen:
                if begun[began] > 1:
                    return True
                seen.add(began)
                behind.append(began)
        return False

    return now in after and all(left == now or left in begun or undone(left) for left in after)


def _check_once(out: Folder, table: str) -> Iterator[Problem]:
    rows = read_table(out, table)
    counted = Counter(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    for row, number in counted.items():
        if number > 1:
            yield Problem("table.repeated", f"lineage/{table}", f"{number} equal rows: {row}")
