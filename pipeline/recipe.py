"""The recipe of `sluice run`. Each package declares its own tables; this composes them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from lineage.recipe import (
    IN_PROCESS,
    RecipeError,
    differing,
    key,
    load_recipe,
    parse_table,
    shown_value,
    with_overrides,
)
from lineage.secrets import without_secrets
from lineage.storage.folder import Folder, is_remote, not_for_tables
from lineage.store.column_names import LABEL, LICENSE, SCORE
from stages.chain import DEFAULT_STEPS, check_steps
from stages.dedup.options import DedupTable
from stages.pii.options import check_phone_region
from stages.quality.code.language import languages
from stages.quality.judged_languages import check_languages, judges_any_language, judges_code
from stages.quality.languages import label_hint, language_code
from stages.quality.options import check_one_each, check_tables, check_thresholds
from stages.quality.rule_sets.catalogue import threshold_defaults
from stages.reading.options import (
    DEFAULT_COMPRESSION_RATIO,
    DEFAULT_WINDOW_BYTES,
    MAX_WINDOW_BYTES,
    RowFields,
)
from stages.steps.catalogue import CATALOGUE, RecipeStepTables, StepTables, given_keys
from stages.steps.classifier import check_classifiers
from stages.steps.fasttext_model import BUNDLED
from stages.steps.language import (
    EXTENSION,
    check_language_model,
    check_min_scores,
    known_labels,
    labels_at_hand,
)
from stages.steps.url import UrlTable
from stages.steps.user_step import check_step_tables
from stages.tokens.repeats import RepeatTable, check_repeat
from stages.tokens.tokenizer import TokenizeTable

MAX_SOURCES: Final = 1 << 9
MAX_FILES: Final = 1 << 22
"""Sources of a recipe, and input files of a source: a document's number while documents are compared
(`pipeline/dedup/inputs.py`) has room for no more."""

_MIME = re.compile(r"[a-z0-9!#$&^_.+-]{1,127}/(?:[a-z0-9!#$&^_.+-]{1,127}|\*)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_BUCKET = re.compile(r"[A-Za-z0-9_-]{1,50}")
_PART = re.compile(r"[A-Za-z0-9_-]{1,80}")
_LANGUAGE = re.compile(r"[A-Za-z]{2,8}(?:[-_][A-Za-z0-9]{1,8}){0,4}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTable:
    """[run]"""

    name: str = key(help="a name for people")
    output: str = key(is_path=True, help="OUT: a folder or an s3:// URL")
    seed: int = key(0, at_least=0, at_most=2**63 - 1, help="of the order of documents in shards")
    keep_text: bool = key(
        False,
        help="keep each page's text after parse, rejected ones too, with all personal data in it, under"
        " OUT/texts: other thresholds then need no parsing (sluice run --from OUT)",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """[[source]]"""

    name: str = key(help="letters, digits, dot, dash, underscore: a folder below shards/ and documents/")
    inputs: tuple[str, ...] = key(
        is_path=True,
        help="paths, globs, s3://, gs://, az:// or https:// URLs (credentials as ${SLUICE_SECRET_…}, from the"
        " environment), or a Common Crawl *.paths.gz list",
    )
    format: Literal["auto", "warc", "wet", "jsonl", "parquet", "file"] = key(
        "auto",
        help="auto: by the name of each file, or else its first bytes; warc is ARC and WACZ too; file: each file is"
        " a document, as .txt, .md and source files are in auto",
    )
    steps: tuple[str, ...] = key(DEFAULT_STEPS, help="in this order; your own step as package.module:name")
    limit: int | None = key(None, at_least=1, help="input files, the first by name")
    limit_documents: int | None = key(
        None,
        at_least=1,
        help="documents of each file, the first of it: what lies behind them is neither read nor counted",
    )
    language: str | None = key(
        None, help="of every text, as de: for steps without 'language', which else identifies each one's"
    )
    text_field: str = key(
        "text",
        help="of JSONL and Parquet rows; a dot leads into a nested field (meta.body), [] into the elements of"
        " a list, each a document of its own (files[].content)",
    )
    id_field: str | None = key(
        None, help="what names a row: a text or a number, 1.0 as 1 (id, or else the row's number)"
    )
    url_field: str | None = key(None, help="the page's address (url)")
    date_field: str | None = key(
        None,
        help="when it was captured: a date in ISO 8601 or RFC 2822, 20260131120000, a Unix time or a"
        " timestamp (captured_at, date)",
    )
    fragments: bool = key(
        False,
        help="URLs that differ in what stands behind # alone are different pages, as the posts of a thread"
        " are",
    )

    mime: tuple[str, ...] = key(
        (),
        help="of WARC, ARC and WACZ records: types that are documents besides HTML and text, as"
        " application/json, or text/css, which is none by itself; application/* is all that begin so",
    )

    @property
    def row_fields(self) -> RowFields:
        """Where rows of JSONL and Parquet files hold what."""
        return RowFields(text=self.text_field, id=self.id_field, url=self.url_field, date=self.date_field)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketTable:
    """[[bucket]]: one way of parting sources by what classifiers gave. Each part is a source of its own for
    shards and mixtures, <source>.<name>-<k>: k is the number of cuts that are no greater than a document's
    score, or its label."""

    name: str = key(help="letters, digits, '_' and '-'; the parts are <source>.<name>-0, -1, …")
    by: str | tuple[str, ...] = key(
        help="score_NAME of a classifier with reject = 'never'; several: the highest number of all; or"
        " label_NAME of one with label = '*'"
    )
    cuts: tuple[float, ...] = key((), help="the scores that begin parts 1, 2, …, rising")
    percentiles: tuple[float, ...] = key(
        (),
        above=0,
        at_most=100,
        help="the same at these percentiles of each score over all kept documents, exactly",
    )
    weigh: Literal["documents", "bytes", "tokens"] = key(
        "documents", help="what percentiles are shares of: documents, bytes of their UTF-8, or tokens"
    )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it parts by."""
        return (self.by,) if isinstance(self.by, str) else self.by

    @property
    def is_of_labels(self) -> bool:
        """Whether it parts by a label."""
        return self.columns[0].startswith(LABEL)


MOST_PERCENTILES: Final = 99
"""Cuts by percentile of one [[bucket]]: each takes half a megabyte while it is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsTable:
    """[limits]"""

    max_bad_records: float = key(
        0.01,
        at_least=0,
        at_most=1,
        help="share of records that may be bad (unreadable one by one, or turned down as <step>.error), and of"
        " the input's bytes that may be unread; a file that breaks off counts as a whole",
    )
    max_document_bytes: int = key(20_000_000, at_least=1, help="a longer payload is rejected as url.too_long")
    max_window_bytes: int = key(
        DEFAULT_WINDOW_BYTES,
        at_least=1 << 10,
        at_most=MAX_WINDOW_BYTES,
        help="memory that a file compressed with zstd or xz may take for its window (zstd --long=31:"
        " 2147483648)",
    )
    max_compression_ratio: int = key(
        DEFAULT_COMPRESSION_RATIO,
        at_least=1,
        help="what the documents of an input file may unfold to, as a multiple of its size (256 MiB always"
        " may); the rest of the file is unreadable",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgesTable:
    """[purges]"""

    honour: tuple[str, ...] = key(
        (), is_path=True, help="earlier outputs: what was purged there stays out here"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitKindTable:
    """[ray.stages.KIND]: what the units of one kind reserve, where it is not what [ray] says."""

    cpus: float | None = key(None, above=0, help="processors (ray.unit_cpus)")
    gpus: float | None = key(None, at_least=0, help="GPUs, for functions of your own that use one (none)")
    memory: int | None = key(None, at_least=0, help="bytes (ray.unit_memory)")
    resource: str | None = key(None, help="a custom resource (ray.unit_resource)")
    max_in_flight: int | None = key(None, at_least=0, help="units submitted at once (ray.max_in_flight)")


UNIT_KINDS: Final = ("read", "compare", "tokenize", "cut", "write", "join")
"""What the units of phases do, by the names of [ray.stages]: read and filter inputs; find duplicates
(dedup.engine = "ray_data"); tokenize; cut groups into shards; write shards; join and record the facts."""


TRIAL: Final = "-try"
"""How the output of a trial is called, behind the name of the recipe's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayTable:
    """[ray]: where it runs. Nothing here changes a byte of the result."""

    address: str = key(
        "local",
        help='"local", "auto" or "host:port"; "none": in this process, without Ray, a unit at a time: for'
        " small inputs",
    )
    num_cpus: int | None = key(None, at_least=1, help="processors to use (all)")
    retries: int = key(2, at_least=0, help="how often a unit whose worker died is tried again")
    unit_cpus: float = key(1.0, above=0, help="processors a unit of work reserves")
    unit_memory: int = key(0, at_least=0, help="bytes a unit of work reserves (0: none)")
    unit_resource: str = key("", help="a custom resource that units need, such as data")
    max_in_flight: int = key(0, at_least=0, help="units at work at once (0: as many as fit on the nodes)")
    grows: bool = key(
        False, help="nodes come when they are asked for: what none has yet is waited for, not refused"
    )
    stages: dict[str, UnitKindTable] = key(
        {}, choices=UNIT_KINDS, help="stage = what its units reserve instead"
    )

    @property
    def in_process(self) -> bool:
        """Whether units are carried out in this process, and Ray is neither started nor imported."""
        return self.address == IN_PROCESS

    def __post_init__(self) -> None:
        if unknown := sorted(self.stages.keys() - set(UNIT_KINDS)):
            raise RecipeError(
                f"ray.stages.{unknown[0]}: expected one of {', '.join(UNIT_KINDS)}; what a model's actors"
                " reserve stands in its [[classifier]] or [[step]]"
            )


@dataclass(frozen=True, kw_only=True)
class _BeforeSteps:
    """The tables that stand before those of steps: a base class, so that the fields have the recipe's order."""

    run: RunTable
    source: tuple[SourceTable, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRecipe(RecipeStepTables, _BeforeSteps):
    """A whole data recipe."""

    mistaken_for: ClassVar = (
        "train",
        "is a training recipe (it has [train]), which `sluice train` carries out: name a data recipe, with"
        " [[source]]",
    )

    dedup: DedupTable = key(DedupTable())
    bucket: tuple[BucketTable, ...] = key(())
    repeat: RepeatTable = key(RepeatTable())
    tokenize: TokenizeTable = key(TokenizeTable())
    limits: LimitsTable = key(LimitsTable())
    purges: PurgesTable = key(PurgesTable())
    ray: RayTable = key(RayTable())


def load(path: str | Path, overrides: Sequence[str] = ()) -> PipelineRecipe:
    """The data recipe at `path`, checked; RecipeError if it is wrong."""
    return checked(load_recipe(path, PipelineRecipe, overrides))


def trial_of(recipe: PipelineRecipe, num_documents: int) -> PipelineRecipe:
    """The recipe over the first documents of each file, so many at most, into an output beside the recipe's
    own: the whole run still finds its own empty."""
    sources = tuple(
        replace(source, limit_documents=min(source.limit_documents or num_documents, num_documents))
        for source in recipe.source
    )
    output = recipe.run.output.rstrip("/") + TRIAL
    return replace(recipe, run=replace(recipe.run, output=output), source=sources)


def recipe_of(out: Folder, overrides: Sequence[str] = ()) -> PipelineRecipe:
    """The resolved recipe that a finished output keeps, after `--set key=value` overrides."""
    raw = tomllib.loads(out.read("recipe.toml").decode())
    return checked(parse_table(PipelineRecipe, with_overrides(raw, overrides)))


def checked(recipe: PipelineRecipe) -> PipelineRecipe:
    """The recipe itself, if its sources make sense; else RecipeError."""
    if not recipe.source:
        raise RecipeError("source: a data recipe needs at least one [[source]] with a name and inputs")
    if len(recipe.source) > MAX_SOURCES:
        raise RecipeError(
            f"source: {len(recipe.source):,} [[source]] tables, expected at most {MAX_SOURCES:,}: put files"
            " of one kind into one source, or make several runs joined by dedup.against"
        )
    for source in recipe.source:
        if not _NAME.fullmatch(source.name):
            raise RecipeError(
                f"source.name = {source.name!r}: expected letters, digits, '.', '-' or '_', at most 100"
            )
        if not source.inputs:
            raise RecipeError(
                f"source.inputs of {source.name!r} is empty: name at least one file, glob or URL"
            )
        _check_fields(source)
    for name, value in (("run.name", recipe.run.name), ("run.output", recipe.run.output)):
        if not value.strip():
            raise RecipeError(f"{name} is empty: give a name, and as output a folder or an s3:// URL")
    check_output(recipe.run.output)
    places = {"run.output": (recipe.run.output,), "dedup.against": recipe.dedup.against}
    places |= {"purges.honour": recipe.purges.honour}
    places |= {f"source.inputs of {source.name!r}": source.inputs for source in recipe.source}
    for name, urls in places.items():
        for url in urls:
            if url.startswith("s3://") and "@" in url.removeprefix("s3://").partition("/")[0]:
                raise RecipeError(
                    f"{name} = {without_secrets(url)!r}: keys do not belong in an s3:// URL; set"
                    " AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
                )
    names = [source.name for source in recipe.source]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise RecipeError(
            f"source.name = {repeated[0]!r} is given twice: each source needs a name of its own"
        )
    return recipe


def check_output(output: str) -> None:
    """RecipeError where a run cannot leave its output at this place."""
    try:
        cannot_be = is_remote(output) and not output.startswith("s3://")
    except RecipeError as error:
        raise RecipeError(f"run.output = {error}") from error
    if cannot_be:
        raise RecipeError(
            f"run.output = {without_secrets(output)!r}: an output lies on disk or in s3://; gs:// and az://"
            " hold inputs and exports, https:// inputs"
        )
    if mark := not_for_tables(output):
        raise RecipeError(
            f"run.output = {without_secrets(output)!r}: lineage tables cannot lie there because of {mark!r}:"
            " name a place without it"
        )


def check_steps_of(recipe: PipelineRecipe) -> None:
    """RecipeError where a source's steps cannot be: their names and order, the classifiers' names, thresholds
    that the variant has no rule for or no page can meet, languages that the rules have no table for, texts
    without a language, a phone region that is none, keys that no source has the step for. No file is
    opened."""
    for source in recipe.source:
        check_steps(source.steps)
        if source.language is not None and "language" in source.steps:
            raise RecipeError(
                f"source.language of {source.name!r} is {source.language!r}, and its steps name 'language',"
                " which identifies each text's own: leave 'language' out of source.steps, or leave"
                " source.language out",
                "source.language",
            )
        if "quality" in source.steps and CATALOGUE["quality"].is_on(tables_of(recipe)):
            check_thresholds(recipe.quality)
            check_tables(recipe.quality)
            _check_language(source, recipe)
    _check_language_tables(recipe)
    check_min_scores(recipe.language)
    check_language_model(recipe.language)
    check_phone_region(recipe.pii)
    check_classifiers(recipe.classifier)
    check_step_tables(recipe.step, [source.steps for source in recipe.source])
    check_buckets(recipe)
    _check_repeats(recipe)
    _check_are_read(recipe)
    _check_contradictions(recipe)


def _check_language(source: SourceTable, recipe: PipelineRecipe) -> None:
    """RecipeError where the quality rules would meet a text without a language, or one that they have no
    table for."""
    if "language" in source.steps:
        try:
            check_languages(recipe.quality, recipe.language.kept)
        except RecipeError:
            if recipe.language.model in (
                BUNDLED,
                EXTENSION,
            ):  # labels at hand: a lacking one is the nearer fault
                known_labels(recipe.language)
            raise
    elif source.language is not None:
        check_languages(recipe.quality, (source.language,), source.name)
    elif not judges_any_language(recipe.quality):
        before = source.steps[: source.steps.index("quality")]
        own = next((name for name in before if ":" in name), None)
        if own is not None and recipe.quality.no_table != "refuse":
            return  # it may name each document's language; what it names none for follows quality.no_table
        also = (
            f', or quality.no_table = "pass" or "reject" if {own} names each document\'s language'
            if own
            else ""
        )
        raise RecipeError(
            f"source.steps of {source.name!r} has no 'language', and quality.rules judge a text by its"
            f" language: add"
            f" 'language' to source.steps before 'quality', or name the language of all its texts, as in"
            f' source.language = "en"{also}',
            "source.language",
        )


def _check_language_tables(recipe: PipelineRecipe) -> None:
    """RecipeError for a table of one language, of [quality] or [repeat], whose language never comes, where it
    is known which ones do."""
    judged = [source for source in recipe.source if "quality" in source.steps]
    _check_names("quality.language", recipe.quality.language, judged, recipe)
    check_one_each("repeat.language has tables for", recipe.repeat.by_language)
    _check_names("repeat.language", recipe.repeat.by_language, recipe.source, recipe)


def _check_names(
    where: str, names: Iterable[str], sources: Sequence[SourceTable], recipe: PipelineRecipe
) -> None:
    """RecipeError for a name among those of the tables [`where`.NAME] that is no language's, or that of one in
    which no text of the sources comes."""
    for name in names:
        if not _LANGUAGE.fullmatch(name) and name not in languages():
            raise RecipeError(
                f"{where}.{name}: expected the label of a language, such as de or deu_Latn{label_hint(name)}",
                f"{where}.{name}",
            )
    if any(":" in step for source in sources for step in source.steps):
        return  # it may name any language
    are_told = any("language" in source.steps for source in sources)
    kept, of_model = recipe.language.kept, labels_at_hand(recipe.language)
    if are_told and not kept and of_model is None:
        return  # the model's labels are in its file
    given = [source.language for source in sources if source.language is not None]
    come = set(map(language_code, (*((kept or of_model or ()) if are_told else ()), *given)))
    for name in names:
        if language_code(name) in come:
            continue
        if are_told and not kept:
            lack = (
                f"language.model = {recipe.language.model!r} has no label for it: give another, or leave the table"
                " out"
            )
        else:
            lack = (
                f"language.keep and source.language name {', '.join(sorted(come)) or 'none'}: add it there, or"
                " leave the table out"
            )
        raise RecipeError(
            f"{where}.{name} is given{label_hint(name)}, and no text in that language comes: {lack}",
            f"{where}.{name}",
        )


def _check_are_read(recipe: PipelineRecipe) -> None:
    """RecipeError for a key that asks for something where no source has the step that does it."""
    named = {step for source in recipe.source for step in source.steps}
    tables = tables_of(recipe)
    for step, spec in CATALOGUE.items():
        for name, value in spec.asks.items():
            if step not in named and value(tables):
                raise RecipeError(
                    f"{name} is given, and no source.steps names {step!r}, which reads it: add the step to a"
                    " source, or leave the key out",
                    name,
                )


def unread_keys(recipe: PipelineRecipe) -> list[str]:
    """A sentence for each key that is given and that nothing of the run reads: it may have been meant."""
    named = {step for source in recipe.source for step in source.steps}
    tables = tables_of(recipe)
    told = [
        f"{name} is given, and no source.steps names {step!r}, which reads it: it decides nothing."
        for step, spec in CATALOGUE.items()
        if step not in named
        for name, is_given in spec.own_keys.items()
        if is_given(tables)
    ]
    dedup = recipe.dedup
    told += _unread_of_dedup(recipe)
    told += [
        f"{name} is given, and {spec.is_off_where}: it decides nothing."
        for step, spec in CATALOGUE.items()
        if step in named and spec.is_off_where and not spec.is_on(tables)
        for name, is_given in spec.own_keys.items()
        if is_given(tables)
    ]
    if recipe.tokenize.off:
        read = {
            key
            for spec in CATALOGUE.values()
            for key in spec.recipe_keys
            if key not in spec.leaves_out(tables)
        }
        told += [
            f"{name} is given, and with tokenize.off nothing is tokenized: it decides nothing."
            for name in given_keys("tokenize", recipe.tokenize, but=("off",))
            if name not in read
        ]
    told += [
        f"source.fragments of {source.name!r} is given, and no source.steps names 'dedup.url', which reads it: it"
        " decides nothing."
        for source in recipe.source
        if source.fragments and not comparing(recipe).url
    ]
    if comparing(recipe).near and not dedup.verify and dedup.threshold != DedupTable().threshold:
        told.append(
            f"dedup.threshold = {dedup.threshold:g} decides nothing: with dedup.verify = false documents that"
            " share a band are near-duplicates."
        )
    if recipe.url.min_soft_words != UrlTable().min_soft_words and not recipe.url.block_soft_words:
        told.append(
            f"url.min_soft_words = {recipe.url.min_soft_words} decides nothing: url.block_soft_words names no list."
        )
    return told


def _unread_of_dedup(recipe: PipelineRecipe) -> Iterator[str]:
    """A sentence for each key of [dedup] whose comparison no source names. One that the table itself switches off
    is not missed."""
    compared, table = comparing(recipe), recipe.dedup
    for name in given_keys("dedup", table, but=("url", "exact", "near")):
        whole = name in ("dedup.keep", "dedup.engine", "dedup.against")
        readers = [
            each for each in (("url", "exact", "near") if whole else ("near",)) if getattr(table, each)
        ]
        if readers and not any(getattr(compared, each) for each in readers):
            steps = " or ".join(f"'dedup.{each}'" for each in readers)
            yield f"{name} is given, and no source.steps names {steps}, which reads it: it decides nothing."


def _check_contradictions(recipe: PipelineRecipe) -> None:
    """RecipeError for a key that another one of the recipe takes all meaning from."""
    for classifier in recipe.classifier:
        if not classifier.rejects and classifier.threshold is not None:
            raise RecipeError(
                f"classifier.threshold of {classifier.name!r} = {classifier.threshold:g}, and its reject ="
                ' "never" turns nothing down: leave the threshold out, or give reject = "above" or "below"',
                "classifier.threshold",
            )
    if recipe.pii.placeholders != "named" and (recipe.pii.action == "drop" or not recipe.pii.kinds):
        why = "pii.kinds are none" if not recipe.pii.kinds else 'pii.action = "drop" replaces nothing'
        raise RecipeError(
            f'pii.placeholders = "{recipe.pii.placeholders}", and {why}: leave one of them out',
            "pii.placeholders",
        )


def check_buckets(recipe: PipelineRecipe) -> None:
    """RecipeError where a [[bucket]] cannot be: its name, what it parts by, its cuts; and where sources that
    are parted have no shards, or could not be told from another source."""
    names = [table.name for table in recipe.bucket]
    known = columns_added_by(recipe)
    for table in recipe.bucket:
        if not _BUCKET.fullmatch(table.name):
            raise RecipeError(
                f"bucket.name = {table.name!r}: expected letters, digits, '_' and '-', at most 50",
                "bucket.name",
            )
        if names.count(table.name) > 1:
            raise RecipeError(f"bucket.name = {table.name!r} is given twice: each names parts of its own")
        _check_bucket(table, known)
    if recipe.bucket and not any("classifier" in source.steps for source in recipe.source):
        raise RecipeError(
            "[[bucket]] is given, and no source.steps names 'classifier', which gives what it parts by"
        )
    parted = [source.name for source in recipe.source if recipe.bucket or recipe.language.keep == "all"]
    if parted and recipe.tokenize.off:
        why = "[[bucket]]" if recipe.bucket else 'language.keep = "all"'
        raise RecipeError(f"{why} parts shards, and with tokenize.off there are none: leave one of them out")
    for name in parted:
        like = next((other.name for other in recipe.source if other.name.startswith(f"{name}.")), None)
        if like is not None:
            raise RecipeError(
                f"source.name = {like!r} reads as a part of the source {name!r}, which this recipe parts:"
                " give it another name"
            )


def repeated_bucket(recipe: PipelineRecipe) -> BucketTable | None:
    """The [[bucket]] by which documents are repeated, None where none is. RecipeError where the recipe names
    none that can be."""
    repeat = recipe.repeat
    if repeat.by != "bucket":
        return None
    names = [table.name for table in recipe.bucket]
    if not names:
        raise RecipeError(
            'repeat.by = "bucket", and the recipe has no [[bucket]]: add one of the scores of a [[classifier]],'
            " or repeat by cluster_size",
            "repeat.by",
        )
    if repeat.bucket is None and len(names) > 1:
        raise RecipeError(
            f'repeat.by = "bucket", and the recipe has several [[bucket]]: name one of'
            f" {', '.join(map(repr, names))} in repeat.bucket",
            "repeat.bucket",
        )
    wanted = names[0] if repeat.bucket is None else repeat.bucket
    if wanted not in names:
        raise RecipeError(
            f"repeat.bucket = {wanted!r}: expected the name of a [[bucket]], {' or '.join(map(repr, names))}",
            "repeat.bucket",
        )
    return recipe.bucket[names.index(wanted)]


def _check_repeats(recipe: PipelineRecipe) -> None:
    """RecipeError where documents cannot be repeated as the recipe says."""
    repeat = recipe.repeat
    check_repeat(repeat)
    if repeat.by is None:
        return
    if recipe.tokenize.off:
        raise RecipeError(
            "[repeat] says how often shards are read, and with tokenize.off there are none: leave one of them"
            " out",
            "repeat.by",
        )
    table = comparing(recipe)
    if repeat.by == "cluster_size" and not (table.url or table.exact or table.near):
        raise RecipeError(
            'repeat.by = "cluster_size", and no source compares documents, so that each is a cluster of one:'
            " add dedup.exact or dedup.near to source.steps and leave it on in [dedup]",
            "repeat.by",
        )
    bucket = repeated_bucket(recipe)
    if bucket is None:
        return
    if bucket.is_of_labels:
        raise RecipeError(
            f"repeat.bucket: {bucket.name!r} parts by a label, whose classes have no order: give its parts"
            " shares in [[train.mixture]], and repeat by a [[bucket]] of scores",
            "repeat.bucket",
        )
    highest = len(bucket.cuts or bucket.percentiles)
    if repeat.table and repeat.firsts[-1] > highest:
        raise RecipeError(
            f"repeat.table.{repeat.firsts[-1]}: [[bucket]] {bucket.name!r} has the parts 0 to {highest}",
            "repeat.table",
        )


def check_part(name: str, what: str) -> None:
    """RecipeError where a language or class, `what` it is, cannot stand in the name of a source's part: as a
    folder's, and told from its neighbours, which dots part."""
    if not _PART.fullmatch(name):
        raise RecipeError(
            f"{what} {name!r} cannot name a part of a source: expected ASCII letters, digits, '_' and '-', at"
            " most 80; take a model, or a step, that gives other names, or part sources by something else"
        )


def _check_bucket(table: BucketTable, known: Sequence[str]) -> None:
    where = f"bucket.by of {table.name!r}"
    if not table.columns:
        raise RecipeError(f"{where} is empty: name score_NAME or label_NAME of a classifier", "bucket.by")
    if len(set(table.columns)) < len(table.columns):
        raise RecipeError(f"{where} names a column twice: expected each once", "bucket.by")
    if table.weigh != "documents" and not table.percentiles:
        raise RecipeError(
            f"bucket.weigh of {table.name!r} = {table.weigh!r} says what percentiles are shares of, and it has"
            " none: leave bucket.weigh out, or give percentiles",
            "bucket.weigh",
        )
    for column in table.columns:
        if column not in known or not column.startswith((SCORE, LABEL)):
            there = ", ".join(name for name in known if name != LICENSE) or "none"
            raise RecipeError(
                f'{where} = {column!r}, and no step gives that column: a [[classifier]] with reject = "never"'
                f' gives score_<name>, and with label = "*" label_<name> (this recipe\'s: {there})',
                "bucket.by",
            )
    if table.is_of_labels:
        if len(table.columns) > 1 or table.cuts or table.percentiles:
            raise RecipeError(
                f"{where} is a label, whose classes are the parts: it goes with no other column, no cuts and"
                " no percentiles",
                "bucket.by",
            )
        return
    if any(column.startswith(LABEL) for column in table.columns):
        raise RecipeError(
            f"{where} names scores and labels together: expected scores, or one label", "bucket.by"
        )
    if bool(table.cuts) == bool(table.percentiles):
        given = "both cuts and percentiles" if table.cuts else "neither cuts nor percentiles"
        raise RecipeError(f"bucket {table.name!r} has {given}: expected one of them", "bucket.cuts")
    for name, values in (("cuts", table.cuts), ("percentiles", table.percentiles)):
        if list(values) != sorted(set(values)):
            raise RecipeError(
                f"bucket.{name} of {table.name!r} = {list(values)}: expected rising numbers", f"bucket.{name}"
            )
    if len(table.percentiles) > MOST_PERCENTILES:
        raise RecipeError(
            f"bucket.percentiles of {table.name!r} are {len(table.percentiles)}: expected at most"
            f" {MOST_PERCENTILES}",
            "bucket.percentiles",
        )


def columns_added_by(recipe: PipelineRecipe) -> tuple[str, ...]:
    """The columns that `documents` and the parts have besides, for this recipe (`tables.with_added`)."""
    scored = [table for table in recipe.classifier if not table.rejects]
    labelled = (LABEL + table.name for table in scored if table.is_argmax)
    license = (LICENSE,) if judges_code(recipe.quality) else ()
    return (*(SCORE + table.name for table in scored), *labelled, *license)


def tables_of(recipe: PipelineRecipe) -> StepTables:
    """What the recipe says of the steps."""
    same: dict[str, Any] = {field.name: getattr(recipe, field.name) for field in fields(RecipeStepTables)}
    return StepTables(
        max_document_bytes=recipe.limits.max_document_bytes,
        encoding=recipe.tokenize.encoding,
        end_of_text=recipe.tokenize.end_of_text,
        keep_measured=keeps_facts(recipe),
        **same,
    )


def _check_fields(source: SourceTable) -> None:
    language = source.language
    if language is not None and not _LANGUAGE.fullmatch(language) and language not in languages():
        raise RecipeError(
            f"source.language of {source.name!r} = {source.language!r}: expected the label of a language,"
            f" such as de{label_hint(language)}",
            "source.language",
        )
    named = {
        "text_field": source.text_field,
        "id_field": source.id_field,
        "url_field": source.url_field,
        "date_field": source.date_field,
    }
    for name, field in named.items():
        if field is not None and not all(part.replace("[]", "") for part in field.split(".")):
            raise RecipeError(
                f"source.{name} of {source.name!r} = {field!r}: expected the name of a field, or names joined"
                " by dots, each with [] behind it where the elements of a list are meant"
            )
        lists = None if field is None else field.rpartition("[]")[0]
        if field is not None and lists and not f"{source.text_field}.".startswith(f"{lists}[]."):
            raise RecipeError(
                f"source.{name} of {source.name!r} = {field!r} goes into the elements of a list, and"
                f" text_field = {source.text_field!r} does not: expected a field of the row, or of elements"
                " that the text lies in"
            )
    if source.format in ("warc", "wet") and source.row_fields != RowFields():
        raise RecipeError(
            f"source.format of {source.name!r} is {source.format!r}, whose records have no fields:"
            " text_field, id_field, url_field and date_field are for jsonl and parquet"
        )
    if source.format in ("jsonl", "parquet") and source.mime:
        raise RecipeError(
            f"source.format of {source.name!r} is {source.format!r}, whose rows have no types: mime is for warc"
        )
    for mime in source.mime:
        if not _MIME.fullmatch(mime):
            raise RecipeError(
                f"source.mime of {source.name!r} has {mime!r}: expected types in lower case without"
                " parameters, such as 'application/json' or 'text/*'"
            )


def comparing(recipe: PipelineRecipe) -> DedupTable:
    """[dedup] as the sources' `steps` leave it: a stage that none of them names is off. One that any of them
    names compares the documents of all: a corpus has one graph of duplicates."""
    named, table = {step for source in recipe.source for step in source.steps}, recipe.dedup
    return replace(
        table,
        url=table.url and "dedup.url" in named,
        exact=table.exact and "dedup.exact" in named,
        near=table.near and "dedup.near" in named,
    )


def keeps_facts(recipe: PipelineRecipe) -> bool:
    """Whether another run may start from this one's output: from its texts after parse, or where nothing was
    tokenized from its clean texts."""
    return recipe.run.keep_text or recipe.tokenize.off


def differing_keys(
    ours: dict[str, Any], theirs: dict[str, Any], ignore: frozenset[str] = frozenset({"ray"})
) -> list[str]:
    """The dotted keys in which two plain recipes differ, with both values; top-level tables in `ignore`
    aside."""
    mine, other = ({k: v for k, v in recipe.items() if k not in ignore} for recipe in (ours, theirs))
    return differing(mine, other, shown=_shown)


def _shown(where: str, value: Any) -> str:
    """A value of a plain recipe; a key that is not given has its default there."""
    table, _, name = where.rpartition(".")
    if value is None and table == "quality" and (defaults := threshold_defaults(name)):
        shown = {v: "by language" if default is None else f"{default:g}" for v, default in defaults.items()}
        return "not given (" + ", ".join(f"{variant}: {default}" for variant, default in shown.items()) + ")"
    return shown_value(where, value)
