"""A recipe's steps on texts and pages in memory, and on the batches of a Ray Dataset."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa

from lineage.ids import content_hash, row_doc_id, warc_doc_id
from lineage.recipe import RecipeError
from pipeline.inspect.explain.explanation import Explanation, explain, with_whole_ledger
from pipeline.phases.steps import step_tables
from pipeline.recipe.tables import PipelineRecipe
from sluice.messages import in_python
from sluice.running import load_recipe
from stages.chain import Chain, build_chain
from stages.document import Document, Edit, Finding, Outcome, Place, Rejection
from stages.reading.charsets.charset import decode_text
from stages.reading.warc.headers import charset_of, mime_type

_FINDING_COLUMNS = pa.schema([
    ("kept", pa.bool_()), ("stage", pa.string()), ("rule", pa.string()), ("value", pa.float64()),
    ("threshold", pa.float64()),
])  # fmt: skip
_LANGUAGE_COLUMNS = pa.schema([("language", pa.string()), ("language_score", pa.float64())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What the steps made of one text. `text` is as the last step left it. `decided_by` is the finding that
    turned the text down, None where it is kept; `findings` are all others that the recipe keeps
    (quality.ledger = "all")."""

    text: str
    decided_by: Finding | None
    language: str | None
    language_score: float | None
    edits: tuple[Edit, ...]
    findings: tuple[Finding, ...]

    @property
    def is_kept(self) -> bool:
        """Whether every step let the text pass."""
        return self.decided_by is None


class Steps:
    """The steps of a recipe's source, without those that compare documents with one another (identity and
    dedup).

    steps = Steps("recipes/crawl.toml"); steps("Some text.").is_kept

    `source` names one of the recipe's sources (the first). Models and lists are loaded here; RecipeError
    where one cannot be. Picklable: another process loads them again."""

    def __init__(
        self, recipe: str | Path | PipelineRecipe, *, source: str | None = None, overrides: Sequence[str] = ()
    ) -> None:
        loaded = load_recipe(recipe, overrides)
        sources = {table.name: table for table in loaded.source}
        name = source or loaded.source[0].name
        if name not in sources:
            raise RecipeError(f"source {name!r}: the recipe has {', '.join(map(repr, sources))}")
        self.source = name
        self._language = sources[name].language
        self._max_bytes = loaded.limits.max_document_bytes
        self._chain = build_chain(sources[name].steps, step_tables(loaded))

    def __repr__(self) -> str:
        steps = f"{len(self.stages)} steps, {', '.join(self.stages)}"
        return f"Steps(source {self.source!r}: {steps}; sluice {version('sluice')})"

    @property
    def stages(self) -> tuple[str, ...]:
        """The names of the steps, in order; those that the recipe switches off are left out."""
        return self._chain.stages

    def __call__(self, text: str, *, url: str | None = None) -> Judged:
        """What the steps make of one text."""
        return _judged(self._chain(self._of_text(text, url, 0)))

    @in_python
    def explain(self, text: str, *, url: str | None = None) -> Explanation:
        """Every step and rule on one text, past its rejections: what each measured against which threshold."""
        chain = build_chain(self.stages, with_whole_ledger(self._chain.tables))
        return explain(self._of_text(text, url, 0), chain)

    def judge(self, texts: Iterable[str], urls: Iterable[str | None] | None = None) -> Iterator[Judged]:
        """What the steps make of each text, in order; faster than one by one, a few hundred are held at a
        time.

        `urls` are those of the texts, as many. ValueError where there are fewer or more."""
        if urls is None:
            documents = (self._of_text(text, None, number) for number, text in enumerate(texts))
        else:
            pairs = enumerate(zip(texts, urls, strict=True))
            documents = (self._of_text(text, url, number) for number, (text, url) in pairs)
        yield from map(_judged, self._chain.run(([document] for document in documents), {}))

    def judge_html(self, page: bytes, *, url: str | None = None, content_type: str = "text/html") -> Judged:
        """What the steps make of a page as a server sent it: its main text is found first, by the recipe's
        [parse].

        `content_type` is the header, which may name the charset; what it calls text and not HTML is read as
        it is."""
        mime, hint = mime_type(content_type) or "", charset_of(content_type)
        is_html = "html" in mime or not mime.startswith("text/")
        fits = len(page) <= self._max_bytes
        text, charset = decode_text(page, hint, is_html=False) if fits and not is_html else ("", None)
        document = Document(
            doc_id=warc_doc_id("", url or "", page),
            source=self.source,
            place=Place(file="memory", offset=0, length=len(page)),
            raw_hash=content_hash(page),
            num_bytes=len(page),
            payload=page if fits else b"",
            is_html=is_html,
            content_type=content_type,
            charset_hint=hint,
            url=url,
            charset=charset,
            text=text,
            language=self._language,
        )
        return _judged(self._chain(document))

    def on_batches(self, text: str = "text", url: str | None = None, *, rejected: bool = False) -> BatchSteps:
        """The steps as a function of Arrow tables, as `map_batches` of a Ray Dataset takes it.

        `text` and `url` name the columns of texts (string) and addresses (none). The table comes back with
        the texts as the steps leave them and the columns `language` and `language_score`. Rows that are
        rejected are left out; with `rejected` they stay, and the columns kept, stage, rule, value and
        threshold say why."""
        return BatchSteps(self, text, url, rejected=rejected)

    def map(self, dataset: Any, text: str = "text", url: str | None = None, *, rejected: bool = False) -> Any:
        """A Ray Dataset with the steps applied to its texts; arguments as of `on_batches`. Lazy, as all of
        Ray Data."""
        return dataset.map_batches(self.on_batches(text, url, rejected=rejected), batch_format="pyarrow")

    def __reduce__(self) -> tuple[Callable[..., Steps], tuple[object, ...]]:
        # One load for each process: Ray unpickles the function of map_batches again and again.
        return _unpickled, (pickle.dumps((self.source, self._language, self._max_bytes, self._chain)),)

    def _of_text(self, text: str, url: str | None, number: int) -> Document:
        data = text.encode("utf-8", "surrogatepass")
        return Document(
            doc_id=row_doc_id(self.source, "memory", str(number), memoryview(data)),
            source=self.source,
            place=Place(file="memory", offset=number, length=1),
            raw_hash=content_hash(data),
            num_bytes=len(data),
            content_type="text/plain",
            url=url,
            charset="utf-8",
            text=text if len(data) <= self._max_bytes else "",
            language=self._language,
        )


@functools.lru_cache(maxsize=8)
def _unpickled(state: bytes) -> Steps:
    steps = Steps.__new__(Steps)
    chain: Chain
    steps.source, steps._language, steps._max_bytes, chain = pickle.loads(state)
    steps._chain = chain
    return steps


class BatchSteps:
    """`Steps.on_batches`: a function from an Arrow table to an Arrow table."""

    def __init__(self, steps: Steps, text: str, url: str | None, *, rejected: bool) -> None:
        self._steps, self._text, self._url, self._rejected = steps, text, url, rejected

    def __call__(self, batch: pa.Table) -> pa.Table:
        """The batch after the steps. KeyError names a column that it has not got."""
        for name in (self._text, self._url):
            if name is not None and name not in batch.column_names:
                raise KeyError(f"no column {name!r} in the batch: it has {', '.join(batch.column_names)}")
        texts = [text or "" for text in batch[self._text].to_pylist()]
        urls = None if self._url is None else batch[self._url].to_pylist()
        judged = list(self._steps.judge(texts, urls))
        column = batch.column_names.index(self._text)
        batch = batch.set_column(column, self._text, pa.array([found.text for found in judged], pa.string()))
        batch = _with_columns(
            batch, _LANGUAGE_COLUMNS, [(found.language, found.language_score) for found in judged]
        )
        if self._rejected:
            return _with_columns(batch, _FINDING_COLUMNS, [_reason(found) for found in judged])
        return batch.filter(pa.array([found.is_kept for found in judged], pa.bool_()))


def _with_columns(table: pa.Table, schema: pa.Schema, rows: list[tuple[Any, ...]]) -> pa.Table:
    """The table with more columns; one that it has under the same name is replaced."""
    for number, field in enumerate(schema):
        values = pa.array([row[number] for row in rows], field.type)
        if field.name in table.column_names:
            table = table.set_column(table.column_names.index(field.name), field, values)
        else:
            table = table.append_column(field, values)
    return table


def _reason(found: Judged) -> tuple[Any, ...]:
    by = found.decided_by
    return (
        (True, None, None, None, None) if by is None else (False, by.stage, by.rule, by.value, by.threshold)
    )


def _judged(outcome: Outcome) -> Judged:
    document = outcome.document if isinstance(outcome, Rejection) else outcome
    return Judged(
        text=document.text,
        decided_by=outcome.finding if isinstance(outcome, Rejection) else None,
        language=document.language,
        language_score=document.language_score,
        edits=document.edits,
        findings=document.findings + (outcome.findings if isinstance(outcome, Rejection) else ()),
    )
