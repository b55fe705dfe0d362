"""The tables of a data recipe, and what they say together. Each package declares its own tables; this composes
them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import ClassVar, Final, Literal

from lineage.recipe import (
    IN_PROCESS,
    RecipeError,
    key,
)
from lineage.store.column_names import INDEXED, LABEL, LICENSE, RIGHTS, SCORE
from stages.chain import DEFAULT_STEPS
from stages.dedup.options import DedupTable
from stages.quality.judged_languages import judges_code
from stages.reading.options import (
    DEFAULT_COMPRESSION_RATIO,
    DEFAULT_WINDOW_BYTES,
    MAX_WINDOW_BYTES,
    Format,
    RowFields,
)
from stages.steps.catalogue import RecipeStepTables, StepTables
from stages.tokens.repeats import RepeatTable
from stages.tokens.tokenizer import TokenizeTable


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTable:
    """[run]"""

    name: str = key(help="a name for people")
    output: str = key(is_path=True, help="OUT: a folder or an s3:// URL")
    seed: int = key(0, at_least=0, at_most=2**63 - 1, help="seed of the order of documents in shards")
    keep_text: bool = key(
        False,
        help="keep each page's text after parse under OUT/texts, rejected pages and personal data "
        "included; runs with other thresholds then need no parsing (sluice run --from OUT)",
    )
    unit_bytes: int = key(
        512 << 20,
        at_least=0,
        help="read a larger input file in parts of about this many bytes, on all workers (0: never); the output"
        " has the same bytes",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """[[source]]"""

    name: str = key(help="letters, digits, dot, dash, underscore: a folder below shards/ and documents/")
    inputs: tuple[str, ...] = key(
        (),
        is_path=True,
        unless="index",
        help="paths, globs, s3://, gs://, az://, hf:// or https:// URLs (credentials as ${SLUICE_SECRET_…}, from the"
        " environment), or a Common Crawl *.paths.gz list",
    )
    format: Format = key(
        "auto",
        help="auto: by file name, or else by the first bytes; warc includes ARC and WACZ; file: each"
        " file is one document, as for .txt, .md and source files in auto; wikipedia: an XML dump of a MediaWiki site;"
        " pdf, epub: each file is one document, as for .pdf and .epub in auto; latex: sources of papers, as files, tar"
        " archives or tar archives of such, which auto does not look for",
    )
    namespaces: tuple[int, ...] = key(
        (0,), help="namespaces of a MediaWiki dump whose pages are read; redirects are never read"
    )
    index: str | tuple[str, ...] | None = key(
        None,
        is_path=True,
        help="instead of inputs: a columnar index of WARC records in Common Crawl's form (Parquet files, a folder"
        " of them, or a cc-index-table.paths.gz list); the records that where selects are fetched by range",
    )
    where: str | None = key(
        None, help="SQL condition over the columns of the index, such as content_languages LIKE '%dan%' (all)"
    )
    root: str | None = key(
        None,
        is_path=True,
        help="folder or URL of the WARC files that the index names (what stands before /cc-index/ in index, or"
        " https://data.commoncrawl.org)",
    )
    sample: float | None = key(
        None,
        above=0,
        at_most=1,
        help="share of the records that where selects to read, by a hash seeded with run.seed (1)",
    )
    steps: tuple[str, ...] = key(
        DEFAULT_STEPS, help="steps in this order; your own step as package.module:name"
    )
    limit: int | None = key(
        None,
        at_least=1,
        help="read only this many input files, the first by name; with index, only this many records, the first"
        " by a hash seeded with run.seed",
    )
    limit_documents: int | None = key(
        None,
        at_least=1,
        help="read only the first documents of each file; the rest is neither read nor counted",
    )
    language: str | None = key(
        None, help="language of every text, such as de, if the steps do not include 'language'"
    )
    text_field: str = key(
        "text",
        help="text field of JSONL and Parquet rows; a dot leads into a nested field (meta.body), [] "
        "into a list, whose elements are separate documents (files[].content)",
    )
    id_field: str | None = key(
        None, help="id of a row: a text or a number, 1.0 as 1 (id, or else the row's number)"
    )
    url_field: str | None = key(None, help="the page's address (url)")
    date_field: str | None = key(
        None,
        help="when it was captured: a date in ISO 8601 or RFC 2822, 20260131120000, a Unix time or a"
        " timestamp (captured_at, date)",
    )
    fragments: bool = key(
        False,
        help="treat URLs that differ only after # as different pages, such as posts of a thread",
    )

    mime: tuple[str, ...] = key(
        (),
        help="MIME types of WARC, ARC and WACZ records to read besides HTML and plain text, such as "
        "application/json or text/css; application/* matches all with this prefix",
    )

    @property
    def indexes(self) -> tuple[str, ...]:
        """The entries of `index`; none where the source has inputs."""
        return (self.index,) if isinstance(self.index, str) else self.index or ()

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
        help="score_NAME of a classifier with reject = 'never' (of several scores the highest part "
        "counts), or label_NAME of one with label = '*'"
    )
    cuts: tuple[float, ...] = key((), help="ascending scores at which parts 1, 2, … begin")
    percentiles: tuple[float, ...] = key(
        (),
        above=0,
        at_most=100,
        help="cuts at these exact percentiles of each score over all kept documents",
    )
    weigh: Literal["documents", "bytes", "tokens"] = key(
        "documents", help="unit of percentiles: documents, bytes of UTF-8, or tokens"
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
        help="maximum share of bad records (unreadable, or rejected as <step>.error), and of unread "
        "input bytes; a truncated file counts as a whole",
    )
    max_document_bytes: int = key(20_000_000, at_least=1, help="a longer payload is rejected as url.too_long")
    max_window_bytes: int = key(
        DEFAULT_WINDOW_BYTES,
        at_least=1 << 10,
        at_most=MAX_WINDOW_BYTES,
        help="maximum window memory of a file compressed with zstd or xz (zstd --long=31: 2147483648)",
    )
    max_compression_ratio: int = key(
        DEFAULT_COMPRESSION_RATIO,
        at_least=1,
        help="maximum size of the documents of an input file, as a multiple of its size (256 MiB are"
        " always allowed); the rest of the file is unreadable",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgesTable:
    """[purges]"""

    honour: tuple[str, ...] = key(
        (), is_path=True, help="earlier outputs; documents purged there are kept out of this run"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitKindTable:
    """[ray.stages.KIND]: what the units of one kind reserve, where it is not what [ray] says."""

    cpus: float | None = key(None, above=0, help="processors (ray.unit_cpus)")
    gpus: float | None = key(None, at_least=0, help="GPUs, for your own functions that use one (none)")
    memory: int | None = key(None, at_least=0, help="bytes (ray.unit_memory)")
    resource: str | None = key(None, help="a custom resource (ray.unit_resource)")
    max_in_flight: int | None = key(
        None, at_least=0, help="maximum number of concurrent units (ray.max_in_flight)"
    )


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
        help='"local", "auto" or "host:port"; "none": without Ray, in this process, one unit at a '
        "time, for small inputs",
    )
    num_cpus: int | None = key(None, at_least=1, help="processors to use (all)")
    retries: int = key(2, at_least=0, help="how often a unit whose worker died is tried again")
    unit_cpus: float = key(1.0, above=0, help="processors a unit of work reserves")
    unit_memory: int = key(0, at_least=0, help="bytes a unit of work reserves (0: none)")
    unit_resource: str = key("", help="a custom resource that units need, such as data")
    max_in_flight: int = key(
        0, at_least=0, help="maximum number of concurrent units (0: as many as fit on the nodes)"
    )
    grows: bool = key(
        False,
        help="the cluster adds nodes on demand: wait for resources that no node has yet, instead of refusing",
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


def columns_of_documents(recipe: PipelineRecipe) -> tuple[str, ...]:
    """The columns that `documents` has besides, for this recipe (`tables.with_added`)."""
    return (*columns_added_by(recipe), *(RIGHTS if recipe.rights.record else ()))


def columns_added_by(recipe: PipelineRecipe) -> tuple[str, ...]:
    """Those of them that the parts have too."""
    scored = [table for table in recipe.classifier if not table.rejects]
    labelled = (LABEL + table.name for table in scored if table.is_argmax)
    license = (LICENSE,) if judges_code(recipe.quality) else ()
    indexed = INDEXED if any(source.indexes for source in recipe.source) else ()
    return (*(SCORE + table.name for table in scored), *labelled, *license, *indexed)


def tables_of(recipe: PipelineRecipe) -> StepTables:
    """What the recipe says of the steps."""
    return StepTables(
        max_document_bytes=recipe.limits.max_document_bytes,
        encoding=recipe.tokenize.encoding,
        end_of_text=recipe.tokenize.end_of_text,
        keep_measured=keeps_facts(recipe),
        **{field.name: getattr(recipe, field.name) for field in fields(RecipeStepTables)},
    )


def effective_dedup(recipe: PipelineRecipe) -> DedupTable:
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
