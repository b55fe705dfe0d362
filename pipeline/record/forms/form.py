"""What a form is made of: sections of fields in their order, each with what answers it. Lineage answers first, the
provider's statement says the rest, and where neither does the field is open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pipeline.record.figures import RecordFigures, Row

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
    def kinds_are_known(self) -> bool:
        """Whether every source has its kind, so that a yes or no can be told from them."""
        return all(self.stated.of_source(source, "kind") for source in self.sources)


Answer = Callable[[FormFacts], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of a form. `label`: its wording there; `question`: what the statement is asked, None where lineage alone
    answers; `lineage`: what lineage says, None for nothing; `applies`: whether it is asked at all."""

    name: str
    label: str
    question: str | None = None
    lineage: Answer | None = None
    is_optional: bool = False
    applies: Callable[[FormFacts], bool] = lambda facts: True


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
    if not each.applies(facts):
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
        value, by = "OPEN: nothing states it.", "open"
    return Answered(section=section.title, field=each.name, label=each.label, value=value, answered_by=by)


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
        return "No." if facts.kinds_are_known else None

    return answer


def has(*kinds: str) -> Callable[[FormFacts], bool]:
    """Whether a field applies: a source is of one of these kinds, or may be."""
    return lambda facts: bool(facts.of_kind(*kinds)) or not facts.kinds_are_known


def counted_sources(rows: list[Row], facts: FormFacts) -> str | None:
    """A line for each source: its name, size and period; None for none."""
    return listed([_counted(row, facts) for row in rows]) if rows else None


def _counted(row: Row, facts: FormFacts) -> str:
    stated = {name: facts.stated.of_source(row["source"], name) for name in ("name", "link", "description")}
    named = f"{stated['name']} (source {row['source']})" if stated["name"] else f"source {row['source']}"
    read = "" if row["read_tokens"] is None else f", {row['read_tokens']:,} tokens as read"
    told = [f"{named}: {row['documents']:,} documents, {row['tokens']:,} tokens{read}"]
    told += [each for each in (stated["link"], stated["description"]) if each]
    if (when := period(row)) is not None:
        told.append(f"collected {when}")
    return "; ".join(told)
