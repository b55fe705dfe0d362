"""What stands behind the form of a printed record, for a reader who knows nothing of the software: what is open and who
answers it, the sources, what the words mean, and how a figure is checked."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pipeline.record.forms.form import Form, listed, period, size

HEAD: Final = "Behind the form"
NOTE: Final = "The form ends above. What follows explains it, and is no part of it."
_TERMS: Final = (
    "document: the text of one record of the input, such as a web page",
    "token: the piece of text by which a model reads, a word or a part of one; the tokenizer of the data sets it",
    "byte: the unit of the size of a text in UTF-8; a Latin letter has one, other letters two to four",
    "source: a part of the input data under one name; what it is and whose, the provider states",
    "domain: the registered name of a site, such as example.org for www.example.org",
    "time of capture: when a page was fetched, as the input records it; periods and dates of collection are by it",
    "kept: not removed by cleaning, and not deleted since",
    "read: part of a training batch from which the model, as it was last saved, has learnt",
    "run: one training; a step is one update of its model; a checkpoint is the model as saved after a step",
    "digest: a checksum; equal digests are of equal content",
    "commitment: a digest of all that a run has read, against which it can be proved whether a text is in it",
)
_SOURCE: Final = {
    "kind": "where its data is from",
    "name": "its name, and whose it is",
    "link": "where others get it, or what it is",
}


def annex(form: Form, row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Title and value of each section, a value as `Answered` has one."""
    if row["open"]:
        yield "What is open, and who answers it", _opened(form, row)
    yield "The sources", listed([f"source {each['source']}: {_size(each)}" for each in row["sources"]])
    yield "What the words mean", listed(list(_TERMS))
    yield "How a figure is checked", _checked(form, row)


def _opened(form: Form, row: Mapping[str, Any]) -> str:
    asked = {each.name: each.label for each in form.asked()}
    lines, follow = [], []
    for name in row["open"]:
        source, _, key = name.removeprefix("sources.").rpartition(".")
        if name in asked:
            lines.append(f"{name}: {asked[name]}")
        elif name == "small_provider":
            lines.append(f"{name}: whether the provider is a small or medium-sized enterprise")
        elif name.startswith("sources."):
            lines.append(f"{name}: of source {source}, {_SOURCE[key]}")
        else:
            follow.append(name)
    told = "The provider answers these in its file of statements."
    if any(each.kinds for each in form.asked()) and follow:
        told += " Some no longer apply once it is stated where each source is from."
    value = f"{told}\n{listed(lines)}"
    return f"{value}\nFrom those answers follow: {', '.join(follow)}." if follow else value


def _size(each: Mapping[str, Any]) -> str:
    when = period(each)
    return size(each) + (
        f"; {each['bytes']:,} bytes; " + (f"captured {when}" if when else "no time of capture")
    )


def _checked(form: Form, row: Mapping[str, Any]) -> str:
    digest = row["digest"]
    runs = " --run RUN_OUTPUT" if row["runs"] else ""
    what = "what the model has read" if runs else "what was kept"
    statements: Sequence[str] = (
        [f"- of the provider's statements for this form: {digest['statements']}"]
        if digest["statements"]
        else []
    )
    return "\n".join([
        "Each figure below is the answer to a question to a database, in the language SQL; the question stands below"
        " it. Who holds the data (OUT) and the training's output (RUN_OUTPUT) repeats it by: sluice record OUT"
        f"{runs} --format {shlex.quote(form.name)} --sql 'QUESTION'. A public reader without them"
        f" cannot. The table that most ask, named used, has the documents that the record is of: {what}.",
        "The size of every domain, the rules that removed documents and the versions of the data are in the same record"
        " as JSON. Two records of the same data, at the same place, have the same digest:",
        f"- of the data, the runs and the figures: {digest['lineage']}",
        *statements,
    ])  # fmt: skip
