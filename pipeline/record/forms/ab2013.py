"""The documentation of training data that California Civil Code, section 3111(a), asks for (Assembly Bill 2013): its
twelve items."""

from __future__ import annotations

from typing import Final

from pipeline.record.forms.form import Field, Form, FormFacts, Section, counted_sources, listed, period, size
from pipeline.record.forms.processing import cleaning, languages, personal_data


def _sources(facts: FormFacts) -> str | None:
    rows = facts.figures.tables["sources"]
    named = all(facts.stated.of_source(row["source"], "name") for row in rows)
    return counted_sources(rows, facts, with_kind=True) if named else None


def _number(facts: FormFacts) -> str:
    value = facts.figures.value
    lines = [f"{value('documents') or 0:,} documents of {value('tokens') or 0:,} tokens"]
    if (read := value("read_tokens")) is not None:
        lines += [
            f"{read:,} tokens read in training from these documents, where what was read twice counts twice and what"
            " was not read counts nothing",
            f"{value('kept') or 0:,} documents of {value('kept_tokens') or 0:,} tokens kept after cleaning, read or"
            " not",
        ]
    return listed(
        [*lines, *(f"source {row['source']}: {size(row)}" for row in facts.figures.tables["sources"])]
    )


def _types(facts: FormFacts) -> str:
    return f"Texts without labels.\n{languages(facts) or ''}".strip()


def _personal(facts: FormFacts) -> str:
    if not any(row["stage"] == "pii" for row in facts.figures.tables["steps"]):
        return "None: no search for personal information was made."
    if not (lines := personal_data(facts)):
        return "None was replaced: the search found none, or what held some was removed, as (9) says."
    return (
        "Replaced by placeholders in the documents that the record is of. Other kinds, such as names, are not searched"
        f" for, and what the search did not find is still in the texts.\n{listed(lines)}"
    )


def _collected(facts: FormFacts) -> str | None:
    rows = facts.figures.tables["sources"]
    found = [f"source {row['source']}: {period(row)}" for row in rows if period(row) is not None]
    if not found or len(found) < len(rows):
        return None
    return "By the time at which each record was captured:\n" + listed(found)


def _item(number: int, label: str, question: str | None = None, **more: object) -> Field:
    return Field(name=str(number), label=label, question=question, **more)  # type: ignore[arg-type]


FORM: Final = Form(
    name="ab2013",
    title="Documentation regarding the data used to train a generative artificial intelligence system or service"
    " (California Civil Code, section 3111)",
    sections=(
        Section(
            title="High-level summary of the datasets used",
            fields=(
                Field(name="system", label="System or service", question="its name and version"),
                _item(
                    1,
                    "(1) The sources or owners of the datasets",
                    lineage=_sources,
                    needs="the name and the owner of each source",
                ),
                _item(
                    2,
                    "(2) How the datasets further the intended purpose of the system or service",
                    "what the data is for",
                ),
                _item(3, "(3) The number of data points included in the datasets", lineage=_number),
                _item(4, "(4) The types of data points within the datasets", lineage=_types),
                _item(
                    5,
                    "(5) Whether the datasets include any data protected by copyright, trademark, or patent, or whether"
                    " the datasets are entirely in the public domain",
                    "which of the two, and for which sources",
                ),
                _item(6, "(6) Whether the datasets were purchased or licensed", "which, or that none was"),
                _item(
                    7,
                    "(7) Whether the datasets include personal information, as defined in subdivision (v) of Section"
                    " 1798.140",
                    "yes or no; see below what was found and replaced, and that the search cannot find all",
                ),
                Field(
                    name="7.found",
                    label="Personal information that was found and replaced, by kind",
                    lineage=_personal,
                ),
                _item(
                    8,
                    "(8) Whether the datasets include aggregate consumer information, as defined in subdivision (b) of"
                    " Section 1798.140",
                    "yes or no",
                ),
                _item(
                    9,
                    "(9) Whether there was any cleaning, processing, or other modification to the datasets, including"
                    " the intended purpose of those efforts",
                    "what else was done to the data, before or after the steps that are printed here, and what for",
                    lineage=cleaning,
                ),
                _item(
                    10,
                    "(10) The time period during which the data in the datasets were collected, including a notice if"
                    " the data collection is ongoing",
                    "MM/YYYY to MM/YYYY; only where no period is printed here, since the records have none",
                    lineage=_collected,
                ),
                Field(name="10.ongoing", label="Is the collection ongoing?", question="yes or no"),
                _item(
                    11,
                    "(11) The dates the datasets were first used during the development of the system or service",
                    "a date for each, or for all",
                ),
                _item(
                    12,
                    "(12) Whether the system or service used or continuously uses synthetic data generation in its"
                    " development",
                    "yes or no; a description of the need for it may be added",
                ),
            ),
        ),
    ),
)
