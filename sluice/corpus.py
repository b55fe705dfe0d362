"""What is asked of a finished output or made of it: a check, the texts of a benchmark, a copy, other thresholds, and
what a recipe makes of one document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from lineage.index.output_index import check_finished, check_outside
from lineage.storage.folder import Folder
from pipeline.export.checkpoint import ExportedCheckpoint
from pipeline.export.checkpoint import export_checkpoint as checkpoint_of
from pipeline.export.process import ExportResult, corpus_export, on_ray
from pipeline.export.process import export as export_corpus
from pipeline.export.request import DEFAULT_FILE_DOCUMENTS
from pipeline.inspect import tune as tuning
from pipeline.inspect.explain.explaining import explain_given, explain_recorded
from pipeline.inspect.explain.explanation import Explanation
from pipeline.inspect.explain.given_document import named_document
from pipeline.inspect.scan import scan as scanning
from pipeline.inspect.scan.evidence import ScanEvidence, write_evidence
from pipeline.inspect.scan.scan import ScanRequest
from pipeline.inspect.tune import TuneResult
from pipeline.inspect.verification import VerifiedOutput, verify_output
from pipeline.phases.progress import ProgressReporter
from pipeline.recipe.load import recipe_of
from pipeline.recipe.tables import PipelineRecipe, RayTable
from sluice.history import DocId, id_of
from sluice.messages import in_python
from sluice.running import load_recipe


@in_python
def verify(
    out: str, *, retokenize: float | None = None, tokenizer: str | None = None, show_progress: bool = False
) -> VerifiedOutput:
    """Every checksum and balance of a finished output computed again, as `sluice verify` does: what does not hold is in
    `problems`, and is no exception.

    With `retokenize` this share of the texts is encoded again and compared with the shards; `tokenizer` is the
    tokenizer's file, where it lies elsewhere now. NotFinishedError where there is no output, RecipeError where the
    tokenizer is another."""
    return verify_output(
        Folder(out), ProgressReporter(quiet=not show_progress), retokenize=retokenize, tokenizer=tokenizer
    )


@in_python
def scan(
    out: str,
    against: str | Sequence[str],
    *,
    to: str | None = None,
    field: str = "text",
    ngram: Literal["13w", "8t"] = "13w",
    control: str | None = None,
    max_share: float | None = None,
    runs: Sequence[str] | None = None,
    show_progress: bool = False,
) -> ScanEvidence:
    """The documents that hold the texts of JSON-lines files, with the evidence, as `sluice scan` finds them; `purge`
    takes it by `listed`. With `to` it is written there too.

    `refused`: more of the documents than `max_share` were found, and a purge takes no such evidence. `runs`: with what
    training runs read of the items: those that the output knows, and those at these outputs; an empty list for the
    first alone."""
    if to is not None:
        check_outside("--to", to)
    request = ScanRequest(
        against=tuple(dict.fromkeys([against] if isinstance(against, str) else against)),
        field=field,
        ngram=ngram,
        control=control,
        max_share=max_share,
        runs=None if runs is None else tuple(runs),
    )
    evidence = scanning.scan(Folder(out), request, ProgressReporter(quiet=not show_progress))
    if to is not None:
        write_evidence(evidence, to)
    return evidence


@in_python
def export(
    out: str,
    to: str,
    *,
    format: str,
    sources: Sequence[str] = (),
    split: Mapping[str, float] | None = None,
    name: str | None = None,
    dtype: str = "auto",
    tokens: bool = False,
    file_documents: int = DEFAULT_FILE_DOCUMENTS,
    copy: bool = False,
    address: str = "local",
    num_cpus: int | None = None,
    show_progress: bool = False,
) -> ExportResult:
    """The kept documents of a finished output in another tool's format, at `to`, as `sluice export` writes them; the
    same call after a kill continues. `row` of what is given is what lineage records of it: a purge cleans the copy too.

    `split` gives shares by name, as {"train": 0.99, "test": 0.01}. `address` and `num_cpus` are as of `[ray]`; "none"
    works in this process. RecipeError where the call is wrong, HeldError where another process is at the folder."""
    shares = None if split is None else ",".join(f"{part}={share!r}" for part, share in split.items())
    asked = corpus_export(
        Folder(out),
        Folder(to),
        format=format,
        name=name,
        sources=sources,
        split=shares,
        dtype=dtype,
        tokens=tokens,
        file_documents=file_documents,
        copy=copy,
    )
    ray = RayTable(address=address, num_cpus=num_cpus)
    return export_corpus(asked, on_ray(ray, ProgressReporter(quiet=not show_progress)))


@in_python
def export_checkpoint(
    run_output: str,
    to: str,
    *,
    step: int | None = None,
    tokenizer: str | None = None,
    average: int = 1,
    ema: bool = False,
) -> ExportedCheckpoint:
    """A checkpoint of a training run, the newest or that of `step`, as a Hugging Face folder at `to`, as `sluice export
    RUN_OUTPUT` writes it. `tokenizer` is the file of the data's tokenizer, where its name leads nowhere. `average`: the
    mean of so many checkpoints, that one the last; `ema`: the moving average that `train.optimizer.ema` keeps.

    RecipeError where there is none or the tokenizer is another, CheckpointError where one is damaged."""
    return checkpoint_of(Folder(run_output), to, step=step, tokenizer=tokenizer, average=average, ema=ema)


@in_python
def tune(
    out: str,
    overrides: Sequence[str] = (),
    *,
    recipe: str | Path | PipelineRecipe | None = None,
    num_examples: int = 5,
) -> TuneResult:
    """What other thresholds would have kept, lost and gained, from the ledger of a finished output
    (quality.ledger = "all"), as `sluice tune` tells it. The thresholds are those of the output's own recipe, or of
    `recipe`, with `overrides` ("quality.min_words=80").

    RecipeError where the output has no whole ledger, or a key differs that the ledger cannot judge."""
    folder = Folder(out)
    check_finished(folder)
    if recipe is None:
        named = folder.at("recipe.toml"), recipe_of(folder, overrides)
    else:
        loaded = load_recipe(recipe, overrides)
        named = loaded.run.name if isinstance(recipe, PipelineRecipe) else str(recipe), loaded
    (answer,) = tuning.tune(out, [named], num_examples)
    return answer


@in_python
def explain(
    out: str,
    *,
    doc_id: DocId | None = None,
    url: str | None = None,
    overrides: Sequence[str] = (),
    source: str | None = None,
    warc: str | None = None,
) -> Explanation:
    """Every step and rule on a document of a finished output, named by its id or by its URL in any spelling, as `sluice
    explain OUT` shows it: the record is read again (from `warc`, where its file lies there now), and judged by the
    output's recipe with `overrides`.

    UnknownError where there is no such document, RefetchError where its record cannot be read again."""
    wanted = None if doc_id is None else id_of(doc_id)
    explanation, _ = explain_recorded(
        Folder(out), doc_id=wanted, url=url, overrides=overrides, source=source, warc=warc
    )
    return explanation


@in_python
def explain_file(
    recipe: str | Path | PipelineRecipe,
    *,
    file: str | None = None,
    text: str | None = None,
    warc: str | None = None,
    offset: int | None = None,
    row: int | None = None,
    element: int | None = None,
    url: str | None = None,
    source: str | None = None,
    overrides: Sequence[str] = (),
) -> Explanation:
    """Every step and rule of a recipe on a document on disk, as `sluice explain RECIPE` shows it: the page or row in
    `file`, the whole of the file `text`, or the record of `warc` at `offset`. `Steps.explain` takes texts in memory.

    RecipeError where there is no such file, or it is not what the call says."""
    named = named_document(file=file, text=text, warc=warc, offset=offset, row=row, element=element, url=url)
    return explain_given(load_recipe(recipe, overrides), named, source)
