"""Remove documents from an output, and prove it.

  sluice purge OUT --doc ID --reason "takedown" --by you              show the plan, change nothing
  sluice purge OUT --host example.org --reason "…" --by you --apply   carry it out
  sluice purge OUT --domain example.org --reason "…" --by you         all hosts of a domain, as in block lists
  sluice purge OUT --from scan.json --reason "leaked benchmark" --by you --apply
  sluice purge OUT --from takedown.csv --reason "takedown" --by you         ids or URLs: .txt, .csv, .parquet
  sluice purge OUT --where "source = 'web' AND language = 'en'" --reason "takedown" --by you
  sluice purge OUT --source SOURCE --reason "licence ended" --by you        a whole source; --warc: an input file
  sluice purge OUT --parsed-texts --reason "tuning is over" --by you --apply  all texts kept after parse; no document
  sluice purge OUT --forget-export NAME --reason "handed over" --by you --apply

A purge removes each named document with its suppressed duplicates by text (twins). If the named document was
itself suppressed, the kept copy goes too. No duplicate replaces it (docs/purging.md explains this). With
--promote-duplicates only the named copies go, and the next run may keep a duplicate of each.

Tokens become end-of-text ids, so lengths and the training order stay; clean texts become null; old files are
deleted; the report is rendered again; an audit row stays. Every export of OUT (sluice export) is cleaned too.
An export that cannot be reached is named, and the exit code is 1 until a later call reaches it or
--forget-export declares it out of your hands. After a kill or a full disk the same call finishes the purge.
Purged documents that a backup restores are removed again by the next purge."""

from __future__ import annotations

import argparse
import csv
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from rich.filesize import decimal

from lineage.index.output_index import read_index
from lineage.pages import named_host
from lineage.purge.execution import PurgeResult, clean_only, unfinished_purge
from lineage.purge.exports import CleanedExports, PlannedExports
from lineage.purge.plan import PlannedRow, PurgePlan
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.store.lookup import Lookup
from pipeline.cli.arguments import add_json, doc_id, words
from pipeline.cli.printing import print_json
from pipeline.terminal import counted, visible, without_formula

if TYPE_CHECKING:
    from pipeline.inspect.purge_targets import PurgeTargets, UnknownName
    from pipeline.inspect.purging import PurgeAccount
    from pipeline.inspect.trace.tracing import ExposedRun, TrainingAccount, UndoneReadings
    from trainer.recovery.price import ReplayPrice

_MOST_PAGES: Final = 20
"""Documents of a plan, as the terminal lists them; --csv has all."""
_LOOKED_UP: Final = 10_000
_MOST_UNKNOWN: Final = 20
"""Names of a list that OUT has not got, as the terminal shows them."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="OUT", help="a finished run's output: a folder or an s3:// URL")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--doc", nargs="+", metavar="ID", help="document ids: 32 hex digits each")
    way.add_argument("--url", nargs="+", metavar="URL", help="all documents of these URLs, in any spelling")
    way.add_argument("--host", nargs="+", metavar="HOST", help="all documents of exactly these hosts")
    way.add_argument(
        "--domain",
        nargs="+",
        metavar="DOMAIN",
        help="all documents of these domains and their subdomains (--domain example.org covers example.org,"
        " www.example.org, a.b.example.org)",
    )
    way.add_argument(
        "--from",
        dest="scan",
        metavar="FILE",
        help="the result of `sluice scan` (.json), or a list of ids or URLs: .txt, or .csv, .tsv, .jsonl, .json"
        " or .parquet with a column doc_id or url (url counts if the id is absent); entries that OUT does not"
        " hold are reported with the nearest match and skipped",
    )
    way.add_argument("--where", metavar="SQL", help="a condition over the view documents of `sluice lineage`")
    way.add_argument("--source", metavar="NAME", help="all documents of a source")
    way.add_argument(
        "--warc",
        metavar="FILE",
        help="all documents of an input file: its path or URL, or its name in the column warc_file if only one"
        " input has that name",
    )
    way.add_argument(
        "--parsed-texts",
        action="store_true",
        help="all texts kept by run.keep_text; documents, tokens and clean texts stay",
    )
    parser.add_argument(
        "--reason", type=words, required=True, metavar="TEXT", help="the reason, recorded in the audit row"
    )
    parser.add_argument(
        "--by", type=words, required=True, metavar="NAME", help="the requester, recorded in the audit row"
    )
    parser.add_argument(
        "--forget-export",
        nargs="+",
        default=[],
        metavar="NAME",
        help="exports to leave alone and stop tracking",
    )
    parser.add_argument(
        "--promote-duplicates",
        action="store_true",
        help="remove only these copies: their suppressed duplicates stay, and the next run that applies this"
        " purge may keep one of them (default: the text goes with all its copies, and stays out)",
    )
    documents = parser.add_mutually_exclusive_group()
    documents.add_argument(
        "--csv",
        metavar="FILE",
        help="write all documents of the plan to this file: id, role, status, URL, place, tokens",
    )
    documents.add_argument(
        "--csv-safe",
        metavar="FILE",
        help="the same for a spreadsheet, with an apostrophe before each text that looks like a formula",
    )
    parser.add_argument(
        "--apply", action="store_true", help="carry out the purge (default: only show the plan)"
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from pipeline.inspect.purging import carried_out, planned

    out = Folder(options.out)
    read_index(out)
    ways = ("doc", "url", "host", "domain", "scan", "where", "source", "warc")
    if all(getattr(options, way) is None for way in ways) and not options.parsed_texts:
        return _only_exports(out, options)
    targets = _targets(out, options)
    if targets.unknown:
        _print_unknown(options, targets.unknown)
    if not options.apply:
        _print_result(options, planned(out, targets, options.forget_export))
        return 0
    account = carried_out(
        out, targets, by=options.by, reason=options.reason, forget_exports=options.forget_export
    )
    _print_result(options, account)
    return 1 if isinstance(account.exports, CleanedExports) and account.exports.out_of_reach else 0


def _only_exports(out: Folder, options: argparse.Namespace) -> int:
    """Without documents: what `--forget-export` says of copies, and cleaning those that are left to clean."""
    from pipeline.inspect.hooks import apply_hooks
    from pipeline.inspect.purging import exports_json, planned_exports

    if not options.forget_export:
        raise RecipeError(
            "expected one of --doc, --url, --host, --domain, --from, --where, --source, --warc,"
            " --parsed-texts, --forget-export"
        )
    if not options.apply:
        planned = planned_exports(out, options.forget_export, None)
        if options.json:
            print_json({"applied": False, "exports": exports_json(out, planned)})
        else:
            _print_unfinished(options, None)
            _print_exports(planned)
            print("\nThis is the plan. To carry it out, add --apply.")
        return 0
    exports = clean_only(out, options.forget_export, apply_hooks(), wait_seconds=30)
    if options.json:
        print_json({"applied": True, "exports": exports_json(out, exports)})
    else:
        _print_exports(exports)
    return 1 if exports.out_of_reach else 0


def _targets(out: Folder, options: argparse.Namespace) -> PurgeTargets:
    from pipeline.inspect.purging import named_targets

    return named_targets(
        out,
        docs=None if options.doc is None else [doc_id(text) for text in options.doc],
        urls=options.url,
        hosts=options.host,
        domains=options.domain,
        listed=options.scan,
        where=options.where,
        source=options.source,
        warc=options.warc,
        parsed_texts=options.parsed_texts,
        promote_duplicates=options.promote_duplicates,
    )


def _print_unknown(options: argparse.Namespace, unknown: Sequence[UnknownName]) -> None:
    listed, out = visible(options.scan), visible(options.out)
    are = "is" if len(unknown) == 1 else "are"
    print(f"{len(unknown):,} of those that {listed} lists {are} not in {out}:", file=sys.stderr)
    for one in unknown[:_MOST_UNKNOWN]:
        near = f"; nearest: {', '.join(one.nearest)}" if one.nearest else ""
        print(visible(f"  {one.name}{near}"), file=sys.stderr)
    if len(unknown) > _MOST_UNKNOWN:
        print(f"  and {len(unknown) - _MOST_UNKNOWN:,} more", file=sys.stderr)


def _print_result(options: argparse.Namespace, account: PurgeAccount) -> None:
    out, plan, applied, exports = account.out, account.plan, account.applied, account.exports
    if path := _csv_file(options):
        _write_csv(out, plan, path, safe=options.csv_safe is not None)
    if options.json:
        print_json(account.as_json())
        return
    is_printed = _print_unfinished(options, applied)
    if not plan.rows and plan.parsed_texts is None:
        if not is_printed:
            done = "the parsed texts are" if options.parsed_texts else _are(len(plan.already))
            is_empty = not options.parsed_texts and not plan.already
            print(
                f"Nothing to purge: {f'{options.scan} names no document' if is_empty else f'{done} purged already'}."
            )
        _print_without_page(options, plan)
        _print_elsewhere(plan)
        _print_exports(exports)
        return
    if plan.returned:
        was = counted(
            len(plan.returned), "document was purged before and is", "documents were purged before and are"
        )
        print(f"{was} there again, as out of a backup")
    if plan.parsed_texts is not None:
        texts = plan.parsed_texts
        print(
            f"the parsed texts of {counted(texts.num_rows, 'document')}, {decimal(texts.num_bytes)} with what"
            " goes with them; no document, clean text or token"
        )
    else:
        _print_documents(plan)
        _print_pages(out, options, plan)
        _print_hosts_below(out, plan)
    _print_without_page(options, plan)
    for line in training_lines(account.training):
        print(visible(line))
    _print_elsewhere(plan)
    _print_exports(exports)
    if applied is None:
        print("\nThis is the plan. To carry it out, add --apply.")
    else:
        print(f"\nPurged as {applied.purge_id}. Proof: sluice verify {visible(shlex.quote(options.out))}")
        for cache in account.unswept:
            line = (
                f"cache {cache.folder} of host {cache.host} drops its old blocks when a run next starts there"
            )
            print(visible(line))


def training_lines(account: TrainingAccount, *, prices: bool = True) -> Iterator[str]:
    """What training runs read of the documents, and what is not known of that; with the prices of replays."""
    for exposure in account.exposures:
        if exposure.num_exposures:
            yield (
                f"training run {exposure.run} read them {counted(exposure.num_exposures, 'time')}, in"
                f" {_steps(exposure)}; last checkpoint before: {_checkpoint(exposure)}"
            )
        if exposure.replay is not None and prices:
            yield f"  {_price(exposure, exposure.replay)}"
        for undone in exposure.undone:
            yield (
                f"training run {exposure.run} read them {counted(undone.num_exposures, 'time')} in attempt"
                f" {undone.attempt}, {_steps(undone)}: {undone.how}"
            )
    for run, why in account.unread.items():
        yield f"what training run {run} read since its last checkpoint is unknown: {why}"


def _steps(exposure: ExposedRun | UndoneReadings) -> str:
    first, last = exposure.first_step, exposure.last_step
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _checkpoint(exposure: ExposedRun) -> str:
    if exposure.last_checkpoint_unknown is not None:
        return f"unknown: {exposure.last_checkpoint_unknown}"
    before = exposure.last_checkpoint_before
    return "none kept" if before is None else str(before)


def _price(exposure: ExposedRun, price: ReplayPrice) -> str:
    """The cost of removing the documents from a run's model."""
    where = f"from checkpoint {price.from_step}" if price.from_step else "from the first weights (--restart)"
    line = f"to remove them from the model: {counted(price.num_steps, 'step')} {where}"
    if price.seconds is not None:
        line += f", about {price.seconds:,.0f} seconds"
    if price.device_hours is not None and price.num_processes is not None:
        unit = "processor" if price.device == "cpu" else "GPU"
        processes = counted(price.num_processes, "process", "processes")
        line += f" and {price.device_hours:.2g} {unit} hours on {processes}"
    line += f", by {exposure.replay_call}"
    if exposure.recipe_unknown is not None:
        line += f" ({exposure.recipe_unknown})"
    if price.waiting:
        line += (
            f"; {counted(len(price.waiting), 'earlier purge waits', 'earlier purges wait')} for a replay: one"
            f" for all is {price.num_steps_together:,} steps, one for each {price.num_steps_apart:,}"
        )
    return line


def _are(num: int) -> str:
    return counted(num, "document is", "documents are")


def _print_documents(plan: PurgePlan) -> None:
    roles = Counter({row.doc_id: row.role for row in plan.rows}.values())
    if plan.match.promote_duplicates:
        print(
            f"{counted(plan.num_documents, 'document')}, and no copy of the texts: suppressed duplicates stay"
            " so here, and the next run that honours this purge may keep one of each"
        )
    else:
        print(
            f"{counted(plan.num_documents, 'document')}: {counted(roles['target'], 'target')},"
            f" {counted(roles['twin'], 'suppressed twin')},"
            f" {counted(roles['kept_copy'], 'kept copy', 'kept copies')} of suppressed targets"
        )
    print(
        f"{counted(plan.num_tokens, 'token')} in {counted(len(plan.shards), 'shard')}:",
        *(f"{visible(s)}/{n:05d}" for s, n in plan.shards[:20]),
    )


def _listed(out: Folder, plan: PurgePlan, most: int) -> Iterator[tuple[PlannedRow, str]]:
    """The first rows of a plan with the URL of each, looked up some thousands at a time."""
    lookup = Lookup(out)
    for first in range(0, min(most, len(plan.rows)), _LOOKED_UP):
        rows = plan.rows[first : min(first + _LOOKED_UP, most)]
        urls = {row.doc_id: row.url or "" for row in lookup.documents(sorted({row.doc_id for row in rows}))}
        yield from ((row, urls[row.doc_id]) for row in rows)


def _print_pages(out: Folder, options: argparse.Namespace, plan: PurgePlan) -> None:
    for row, url in _listed(out, plan, _MOST_PAGES):
        print(visible(f"  {row.doc_id.hex()}  {row.role}  {row.status}  {url}"))
    if len(plan.rows) > _MOST_PAGES:
        path = _csv_file(options)
        rest = f"are in {path}" if path else "--csv FILE writes"
        print(visible(f"  and {len(plan.rows) - _MOST_PAGES:,} more; all {rest}"))


def _csv_file(options: argparse.Namespace) -> str | None:
    path: str | None = options.csv or options.csv_safe
    return path


def _write_csv(out: Folder, plan: PurgePlan, path: str, *, safe: bool) -> None:
    """Every document of the plan; with `safe` no spreadsheet takes a value for a formula."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            (
                "doc_id",
                "role",
                "status",
                "source",
                "url",
                "warc_file",
                "bucket",
                "shard",
                "start",
                "num_tokens",
            )
        )
        for row, url in _listed(out, plan, len(plan.rows)):
            place = (row.warc_file, row.bucket, row.shard, row.start, row.num_tokens)
            values = (row.doc_id.hex(), row.role, row.status, row.source, url, *place)
            writer.writerow(
                without_formula(each) if safe and isinstance(each, str) else each for each in values
            )


def _print_hosts_below(out: Folder, plan: PurgePlan) -> None:
    """How many hosts end in those that are named: `--host` takes none of them."""
    from lineage.store.queries.query import query
    from lineage.store.queries.views import text_literal

    for host in plan.match.values if plan.match.kind == "host" else ():
        ending = "." + (named_host(host) or host)
        condition = f"ends_with(host, {text_literal(ending)})"
        ((num,),) = query(out, f"SELECT count(DISTINCT host) FROM documents WHERE {condition}").rows
        if num:
            call = f"--domain {shlex.quote(ending[1:])}"
            print(
                visible(
                    f"{num:,} other hosts end in {ending}, which --host leaves alone: {call} takes them too"
                )
            )


def _run_without(out: str) -> str:
    """The call that makes an output without what was purged from this one, on a line of its own; or what to do."""
    from pipeline.inspect.open_documents import keeps_texts

    if not keeps_texts(Folder(out)):
        return "run its recipe from its inputs, with OUT in purges.honour"
    recipe = Folder(out).at("recipe.toml")
    return f"\n  {visible(shlex.join(['sluice', 'run', recipe, '--from', out, '--set', 'run.output=NEW']))}"


def _print_without_page(options: argparse.Namespace, plan: PurgePlan) -> None:
    """What no host or domain names, so that nobody takes the plan for all there is."""
    if plan.num_relying is None:
        print(
            "the lineage table edits cannot be read, so it is not known whether text was cut elsewhere that stays in"
            " these: sluice verify OUT names the damage"
        )
    if plan.num_relying:
        print(
            f"{counted(plan.num_relying, 'document')} of OUT had text cut that stays in these (dedup.inside): it"
            " goes with them, and does not come back in OUT. A run without them finds the cuts anew, and the next copy"
            f" stays: {_run_without(options.out)}"
        )
    if plan.num_staying:
        print(
            f"of {counted(plan.num_staying, 'document')} among these, text was cut that stays in other documents:"
            " sluice trace OUT --doc ID names them"
        )
    if plan.num_without_page:
        print(
            f"{counted(plan.num_without_page, 'document of OUT is', 'documents of OUT are')} of no page (url"
            " empty, or it names none), so no host or domain takes them: look at them with sluice lineage"
            f" {visible(shlex.quote(options.out))}"
            ' "SELECT doc_id, url FROM documents WHERE host IS NULL AND purged IS NULL", and name them with --doc'
            " or --where"
        )


def _print_unfinished(options: argparse.Namespace, applied: PurgeResult | None) -> bool:
    """Say what became of a purge that an earlier call began and did not end; whether that is what was asked
    for."""
    out = Folder(options.out)
    if applied is None:
        begun = unfinished_purge(out)
        if begun is not None:
            print(f"Purge {begun} has begun and did not end. With --apply, it is finished first.")
        return begun is not None
    if applied.finished is not None:
        row = next(purge for purge in Lookup(out).purges() if purge.purge_id == applied.finished)
        print(
            f"Finished purge {row.purge_id}, which an earlier call of {row.by!r} had begun ({row.reason!r}):"
            f" {counted(row.num_documents, 'document')}, {counted(row.num_tokens, 'token')}. Proof:"
            f" sluice verify {visible(shlex.quote(options.out))}"
        )
    return applied.finished is not None and applied.purge_id == applied.finished


def _print_elsewhere(plan: PurgePlan) -> None:
    for entry in plan.elsewhere:
        doc_id, out = entry.doc_id.hex(), visible(entry.out or "OUT")
        place = out if entry.out else "an earlier output"
        if entry.not_opened:
            place += f" (maybe in what cannot be opened: {visible(', '.join(entry.not_opened))})"
        call = f"sluice purge {visible(shlex.quote(entry.out or 'OUT'))} --doc {doc_id} --reason … --by … --apply"
        print(f"{doc_id} lies in {place}: purge it there with {call}")


def _print_exports(exports: PlannedExports | CleanedExports) -> None:
    """What will become, or became, of each recorded copy that a purge does something to."""
    if isinstance(exports, PlannedExports):
        for row in exports.to_clean:
            print(visible(f"export {row.name} ({row.format}) at {row.place} is cleaned too"))
        for row in exports.to_forget:
            print(visible(f"export {row.name} ({row.format}) at {row.place} is forgotten, and not cleaned"))
        return
    for name in exports.cleaned:
        print(visible(f"export {name}: cleaned"))
    for name in exports.forgotten:
        print(visible(f"export {name}: forgotten, and not cleaned"))
    for missed in exports.out_of_reach:
        line = (
            f"export {missed.name} at {missed.place} is out of reach and may hold purged text:"
            f" {missed.reason}. Make"
            f" the same call again when it is there, or add --forget-export {missed.name}"
        )
        print(visible(line))
