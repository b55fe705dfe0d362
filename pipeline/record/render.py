"""A record as Markdown, and as one HTML page that prints."""

from __future__ import annotations

import json
from typing import Final

from lineage.index.output_index import check_outside
from lineage.recipe import RecipeError
from lineage.storage.folder import split
from pipeline.record.annex import HEAD, NOTE, annex
from pipeline.record.record import FilledForm
from pipeline.report.render import escaping

ENDINGS: Final = (".json", ".md", ".html", ".jsonld")


def publish_record(record: FilledForm, to: str) -> None:
    """Write a record to a file, in the form of its ending. RecipeError for another ending."""
    check_target(record.form.name, to)
    if to.endswith(".json"):
        data = json.dumps(record.row, indent=1, ensure_ascii=False) + "\n"
    elif to.endswith(".jsonld"):
        data = json.dumps(record.croissant, indent=1, ensure_ascii=False) + "\n"
    elif to.endswith(".md"):
        data = markdown(record)
    else:
        data = html(record)
    folder, name = split(to)
    folder.publish(name, data.encode("utf-8", "surrogatepass"))


def check_target(form: str, to: str) -> None:
    """RecipeError where a record of this form cannot be written to that file."""
    if not to.endswith(ENDINGS):
        raise RecipeError(f"--to {to!r}: expected a name that ends in one of {', '.join(ENDINGS)}")
    if to.endswith(".jsonld") and form != "croissant":
        raise RecipeError(f"--to {to!r}: only --format croissant is JSON-LD; expected .json, .md or .html")
    check_outside("--to", to)


def markdown(record: FilledForm) -> str:
    """The form in its order, then what explains it, and every figure with its SQL."""
    lines = [f"# {record.form.title}", ""]
    for section, fields in record.fields:
        lines += [f"{'#' * section.depth} {section.title}", ""]
        for field in fields:
            lines += [f"**{field.label}**", "", _plain(field.value), ""]
    lines += ["---", "", f"# {HEAD}", "", NOTE, ""]
    for title, value in annex(record.form, record.row):
        lines += [f"## {title}", "", _plain(value), ""]
    lines += ["## Figures", ""]
    for figure in record.figures:
        value = "none" if figure.value is None else f"{figure.value:,}"
        lines += [f"- {figure.name}: {value} ({figure.unit})", f"  `{figure.sql}`"]
    lines += ["", f"`used` is `{record.row['used']}`."]
    return "\n".join(lines) + "\n"


def html(record: FilledForm) -> str:
    """The same as a page. What stands in it is escaped."""
    fields = [
        (section, [(field, _blocks(field.value)) for field in answers]) for section, answers in record.fields
    ]
    page = escaping("pipeline.record", ".").get_template("record.html")
    behind = [(title, _blocks(value)) for title, value in annex(record.form, record.row)]
    return page.render(form=record.form, fields=fields, row=record.row, head=HEAD, note=NOTE, behind=behind)


def _blocks(value: str) -> list[tuple[bool, list[str]]]:
    """Paragraphs and lists of a value: whether a block is a list, and its lines."""
    blocks: list[tuple[bool, list[str]]] = []
    for line in value.split("\n"):
        is_item = line.startswith("- ")
        if not blocks or blocks[-1][0] != is_item:
            blocks.append((is_item, []))
        blocks[-1][1].append(line.removeprefix("- ") if is_item else line)
    return blocks


def _plain(value: str) -> str:
    """A value as Markdown: what is typed by a provider or comes from the web gives no markup."""
    special = str.maketrans({character: f"\\{character}" for character in "\\`*_{}[]<>#|"})
    blocks = [
        "\n".join(f"- {line.translate(special)}" if is_item else line.translate(special) for line in lines)
        for is_item, lines in _blocks(value)
    ]
    return "\n\n".join(blocks)
