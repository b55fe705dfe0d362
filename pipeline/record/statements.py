"""The file in which a provider states what lineage cannot know: answers by field, and of each source where it is from.

    form = "eu-summary"
    small_provider = "no"

    [answers]
    "1.1.provider" = "Example SA, Brussels, data@example.org"

    [sources.web]
    kind = "public"
    name = "Common Crawl CC-MAIN-2026-30"
    link = "https://commoncrawl.org/"

An empty text is no answer: nothing is guessed, and the record marks it open."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import tomli_w

from lineage.ids import content_hash
from lineage.recipe import RecipeError
from lineage.storage.folder import split
from pipeline.record.forms.form import KINDS, Form

SOURCE_KEYS: Final = ("kind", "name", "link", "description")
_HEAD: Final = (
    "# What only the provider can tell of the data. Write each answer between its quotation marks.",
    "# It is printed below what the data itself tells. What stays empty is printed as OPEN, unless it may stay empty:",
    "# where something does not apply, write so.",
)
_TOP: Final = ("form", "small_provider", "answers", "sources")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statements:
    """What was stated; empty answers are left out. `digest`: BLAKE3-128 of the file, None without one."""

    answers: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    small_provider: str | None = None
    digest: str | None = None

    def of_source(self, source: str, name: str) -> str | None:
        """What is stated of a source, None where nothing is."""
        return self.sources.get(source, {}).get(name)

    def of_kind(self, sources: Collection[str], *kinds: str) -> list[str]:
        """Those of these sources that are of one of these kinds."""
        return sorted(source for source in sources if self.of_source(source, "kind") in kinds)


def read_statements(file: str | None, form: Form, sources: Sequence[str]) -> Statements:
    """The statements in a file for this form and these sources of lineage, none without a file. RecipeError names
    what is wrong in it."""
    if file is None:
        return Statements()
    folder, name = split(file)
    try:
        data = folder.read(name)
        row = tomllib.loads(data.decode())
    except OSError as error:
        raise RecipeError(f"--statements {file} cannot be read: {error}") from error
    except ValueError as error:
        raise RecipeError(f"--statements {file}: it is no TOML: {error}") from error
    if row.get("form") != form.name:
        raise RecipeError(
            f"--statements {file}: form = {row.get('form')!r}, and the record is of the form {form.name!r}: sluice"
            f" record --format {shlex.quote(form.name)} --statements-template writes a file for it"
        )
    _refuse_others(file, "", row, _TOP)
    answers, stated = row.get("answers", {}), row.get("sources", {})
    _refuse_others(file, "answers.", answers, [each.name for each in form.asked()])
    _refuse_others(file, "sources.", stated, sources)
    small = _texts(file, "", {"small_provider": row.get("small_provider", "")}).get("small_provider")
    if small not in (None, "yes", "no"):
        raise RecipeError(f"--statements {file}: small_provider = {small!r}: expected yes or no")
    found = {}
    for source, given in stated.items():
        _refuse_others(file, f"sources.{source}.", given, SOURCE_KEYS)
        found[source] = _texts(file, f"sources.{source}.", given)
        kind = found[source].get("kind")
        if kind is not None and kind not in KINDS:
            raise RecipeError(
                f"--statements {file}: sources.{source}.kind = {kind!r}: expected one of {', '.join(KINDS)}"
            )
    return Statements(
        answers=_texts(file, "answers.", answers),
        sources=found,
        small_provider=small,
        digest=content_hash(data).hex(),
    )


def template(form: Form, sources: Sequence[str]) -> str:
    """A file of statements with a question above each key and no answer."""
    is_eu = form.name == "eu-summary"
    lines = [*_HEAD, f'form = "{form.name}"']
    if is_eu:
        lines += [
            "# Is the provider a small or medium-sized enterprise (it lists fewer domains in 2.3)? yes or no",
            'small_provider = ""',
        ]
    lines += ["", "[answers]"]
    for each in form.asked():
        optional = " (may stay empty)" if each.is_optional else ""
        optional = " (may stay empty where the record prints an answer)" if each.lineage else optional
        lines += [f"# {each.label}: {each.question}{optional}", f"{tomli_w.dumps({each.name: ''}).strip()}"]
    for source in sources if form.asks_sources else ():
        lines += [
            "",
            tomli_w.dumps({"sources": {source: {"kind": ""}}}).split("\n")[0],
            f"# Where the data of source {source} is from, one of these words:",
            *(
                f"#   {kind}: {what}{f' ({section})' if is_eu else ''}"
                for kind, (what, section) in KINDS.items()
            ),
            'kind = ""',
            "# Its name, and whose it is",
            'name = ""',
            "# Where others get it (of a public dataset this, or its description)",
            'link = ""',
            "# What it is (may stay empty where there is a link)",
            'description = ""',
        ]
    return "\n".join(lines) + "\n"


def _refuse_others(file: str, where: str, row: Any, known: Sequence[str]) -> None:
    if not isinstance(row, dict):
        raise RecipeError(f"--statements {file}: {where or 'it'} is {row!r:.40}: expected a table")
    for name in row:
        if name not in known:
            raise RecipeError(
                f"--statements {file}: {where}{name} is nothing that this record asks; expected {', '.join(known)}"
            )


def _texts(file: str, where: str, row: Mapping[str, Any]) -> dict[str, str]:
    for name, value in row.items():
        if not isinstance(value, str):
            raise RecipeError(f"--statements {file}: {where}{name} = {value!r:.40}: expected a text")
    return {name: value.strip() for name, value in row.items() if value.strip()}
