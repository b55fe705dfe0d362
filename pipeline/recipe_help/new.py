"""`sluice recipe new`: a commented recipe that parses and runs, made of the help of its keys."""

from __future__ import annotations

import textwrap
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lineage.recipe import RecipeError, parse_table, with_overrides
from pipeline.recipe import differing_keys
from pipeline.recipe_help.keys import (
    SHAPES,
    Kind,
    RecipeKey,
    RecipeTable,
    name_text,
    recipe_tables,
    value_text,
)
from pipeline.recipe_help.tables import PARAGRAPHS
from stages.quality.options import threshold_defaults

_WIDTH: Final = 120

_Entry = tuple[RecipeTable, str, Mapping[str, Any]]
"""A table, its dotted name as TOML writes it, and what it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A recipe to start from: its tables in the order of the file; the comment on its top. `with_model`: what
    stands at its end behind a #, since it asks for a file that is not shipped, below what it is."""

    kind: Kind
    comment: str
    tables: Mapping[str, Any]
    with_model: tuple[str, str] | None = None


_TRAIN: Final[Mapping[str, Any]] = {
    "data": "out/crawl",
    "output": "out/first-run",
    "model": "debug",
    "seq_len": 1024,
    "global_batch": 16,
    "micro_batch": 2,
    "steps": 200,
    "workers": 2,
}

TEMPLATES: Final[Mapping[str, Template]] = {
    "fineweb": Template(
        kind="data",
        comment="English pages of a web crawl as FineWeb makes them (Penedo et al. 2024). What is near and"
        " what is not here: sluice recipe diff FILE --against fineweb. language.prefilter = true spares the"
        " slow extractor pages in other languages, as FineWeb does not.",
        tables={
            "run": {"name": "fineweb", "output": "out/crawl"},
            "source": [{"name": "web", "inputs": ["crawl/*.warc.gz"]}],
            "url": {"match": "fineweb"},
            "parse": {"extractor": "trafilatura", "favor": "precision"},
            "language": {"keep": ["en"], "min_score": 0.65},
            "quality": {
                "rules": ["gopher_repetition", "gopher_quality", "c4", "fineweb"],
                "c4_terminal_punctuation": False,
            },
            "pii": {"kinds": ["email", "ip"], "placeholders": "fineweb"},
            "dedup": {
                "url": False,
                "num_perm": 112,
                "bands": 14,
                "rows": 8,
                "shingle": 5,
                "normalise": "fineweb",
                "verify": False,
            },
            "tokenize": {},
            "ray": {},
        },
    ),
    "fineweb2": Template(
        kind="data",
        comment="Pages of a web crawl in FineWeb-2's languages, of which English is none, each judged by its own"
        " configuration (Penedo et al. 2025). What is near and what is not here: sluice recipe diff FILE"
        " --against fineweb2. Its"
        " scores are those of GlotLID: name that model in language.model and set language.score_table to"
        " fineweb2. language.keep = [] keeps"
        ' every language, and "all" gives each shards of its own; [repeat.language.NAME] gives one a table of its'
        " own.",
        tables={
            "run": {"name": "fineweb2", "output": "out/fineweb2"},
            "source": [{"name": "web", "inputs": ["crawl/*.warc.gz"]}],
            "url": {"match": "fineweb"},
            "parse": {"extractor": "trafilatura", "favor": "precision"},
            "language": {"keep": []},
            "quality": {
                "rules": ["gopher_repetition", "fineweb", "gopher_quality", "ftfy", "symbol_lines"],
                "variant": "fineweb2",
                "no_table": "reject",
            },
            "pii": {"kinds": ["email", "ip"], "placeholders": "fineweb"},
            "dedup": {
                "url": False,
                "num_perm": 112,
                "bands": 14,
                "rows": 8,
                "shingle": 5,
                "normalise": "fineweb",
                "verify": False,
            },
            "repeat": {
                "by": "cluster_size",
                "table": {"1": 1, "2": 2, "3": 3, "5": 5, "100": 8, "1000": 1},
            },
            "tokenize": {},
            "ray": {},
        },
    ),
    "dclm": Template(
        kind="data",
        comment="English pages of a web crawl by the heuristics of RefinedWeb as DCLM has them (Li et al."
        " 2024). Its classifier is a file that you name in a [[classifier]] table. What is near and what is"
        " not here: sluice recipe diff FILE --against dclm.",
        tables={
            "run": {"name": "dclm", "output": "out/dclm"},
            "source": [{"name": "web", "inputs": ["crawl/*.warc.gz"]}],
            "url": {"match": "dclm"},
            "parse": {"extractor": "resiliparse"},
            "language": {"keep": ["en"], "min_score": 0.65},
            "quality": {
                "rules": ["url_removal", "newlines", "gopher_quality", "gopher_repetition", "line_edits"],
                "variant": "dclm",
            },
            "pii": {"kinds": []},
            "dedup": {"url": False, "normalise": "slimpajama"},
            "tokenize": {},
            "ray": {},
        },
    ),
    "dolma3": Template(
        kind="data",
        comment="English pages of a web crawl by the rules of Dolma 3's web part. What is near and what is"
        " not here: sluice recipe diff FILE --against dolma3. Its upsampling by quality asks for a classifier's"
        " file, and stands at the end behind a #.",
        tables={
            "run": {"name": "dolma3", "output": "out/dolma3"},
            "source": [{"name": "web", "inputs": ["crawl/*.warc.gz"]}],
            "url": {"match": "dclm"},
            "parse": {"extractor": "resiliparse"},
            "language": {"keep": ["en"], "min_score": 0.65},
            "quality": {
                "rules": [
                    "length",
                    "gopher_quality",
                    "newlines",
                    "gopher_repetition",
                    "line_edits",
                    "madlad",
                ],
                "variant": "dclm",
                "line_edits": "dolma3",
            },
            "pii": {"kinds": []},
            "dedup": {
                "url": False,
                "num_perm": 286,
                "bands": 26,
                "rows": 11,
                "shingle": 5,
                "normalise": "slimpajama",
                "threshold": 0.8,
                "keep": "newest",
            },
            "tokenize": {},
            "ray": {},
        },
        with_model=(
            "Dolma 3's upsampling by quality: 20 parts of equal tokens by the score, the lowest 0.4 of the tokens"
            " not read, the others the more often the better they are, 7 times at most. Its target follows from"
            " the mixture, for each topic: as many tokens as there are, where nothing else is said. The model is"
            " allenai/dolma3-fasttext-quality-classifier on the Hugging Face Hub (4 GiB, label 1). Take the # away"
            " where it lies at this path.",
            """\
[[classifier]]
name = "quality"
model = "models/dolma3-fasttext-quality-classifier/model.bin"
label = "1"
reject = "never"

[[bucket]]
name = "quality"
by = "score_quality"
percentiles = [5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 85, 90, 95]
weigh = "tokens"

[repeat]
by = "bucket"
target = 1.0
discard = 0.4
most = 7.0
""",
        ),
    ),
    "code": Template(
        kind="data",
        comment='Source files, as they lie in a checkout (inputs = ["src/**"] with format = "file"), as lines of'
        " JSON or as rows of Parquet, by the rules of The Stack v2 and"
        " StarCoder (Lozhkov et al. 2024, Li et al. 2023): each is judged by its programming language, which"
        " its name tells; notebooks become their cells, and a column has each file's licence. What is near"
        " and what is not here: sluice recipe diff FILE --against code.",
        tables={
            "run": {"name": "code", "output": "out/code"},
            "source": [
                {"name": "code", "inputs": ["code/*.parquet"], "text_field": "content", "id_field": "path"},
            ],
            "language": {"keep": [], "model": "extension"},
            "quality": {"rules": ["notebooks", "code"], "variant": "code"},
            "pii": {"kinds": ["email", "ip", "secret"]},
            "dedup": {
                "url": False,
                "num_perm": 250,
                "bands": 25,
                "rows": 10,
                "shingle": 5,
                "shingle_unit": "code",
                "verify": False,
            },
            "tokenize": {},
            "ray": {},
        },
    ),
    "text": Template(
        kind="data",
        comment="Texts that you have already, as files (*.txt, *.md), lines of JSON or rows of Parquet: checked"
        " by Gopher's rules, freed of duplicates and tokenized.",
        tables={
            "run": {"name": "texts", "output": "out/texts"},
            "source": [{"name": "texts", "inputs": ["texts/*.jsonl"], "text_field": "text"}],
            "language": {"keep": ["en"]},
            "quality": {"rules": ["gopher_quality", "gopher_repetition"]},
            "pii": {},
            "dedup": {},
            "tokenize": {},
            "ray": {},
        },
    ),
    "train": Template(
        kind="train",
        comment="A small training run on what a data run left. On one machine its processes share the"
        " processors; with GPUs, name a real model and more steps.",
        tables={
            "run": {"name": "first-run"},
            "train": {
                **_TRAIN,
                "optimizer": {"lr": 1e-3, "warmup_steps": 20},
                "checkpoint": {"every": 50},
                "order": {},
            },
            "ray": {},
        },
    ),
    "mix": Template(
        kind="train",
        comment="A training run whose mixture an ablation decides: sluice mix run, then sluice mix optimize.",
        tables={
            "run": {"name": "mixed-run"},
            "train": {**_TRAIN, "output": "out/mixed-run", "validation": 0.05, "optimizer": {"lr": 1e-3}},
            "mix": {"runs": 24, "replicates": 2, "proxy": {"model": "debug", "tokens": 1_000_000}},
            "ray": {},
        },
    ),
}


def new_recipe(name: str, overrides: Sequence[str] = ()) -> str:
    """The text of the template `name` with some keys changed; RecipeError where the changed recipe is wrong,
    or where the text would not hold each of its values."""
    template = TEMPLATES[name]
    plain = with_overrides(template.tables, overrides)
    parse_table(typing.cast(Any, SHAPES[template.kind]), plain)
    tables = {table.name: table for table in recipe_tables(template.kind)}
    lines = textwrap.wrap(template.comment, _WIDTH - 2)
    lines = [*(f"# {line}" for line in lines), "# A key behind a # has the value that it has when left out."]
    written = {key: _entries(tables, key, key, value) for key, value in plain.items()}
    lines += [f"{key} = {value_text(plain[key])}" for key, entries in written.items() if not entries]
    lines += [line for entries in written.values() for entry in entries for line in _of_table(tables, *entry)]
    absent = [table.header for name, table in tables.items() if name.split(".")[0] not in plain]
    if absent:
        rest = textwrap.wrap(f"Also: {', '.join(absent)}; see `sluice recipe keys`.", _WIDTH - 2)
        lines += ["", *(f"# {line}" for line in rest)]
    if template.with_model is not None:
        what, given = template.with_model
        lines += ["", *(f"# {line}" for line in textwrap.wrap(what, _WIDTH - 2))]
        lines += [f"# {line}".rstrip() for line in given.splitlines()]
    text = "\n".join(lines) + "\n"
    _check_holds(text, plain)
    return text


def _entries(tables: Mapping[str, RecipeTable], name: str, shown: str, value: Any) -> list[_Entry]:
    """The tables of which a value consists, `name` and `shown` being its own name; none where it stands in
    one line: a plain value, an empty list of tables, an empty table of named ones."""
    if named := tables.get(f"{name}.NAME"):
        return [(named, f"{shown}.{name_text(chosen)}", entry) for chosen, entry in value.items()]
    if name not in tables or not isinstance(value, (dict, list)):
        return []
    return [(tables[name], shown, entry) for entry in (value if isinstance(value, list) else [value])]


def _of_table(
    tables: Mapping[str, RecipeTable], table: RecipeTable, shown: str, entry: Mapping[str, Any]
) -> Iterator[str]:
    yield ""
    yield from (
        f"# {line}" for line in textwrap.wrap(PARAGRAPHS.get((table.recipe, table.name), ""), _WIDTH - 2)
    )
    yield table.header.replace(table.name, shown)
    within = {
        key: _entries(tables, f"{table.name}.{key}", f"{shown}.{key}", value) for key, value in entry.items()
    }
    for key in table.keys:
        if not within.get(key.own_name):
            yield from _of_key(key, entry, table.name)
    # A list of tables that is empty has neither a key among the table's own nor a header.
    own_names = {key.own_name for key in table.keys}
    for name in (name for name, entries in within.items() if not entries and name not in own_names):
        yield f"{name} = {value_text(entry[name])}"
    for entries in within.values():
        for found in entries:
            yield from _of_table(tables, *found)


def _of_key(key: RecipeKey, entry: Mapping[str, Any], table: str) -> Iterator[str]:
    if key.own_name in entry:
        yield from _commented(f"{key.own_name} = {value_text(entry[key.own_name])}", key)
        return
    default = key.default
    if table == "quality":
        variant = entry.get("variant", "datatrove")
        by_variant = threshold_defaults(key.own_name)
        if by_variant and variant not in by_variant:
            return
        default = by_variant.get(variant, default)
        default = (
            int(default) if default is not None and by_variant and key.type == "whole number" else default
        )
        if by_variant and default is None:
            yield from _commented(f"# {key.own_name}: by language", key)
            return
    if default is None:
        yield from _commented(f"# {key.own_name}: not given", key)
    else:
        yield from _commented(f"#{key.own_name} = {value_text(default)}", key)


def _check_holds(text: str, plain: Mapping[str, Any]) -> None:
    try:
        text.encode()
        held = tomllib.loads(text)
    except ValueError as error:  # a lone surrogate, as of an argument that is not UTF-8
        raise RecipeError(f"what --set gives cannot be written as TOML: {error}") from error
    lost = differing_keys(dict(plain), held, ignore=frozenset())
    if lost:
        raise RecipeError(
            f"a value would not be in the file as given: {lost[0].partition(' now and was ')[0]}"
        )


def _commented(line: str, key: RecipeKey) -> Iterator[str]:
    """A line with the key's help behind it, or above it where there is no room."""
    beside = f"{line:<40}  # {key.help}" if key.help else line
    if len(beside) <= _WIDTH:
        yield beside
        return
    yield from (f"# {part}" for part in textwrap.wrap(key.help, _WIDTH - 2))
    yield line
