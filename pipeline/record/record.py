"""`sluice record`, read from top to bottom: runs, tables, figures, statements, the form, what changed."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from lineage.ids import content_hash
from lineage.index.output_index import read_index
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder, split
from pipeline.record.against import changed_since
from pipeline.record.croissant import croissant
from pipeline.record.figures import TABLES, Figure, collect
from pipeline.record.forms import ab2013, croissant_form, eu_summary
from pipeline.record.forms.form import Answered, Form, FormFacts, Section, answered
from pipeline.record.runs import RecordedRuns, recorded_runs
from pipeline.record.statements import SOURCE_KEYS, Statements, read_statements, template
from pipeline.record.tables import USED, record_tables

FORMS: Final[Mapping[str, Form]] = {
    form.name: form for form in (eu_summary.FORM, ab2013.FORM, croissant_form.FORM)
}
"""Every form of a record, by name."""
VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledForm:
    """A record: `row` is it as JSON, `fields` the form filled, `open` the fields that nothing answers, and `croissant`
    its JSON-LD where the form is that."""

    form: Form
    fields: list[tuple[Section, list[Answered]]]
    open: list[str]
    figures: tuple[Figure, ...]
    row: dict[str, object]
    croissant: dict[str, object] | None


def make_record(
    outs: Sequence[str],
    form: str,
    *,
    runs: Sequence[str] = (),
    statements: str | None = None,
    against: str | None = None,
    to: str | None = None,
) -> FilledForm:
    """The record of these outputs in a form of FORMS, weighted by what `runs` have read; `to`: the
    file that it is for, from where JSON-LD names files. RecipeError where the call or
    the statements are wrong, NotFinishedError or StoreError where an output cannot be read."""
    wanted = FORMS[form]
    folders = [Folder(out) for out in dict.fromkeys(outs)]
    chosen = recorded_runs(runs, folders)
    with record_tables(folders, chosen.runs) as tables:
        figures = collect(tables)
    sources = [row["source"] for row in figures.tables["sources"]]
    stated = read_statements(statements, wanted, sources)
    facts = FormFacts(
        as_of=datetime.datetime.now(datetime.UTC).strftime("%d/%m/%Y"),
        figures=figures,
        stated=stated,
        runs=tuple(_run_rows(chosen)),
        unknown=chosen.unknown,
    )
    fields = answered(wanted, facts)
    unanswered = _open(wanted, facts, stated, fields)
    row = _row(wanted, folders, facts, stated, fields) | {"open": unanswered}
    if against is not None:
        row["changed"] = changed_since(_read_old(against, wanted), row)
    made = croissant(folders, facts, to) if wanted.name == "croissant" else None
    return FilledForm(
        form=wanted, fields=fields, open=unanswered, figures=figures.figures, row=row, croissant=made
    )


def ask(outs: Sequence[str], runs: Sequence[str], sql: str) -> list[dict[str, object]]:
    """The rows of a SELECT over the tables of a record (`tables`)."""
    folders = [Folder(out) for out in dict.fromkeys(outs)]
    with record_tables(folders, recorded_runs(runs, folders).runs) as tables:
        return tables.rows(sql)


def statements_template(outs: Sequence[str], form: str) -> str:
    """A file of statements for a form, with the sources of these outputs."""
    found = {shard.source for out in outs for shard in read_index(Folder(out)).documents}
    return template(FORMS[form], sorted(found))


def _run_rows(chosen: RecordedRuns) -> list[dict[str, object]]:
    return [
        {
            "run": each.read.run,
            "output": each.read.output.url,
            "checkpoint": each.read.checkpoint.name,
            "step": each.read.checkpoint.step,
            "begun_by": each.begun_by,
            "root": each.root,
        }
        for each in chosen.runs
    ]


def _row(
    form: Form,
    outs: Sequence[Folder],
    facts: FormFacts,
    stated: Statements,
    fields: list[tuple[Section, list[Answered]]],
) -> dict[str, object]:
    figures = facts.figures
    is_small = stated.small_provider == "yes"
    top = figures.top_domains(small=is_small)
    lineage = {
        "outs": [
            {"out": out.url, "content_fingerprint": read_index(out).content_fingerprint} for out in outs
        ],
        "runs": list(facts.runs),
        "figures": [asdict(figure) for figure in figures.figures],
        "tables": figures.tables,
    }
    return {
        "format": form.name,
        "version": VERSION,
        "as_of": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "digest": {
            "lineage": content_hash(json.dumps(lineage, sort_keys=True).encode()).hex(),
            "statements": stated.digest,
        },
        "outs": lineage["outs"],
        "runs": list(facts.runs),
        "unknown_weights": list(facts.unknown),
        "used": USED[bool(facts.runs)],
        "figures": lineage["figures"],
        "domains": figures.tables["domains"],
        "top_domains": {
            "share": "5% or 1,000" if is_small else "10%",
            "num_domains": len(top),
            "bytes": sum(row["bytes"] for row in top),
        },
        "languages": figures.tables["languages"],
        "sources": figures.tables["sources"],
        "period": figures.tables["period"][0],
        "steps": figures.tables["steps"],
        "rules": figures.tables["rules"],
        "personal_data": figures.tables["personal_data"],
        "purges": figures.tables["purges"],
        "sql": dict(TABLES),
        "fields": [asdict(field) for _, answers in fields for field in answers],
    }


def _open(
    form: Form, facts: FormFacts, stated: Statements, fields: list[tuple[Section, list[Answered]]]
) -> list[str]:
    found = [field.field for _, answers in fields for field in answers if field.answered_by == "open"]
    if not form.asks_sources:
        return found
    if stated.small_provider is None and form.name == "eu-summary":
        found.append("small_provider")
    for source in facts.sources:
        for name in SOURCE_KEYS[:2]:
            if stated.of_source(source, name) is None:
                found.append(f"sources.{source}.{name}")
        is_public = stated.of_source(source, "kind") == "public"
        if is_public and not (stated.of_source(source, "link") or stated.of_source(source, "description")):
            found.append(f"sources.{source}.link")
    return found


def _read_old(file: str, form: Form) -> dict[str, object]:
    folder, name = split(file)
    try:
        row = json.loads(folder.read(name))
    except OSError as error:
        raise RecipeError(f"--against {file} cannot be read: {error}") from error
    except ValueError as error:
        raise RecipeError(
            f"--against {file}: expected a record as JSON, as --to FILE.json writes it: {error}"
        ) from error
    if not isinstance(row, dict) or not {"format", "figures", "sources", "domains", "fields"} <= row.keys():
        raise RecipeError(f"--against {file}: expected a record as JSON, as --to FILE.json writes it")
    if row["format"] != form.name:
        raise RecipeError(
            f"--against {file}: it is of the form {row['format']!r}, and this record of {form.name!r}"
        )
    return row
