"""What a form is made of: sections of fields in their order, each with what answers it. Lineage answers first, the
provider's statement says the rest, and where neither does the field is open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from pipeline.record.figures import RecordFigures, Row

KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "public": ("a publicly available dataset, a crawl of others among them", "2.1"),
    "licensed": ("licensed by rightsholders or their representatives", "2.2.1"),
    "private": ("obtained from other third parties and not public", "2.2.2"),
    "crawled": ("crawled by the provider or on its behalf", "2.3"),
    "interaction": ("users' interactions with the model", "2.4"),
    "services": ("users of the provider's other services", "2.4"),
    "synthetic": ("made by an AI model for the provider", "2.5"),
    "other": ("none of these", "2.6"),
}
"""Where a source is from, with the section of the EU's form that it belongs to."""
AnsweredBy = Literal["lineage", "statement", "lineage and statement", "not applicable", "open", "none"]


class Stated(Protocol):
    """The provider's statements (`pipeline.record.statements.Statements`)."""

    @property
    def answers(self) -> Mapping[str, str]: ...
    @property
    def small_provider(self) -> str | None: ...
    def of_source(self, source: str, name: str) -> str | None: ...
    def of_kind(self, sources: list[str], *kinds: str) -> list[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FormFacts:
    """What fields are answered from. `as_of`: the day of the record; `runs`: the runs whose readings count, as lines;
    `unknown`: initial weights of which nothing says what they had read."""

    as_of: str
    figures: RecordFigures
    stated: Stated
    runs: tuple[Mapping[str, Any], ...]
    unknown: tuple[str, ...]

    @property
    def sources(self) -> list[str]:
        """The sources of the documents."""
        return [row["source"] for row in self.figures.tables["sources"]]

    def of_kind(self, *kinds: str) -> list[Row]:
        """The sources of these kinds, as rows."""
        names = self.stated.of_kind(self.sources, *kinds)
        return [row for row in self.figures.tables["sources"] if row["source"] in names]

    @property
    def without_kind(self) -> list[str]:
        """The sources of which no kind is stated: while there are any, no "no" can be told."""
        return [source for source in self.sources if self.stated.of_source(source, "kind") is None]


Answer = Callable[[FormFacts], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of a form. `label`: its wording there; `question`: what the statement is asked, None where lineage alone
    answers; `lineage`: what lineage says, None for nothing; `needs`: the statement that lineage needs for it, where
    that is not the kind of the sources; `kinds`: it is asked where a source is of one of these, always where none
    is named."""

    name: str
    label: str
    question: str | None = None
    lineage: Answer | None = None
    is_optional: bool = False
    needs: str | None = None
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading of a form, at a depth from 2, and its fields."""

    title: str
    depth: int = 2
    fields: tuple[Field, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A form by its name, its title, and its sections. `asks_sources`: whether it wants to know where each source is
    from."""

    name: str
    title: str
    sections: tuple[Section, ...]
    asks_sources: bool = True

    def asked(self) -> Iterator[Field]:
        """The fields that a statement may answer."""
        for section in self.sections:
            yield from (each for each in section.fields if each.question is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A field as the record has it; `value` may have several lines, of which those that begin with "- " are a list."""

    section: str
    field: str
    label: str
    value: str
    answered_by: AnsweredBy


def answered(form: Form, facts: FormFacts) -> list[tuple[Section, list[Answered]]]:
    """Every field of a form, in order."""
    return [
        (section, [_answer(section, each, facts) for each in section.fields]) for section in form.sections
    ]


def _answer(section: Section, each: Field, facts: FormFacts) -> Answered:
    found = None if each.lineage is None else each.lineage(facts)
    stated = facts.stated.answers.get(each.name)
    by: AnsweredBy
    if each.kinds and not facts.of_kind(*each.kinds) and not facts.without_kind:
        value, by = "Not applicable.", "not applicable"
    elif found is not None and stated is not None:
        value, by = f"{found}\n{stated}", "lineage and statement"
    elif found is not None:
        value, by = found, "lineage"
    elif stated is not None:
        value, by = stated, "statement"
    elif each.is_optional:
        value, by = "None given.", "none"
    else:
        value, by = _open(each, facts), "open"
    return Answered(section=section.title, field=each.name, label=each.label, value=value, answered_by=by)


def _open(each: Field, facts: FormFacts) -> str:
    """What has to be stated for the field to be answered."""
    is_asked = not each.kinds or bool(facts.of_kind(*each.kinds))
    if is_asked and each.question is not None:
        return f"OPEN: the provider has to state it ({each.question})."
    if is_asked and each.needs is not None:
        return f"OPEN: the provider has to state {each.needs}."
    what = "the answer follows" if is_asked else "whether this applies follows"
    sources = ", ".join(facts.without_kind)
    return f"OPEN: {what} from where the data is from. The provider has to state it of: {sources}."


def listed(lines: list[str]) -> str:
    """Lines as a list."""
    return "\n".join(f"- {line}" for line in lines)


def month(timestamp: str | None) -> str | None:
    """MM/YYYY of a time in ISO-8601, None for none."""
    return None if timestamp is None else f"{timestamp[5:7]}/{timestamp[:4]}"


def period(row: Row) -> str | None:
    """The period of a row with first and last, None where it has none."""
    first, last = month(row["first"]), month(row["last"])
    return None if first is None or last is None else f"{first} to {last}"


def yes_no(kinds: tuple[str, ...]) -> Answer:
    """Yes where a source is of one of these kinds, no where every source is known to be of another."""

    def answer(facts: FormFacts) -> str | None:
        if facts.of_kind(*kinds):
            return "Yes."
        return None if facts.without_kind else "No."

    return answer


def size(row: Row) -> str:
    """The documents and tokens of a row, and how much of them was read where runs are given."""
    read = "" if row["read_tokens"] is None else f", {row['read_tokens']:,} tokens read in training"
    return f"{row['documents']:,} documents, {row['tokens']:,} tokens{read}"


def counted_sources(rows: list[Row], facts: FormFacts, *, with_kind: bool = False) -> str | None:
    """A line for each source: its name, size and period, and where it is from; None for none."""
    return listed([_counted(row, facts, with_kind) for row in rows]) if rows else None


def _counted(row: Row, facts: FormFacts, with_kind: bool) -> str:
    stated = {name: facts.stated.of_source(row["source"], name) for name in ("name", "link", "description")}
    named = f"{stated['name']} (source {row['source']})" if stated["name"] else f"source {row['source']}"
    told = [f"{named}: {size(row)}"]
    kind = facts.stated.of_source(row["source"], "kind")
    if with_kind and kind is not None:
        told.append(KINDS[kind][0])
    told += [each for each in (stated["link"], stated["description"]) if each]
    if (when := period(row)) is not None:
        told.append(f"collected {when}")
    return "; ".join(told)
