"""Each step that a source can have, described once: a row of CATALOGUE is all that the rest of the project
knows of it.

Chain, recipe, lineage, the identity of a run, `sluice tune` and the report read this table. A new step is a
row here, the field of its table in RecipeStepTables, and its module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Final

from lineage.purge.purged_sets import PurgedSets
from lineage.recipe import errors_about, key
from stages.document import Step
from stages.html.page import PageReader
from stages.libraries import MODULES, libraries
from stages.ngrams import Encode
from stages.pii.options import PiiTable
from stages.pii.step import PiiStep, pii_rules
from stages.quality.options import QualityTable
from stages.rights.options import RightsTable
from stages.rights.sites import site_files
from stages.rules import Rule
from stages.steps.classifier import ClassifierStep, ClassifierTable, LoadEncoder, classifier_rules
from stages.steps.decontaminate import DecontaminateStep, DecontaminateTable, decontaminate_rules
from stages.steps.language import EXTENSION, LanguageStep, LanguageTable, language_rules
from stages.steps.models.encoder_folder import encoder_files
from stages.steps.models.fasttext_model import BUNDLED
from stages.steps.parse import ParseStep, ParseTable, parse_rules
from stages.steps.prefilter import RULES as PREFILTER_RULES
from stages.steps.prefilter import PrefilterStep
from stages.steps.rights import RightsReader, rights_rules
from stages.steps.url import UrlStep, UrlTable, url_rules
from stages.steps.user.user_step import StepTable, UserStep


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeStepTables:
    """The recipe's tables of steps, by their names in it: a recipe is one of these."""

    url: UrlTable = key(UrlTable())
    rights: RightsTable = key(RightsTable())
    parse: ParseTable = key(ParseTable())
    language: LanguageTable = key(LanguageTable())
    quality: QualityTable = key(QualityTable())
    classifier: tuple[ClassifierTable, ...] = key(())
    step: tuple[StepTable, ...] = key(())
    decontaminate: DecontaminateTable = key(DecontaminateTable())
    pii: PiiTable = key(PiiTable())


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTables(RecipeStepTables):
    """Everything of a recipe that the steps of a chain need. Picklable."""

    max_document_bytes: int
    load_encoder: LoadEncoder | None = None
    encoding: str = "cl100k_base"
    end_of_text: str | None = None
    """The recipe's tokenizer (`tokenize.encoding`, `tokenize.end_of_text`): n-grams of tokens are its
    tokens."""
    purged: PurgedSets | None = None
    keep_measured: bool = False
    """Whether what the step quality measures goes along with each document."""

    @property
    def ledger(self) -> bool:
        """Whether every rule is measured and kept, and not only the first that rejects."""
        return self.quality.ledger == "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """What a step is made of: the tables, the pages that the steps of one chain share, and whether a function
    of the user's is in the chain."""

    tables: StepTables
    pages: PageReader
    has_user_steps: bool


Value = Callable[[StepTables], object]
"""The value of a key."""
Files = Callable[[StepTables], tuple[str, ...]]
"""The files that a key names, as given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """A step. One without `make` compares documents, and is no part of a chain.

    `purpose`: what it removes or does and what for, as the predicate of a sentence, for records of the
    processing. `is_on`: whether it does anything as its tables stand; else it is left out of the chain and of lineage.
    `is_off_where` says what of its tables switches it off, where its other keys then decide nothing.
    `modules`: those that decide, from which its libraries are derived. `recipe_keys`: the keys, or tables,
    that its outcome hangs on, less those that `leaves_out` names. `files`: for each key that names files,
    these. `asks`: keys that ask for what no other step does, so that they are refused where no source has it.
    `own_keys`: further keys that it alone reads, so that it is told where one is given and no source has it.
    `only_judges`: it gives the steps behind it nothing but a text that passed. `edits_text`: whether it may
    change that text. `rules`: all that may turn a document down
    as its tables stand, in the order of their verdicts. `figure`: the figure of a record that counts what it turns
    down (name and description), where a form asks for that of this step alone."""

    purpose: str = ""
    make: Callable[[StepInputs], Step] | None = None
    is_on: Callable[[StepTables], bool] = lambda tables: True
    is_off_where: str = ""
    modules: tuple[str, ...] = ()
    recipe_keys: tuple[str, ...] = ()
    leaves_out: Callable[[StepTables], tuple[str, ...]] = lambda tables: ()
    files: Mapping[str, Files] = field(default_factory=dict)
    asks: Mapping[str, Value] = field(default_factory=dict)
    own_keys: Mapping[str, Value] = field(default_factory=dict)
    only_judges: bool = False
    edits_text: Callable[[StepTables], bool] = lambda tables: False
    rules: Callable[[StepTables], Sequence[Rule]] = lambda tables: ()
    figure: tuple[str, str] | None = None


def _url_step(inputs: StepInputs) -> Step:
    tables = inputs.tables
    reader = RightsReader(tables.rights, inputs.pages) if tables.rights.record else None
    return UrlStep(tables.url, tables.max_document_bytes, rights=reader, ledger=tables.ledger)


def _site_files(tables: StepTables) -> tuple[str, ...]:
    with errors_about("rights.robots"):
        return site_files(tables.rights.robots)


def _quality_step(inputs: StepInputs) -> Step:
    from stages.quality.step import quality_step  # spaCy's rules take a moment that help need not wait for

    if inputs.has_user_steps:
        import spacy  # noqa: F401 - the whole of it, with torch: a function of the user's may need that
    return quality_step(inputs.tables.quality, keep_measured=inputs.tables.keep_measured)


def _quality_edits(tables: StepTables) -> bool:
    from stages.quality.step import edits_texts

    return edits_texts(tables.quality)


def _quality_rules(tables: StepTables) -> tuple[Rule, ...]:
    from stages.quality.step import quality_rules

    return quality_rules(tables.quality)


def _load_encode(tables: StepTables) -> Encode:
    from stages.tokens.tokenizer import load_tokenizer

    return load_tokenizer(tables.encoding, tables.end_of_text).encode_batch


def _model_files(tables: StepTables) -> tuple[str, ...]:
    with errors_about("classifier.model"):
        return tuple(
            file
            for table in tables.classifier
            for file in (encoder_files(table.model) if table.is_encoder else (table.model,))
        )


_URL_LISTS: Final[dict[str, Files]] = {
    "url.block_hosts": lambda tables: tables.url.block_hosts,
    "url.block_urls": lambda tables: tables.url.block_urls,
    "url.block_words": lambda tables: tables.url.block_words,
    "url.block_soft_words": lambda tables: tables.url.block_soft_words,
    "url.block_subwords": lambda tables: tables.url.block_subwords,
}
_SITE_FILES: Final[dict[str, Files]] = {"rights.robots": _site_files}
_TOKENIZER_KEYS: Final = ("tokenize.encoding", "tokenize.end_of_text")

_ALL_KEPT: Final = ((), "all")
"""Values of language.keep that turn no text down: with source.language they hold without the step."""


def given_keys(name: str, table: Any, but: Iterable[str] = ()) -> list[str]:
    """The keys of a recipe's table [name] that have not their default values."""
    usual = type(table)()
    return [
        f"{name}.{each.name}"
        for each in fields(table)
        if each.name not in but and getattr(table, each.name) != getattr(usual, each.name)
    ]


def _keys_of_table(name: str, table: type[Any], but: Iterable[str] = ()) -> dict[str, Value]:
    """For each key of a table but some: whether it is given."""

    def is_given(key: str) -> Value:
        return lambda tables: key in given_keys(name, getattr(tables, name))

    return {
        key: is_given(key)
        for each in fields(table)
        if each.name not in but
        for key in (f"{name}.{each.name}",)
    }


def _language_key(name: str) -> Value:
    """Whether a key of [language] is given that the step prefilter does not read."""

    def is_given(tables: StepTables) -> bool:
        value = getattr(tables.language, name)
        is_read = name in ("keep", "model") and tables.language.prefilter
        return not is_read and value not in (getattr(LanguageTable(), name), *_ALL_KEPT)

    return is_given


CATALOGUE: Final[dict[str, StepSpec]] = {
    "url": StepSpec(
        purpose="removes pages that block lists or reserved rights exclude, and records that are too long or not whole,"
        " to keep unwanted sites and broken pages out",
        make=_url_step,
        modules=("stages.steps.url",),
        recipe_keys=("url", "rights", "limits.max_document_bytes"),
        leaves_out=lambda tables: () if tables.rights.record else ("rights",),
        files={**_URL_LISTS, **_SITE_FILES},
        asks={
            **_URL_LISTS,
            **_SITE_FILES,
            "url.truncated": lambda tables: tables.url.truncated == "reject",
            "rights.deny": lambda tables: tables.rights.deny,
        },
        own_keys={
            "url.match": lambda tables: tables.url.match != UrlTable().match,
            **_keys_of_table("rights", RightsTable, but=("deny", "robots")),
        },
        rules=lambda tables: (
            *url_rules(tables.url, tables.max_document_bytes),
            *rights_rules(tables.rights),
        ),
    ),
    "prefilter": StepSpec(
        purpose="removes pages in languages that are not wanted before their text is taken out, to save work",
        make=lambda inputs: PrefilterStep(inputs.tables.language, inputs.pages, ledger=inputs.tables.ledger),
        is_on=lambda tables: tables.language.prefilter and bool(tables.language.kept),
        modules=("stages.steps.prefilter",),
        recipe_keys=(
            "language.keep",
            "language.model",
            "parse.max_tags",
            "parse.max_depth",
            "parse.max_options",
            "parse.timeout_seconds",
        ),
        asks={"language.prefilter": lambda tables: tables.language.prefilter},
        rules=lambda tables: PREFILTER_RULES,
    ),
    "parse": StepSpec(
        purpose="takes the main text out of each page and removes pages without one, to keep menus and the like out",
        make=lambda inputs: ParseStep(inputs.tables.parse, inputs.pages, ledger=inputs.tables.ledger),
        modules=("stages.steps.parse",),
        recipe_keys=("parse", "limits.max_document_bytes"),
        rules=lambda tables: parse_rules(tables.parse, tables.max_document_bytes),
    ),
    "language": StepSpec(
        purpose="removes texts in languages that are not wanted or not recognised with certainty, to have the"
        " wanted languages alone",
        make=lambda inputs: LanguageStep(inputs.tables.language, ledger=inputs.tables.ledger),
        modules=("stages.steps.language",),
        recipe_keys=(
            "language.keep",
            "language.min_score",
            "language.min_scores",
            "language.score_table",
            "language.model",
        ),
        files={
            "language.model": lambda tables: (
                () if tables.language.model in (BUNDLED, EXTENSION) else (tables.language.model,)
            )
        },
        only_judges=True,
        own_keys={
            f"language.{name}": _language_key(name)
            for name in ("keep", "min_score", "min_scores", "score_table", "model")
        },
        rules=lambda tables: language_rules(tables.language),
    ),
    "quality": StepSpec(
        purpose="removes texts that are no running prose by published rules, to keep lists, spam and damaged text out",
        make=_quality_step,
        is_on=lambda tables: (
            bool(tables.quality.rules) or any(own.rules for own in tables.quality.language.values())
        ),
        modules=("stages.quality.step",),
        recipe_keys=("quality",),
        leaves_out=lambda tables: ("quality.ledger",),  # it changes what is recorded, and no verdict
        only_judges=True,
        own_keys=_keys_of_table("quality", QualityTable, but=("ledger", "language")),
        edits_text=_quality_edits,
        rules=_quality_rules,
    ),
    "classifier": StepSpec(
        purpose="removes texts that a classifier scores below or above a threshold, to have the texts that it is for",
        make=lambda inputs: ClassifierStep(
            inputs.tables.classifier, ledger=inputs.tables.ledger, load_encoder=inputs.tables.load_encoder
        ),
        is_on=lambda tables: bool(tables.classifier),
        modules=("stages.steps.classifier",),
        recipe_keys=("classifier",),
        files={"classifier.model": _model_files},
        asks={"classifier": lambda tables: tables.classifier},
        rules=lambda tables: classifier_rules(tables.classifier),
    ),
    "decontaminate": StepSpec(
        purpose="removes texts that hold test questions of benchmarks, so that tests of the model stay valid",
        make=lambda inputs: DecontaminateStep(
            inputs.tables.decontaminate, partial(_load_encode, inputs.tables), ledger=inputs.tables.ledger
        ),
        is_on=lambda tables: bool(tables.decontaminate.against),
        is_off_where="decontaminate.against names no file",
        modules=("stages.steps.decontaminate", "stages.tokens.tokenizer"),
        recipe_keys=("decontaminate", *_TOKENIZER_KEYS),
        leaves_out=lambda tables: () if tables.decontaminate.ngram.endswith("t") else _TOKENIZER_KEYS,
        files={"decontaminate.against": lambda tables: tables.decontaminate.against},
        asks={"decontaminate.against": lambda tables: tables.decontaminate.against},
        only_judges=True,
        own_keys=_keys_of_table("decontaminate", DecontaminateTable, but=("against",)),
        rules=lambda tables: decontaminate_rules(tables.decontaminate),
        figure=("decontaminated", "of the rejected, those that held test questions of benchmarks"),
    ),
    "pii": StepSpec(
        purpose="replaces personal data and secrets by placeholders, or removes what holds them, so that the model"
        " does not learn them",
        make=lambda inputs: PiiStep(inputs.tables.pii, ledger=inputs.tables.ledger),
        is_on=lambda tables: bool(tables.pii.kinds),
        modules=("stages.pii.step",),
        recipe_keys=("pii",),
        only_judges=True,
        own_keys=_keys_of_table("pii", PiiTable),
        edits_text=lambda tables: tables.pii.action == "replace",
        rules=lambda tables: pii_rules(tables.pii),
    ),
    "identity": StepSpec(purpose="removes records that came in twice, so that none counts twice"),
    "dedup.url": StepSpec(purpose="removes further copies of a page, so that none counts twice"),
    "dedup.exact": StepSpec(purpose="removes texts that equal another, so that none is learnt by heart"),
    "dedup.near": StepSpec(
        purpose="removes texts that nearly equal another, so that none is learnt by heart"
    ),
}
"""Every stage by name, in the order a document meets them."""

STAGES: Final = tuple(CATALOGUE)

CORPUS_STAGES: Final = tuple(name for name, step in CATALOGUE.items() if step.make is None)
"""Stages that compare documents: they stand in `steps` after all others, and are not part of a chain.
`identity` always runs, since ids name documents; the others run over the whole corpus where the `steps` of
any source name them."""


SHAPING: Final = (*MODULES, *(name for name, step in CATALOGUE.items() if step.modules))
"""Everything that shapes a byte of the result: the steps, and how records are read, tokenized and
compared."""


def libraries_of(name: str) -> tuple[str, ...]:
    """The distributions that one of SHAPING runs on, by name."""
    return libraries(*(MODULES[name] if name in MODULES else CATALOGUE[name].modules))


def spec_of(name: str) -> StepSpec:
    """The step of this name, which may be a function of the user's: one may do anything to a text."""
    if ":" not in name:
        return CATALOGUE[name]
    return StepSpec(
        make=lambda inputs: UserStep(
            name, next((table for table in inputs.tables.step if table.name == name), None)
        ),
        files={
            "step.files": lambda tables: tuple(file for table in tables.step for file in table.files.values())
        },
        edits_text=lambda tables: True,
    )


def rules_of(tables: StepTables, stages: Iterable[str] = STAGES) -> dict[str, Rule]:
    """Every rule by its full name of those of these stages that are on, in the order a document meets them.
    RecipeError where [quality] sets a threshold that its variant does not have."""
    specs = (CATALOGUE[stage] for stage in stages if stage in CATALOGUE)
    return {rule.name: rule for spec in specs if spec.is_on(tables) for rule in spec.rules(tables)}


def files_of(tables: StepTables) -> dict[str, str]:
    """Every file that these tables name, as given, and the key that names it: their content shapes the result
    as much as the recipe does."""
    named = {
        key: files(tables)
        for step in (*CATALOGUE.values(), spec_of("user:step"))
        for key, files in step.files.items()
    }
    return {file: key for key, files in named.items() for file in files}
