"""The earlier output that a run starts from: what it keeps, whether it serves this recipe, and where ways
change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import pyarrow as pa

from lineage.index.output_index import Index, read_index
from lineage.index.parsed_texts import ParsedTexts, read_parsed_texts
from lineage.purge.execution import unfinished_purge
from lineage.recipe import RecipeError
from lineage.secrets import recordable
from lineage.storage.folder import Folder
from lineage.storage.places import same_place
from lineage.store.delta import append, read_table, state
from lineage.store.tables import SCHEMAS
from pipeline.inputs.files import Input
from pipeline.phases.phase import RunState
from pipeline.plan import RunPlan, held_by, make_plan, output_identity
from pipeline.recipe.load import recipe_of
from pipeline.recipe.tables import PipelineRecipe, tables_of
from pipeline.refilter.step_keys import (
    StepKey,
    first_changed,
    only_thresholds_differ,
    step_keys,
    tokenizing_key,
    what_differs,
)
from pipeline.results.run_summary import read_summary
from pipeline.units.placed_tokens import MAX_DOCUMENTS, PlacedTokens
from stages.libraries import READING
from stages.steps.catalogue import spec_of
from stages.tokens.tokenizer import is_at_hand


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRun:
    """A finished output with the texts that it kept; `held` is what it held when it was opened."""

    out: Folder
    name: str
    recipe: PipelineRecipe
    identity: Mapping[str, Any]
    index: Index
    texts: ParsedTexts
    held: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where the documents of a source begin: `stages` are the steps of its chain, of which the first
    `num_unchanged` are those of the earlier run. A document that these let pass starts before `stages[first]`
    with the text after parse; `first` may be past the last step. Where `is_unchanged`, the earlier run had
    these steps and no others, and its clean texts are those of this run. Only these are there where it kept
    no texts after parse (`has_texts`).

    `settled` is the place from which on the steps are those of the earlier run again: a document that gets
    there as it did then, and survived it, ends with the clean text that it had. Past the last step where
    nothing is to be had of that. `by_measures`: the one changed step is quality, in thresholds alone, so that
    what was measured then tells what it says now."""

    stages: tuple[str, ...]
    num_unchanged: int
    first: int
    is_unchanged: bool
    has_texts: bool
    settled: int
    by_measures: bool

    @property
    def parse(self) -> int:
        """The place of parse: the text after it is what is kept."""
        return self.stages.index("parse")

    @property
    def takes_survivors(self) -> bool:
        """Whether clean texts of the earlier run may be those of this one."""
        return self.is_unchanged or self.by_measures or self.settled < len(self.stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refiltering:
    """What a run starts from, and where the documents of each source of its plan start."""

    earlier: EarlierRun
    starts: tuple[Start, ...]


def open_earlier(url: str) -> EarlierRun:
    """The output that --from names.

    NotFinishedError if its run is not finished; RecipeError if it kept no texts, or keeps none any more."""
    out = Folder(url)
    index, texts = read_index(out), read_parsed_texts(out)
    if texts is None:
        raise RecipeError(
            f"--from {out.url}: it was made without run.keep_text, so it holds no text of a page that was"
            " rejected: run its recipe with run.keep_text = true into a new output first"
        )
    if texts.removed is not None:
        raise RecipeError(
            f"--from {out.url}: its parsed texts were removed by purge {texts.removed}: run the recipe from its inputs"
        )
    if (unfinished := unfinished_purge(out)) is not None:
        raise RecipeError(
            f"--from {out.url}: purge {unfinished} did not end: call the same `sluice purge` again first"
        )
    summary = read_summary(out)
    return EarlierRun(
        out=out,
        name=summary.name,
        recipe=recipe_of(out),
        identity=summary.identity,
        index=index,
        texts=texts,
        held=held_by(index),
    )


def with_earlier_purges(recipe: PipelineRecipe, earlier: EarlierRun) -> PipelineRecipe:
    """The recipe as it is carried out: what was purged from the earlier output stays out, as purges.honour
    says it."""
    out, honoured = earlier.out, recipe.purges.honour
    if same_place(Folder(recipe.run.output), out):
        raise RecipeError(f"--from {out.url} is run.output itself: a run needs an output of its own")
    dropped = sorted(set(earlier.identity["recipe"]["purges"]["honour"]) - set(recordable(list(honoured))))
    if dropped:
        raise RecipeError(
            f"purges.honour names {dropped[0]!r} no more, which {out.url} honoured: what it kept out has no"
            " text there; name it again, or run the recipe from its inputs"
        )
    if not state(out, "purges").num_rows or out.url in {Folder(name).url for name in honoured}:
        return recipe
    return replace(recipe, purges=replace(recipe.purges, honour=(*honoured, out.url)))


def plan_from(recipe: PipelineRecipe, earlier: EarlierRun) -> RunPlan:
    """The plan of a run over the parsed texts; RecipeError for a source that the earlier run did not have."""
    known = [source.name for source in earlier.recipe.source]
    inputs: list[list[tuple[Input, ...]]] = []
    probes: dict[str, object] = {}
    for source in recipe.source:
        if source.name not in known:
            raise RecipeError(
                f"source.name = {source.name!r}: {earlier.out.url} has no such source, only"
                f" {', '.join(known)}"
            )
        of_source = {
            label: probe
            for label, probe in sorted(earlier.identity["inputs"].items())
            if label.startswith(f"{source.name}/")
        }
        probes |= of_source
        # A part may have been read from several small files: each takes as many of the inputs, which are in its order.
        labels = iter(of_source)
        inputs.append(
            [
                tuple(
                    Input(
                        source=source.name,
                        index=part.part,
                        name=label.partition("/")[2],
                        url=earlier.out.at(part.file),
                        size=of_source[label]["bytes"],
                    )
                    for label in islice(labels, part.num_files)
                )
                for part in earlier.texts.of_source(source.name)
            ]
        )
    return make_plan(recipe, inputs, probes, earlier.out.url)


def starts_of(plan: RunPlan, earlier: EarlierRun) -> tuple[Start, ...]:
    """Where the documents of each source of the plan start.

    RecipeError where parsed texts cannot serve: reading or a step up to parse is another, what parse measured
    was not kept, or a function of the user's would have to see the page."""
    if plan.recipe.run.keep_text and not earlier.texts.kept:
        raise RecipeError(
            f"run.keep_text = true, and {earlier.out.url} kept no texts after parse: leave it out, or run the"
            " recipe from its inputs"
        )
    if plan.recipe.quality.ledger == "all" and earlier.recipe.quality.ledger != "all":
        raise RecipeError(
            f'quality.ledger = "all", and {earlier.out.url} was made with "first": what the steps up to parse'
            " measured is not there; run the recipe from its inputs"
        )
    return tuple(_start(source.name, plan, earlier) for source in plan.recipe.source)


def tokens_to_copy(plan: RunPlan, earlier: EarlierRun) -> PlacedTokens | None:
    """The tokens of the earlier run, where they are those of the same texts in this one: it had the same
    tokenizer, lies on a disk, where a document's tokens are a read away, and is small enough for their places
    to be held. None also where a tokenizer for the other texts might not be had when it is needed."""
    table, index, out = plan.recipe.tokenize, earlier.index, earlier.out
    if table.off or not index.has_tokens or not index.shards or not is_at_hand(table.encoding):
        return None
    if out.is_remote or sum(shard.num_documents for shard in index.shards) > MAX_DOCUMENTS:
        return None
    if tokenizing_key(plan.identity) != tokenizing_key(earlier.identity):
        return None
    return PlacedTokens(out=out.url, content_fingerprint=index.content_fingerprint, tokenizer=index.tokenizer)


def _start(source: str, plan: RunPlan, earlier: EarlierRun) -> Start:
    ours = step_keys(plan.recipe, plan.identity, source)
    theirs = step_keys(earlier.recipe, earlier.identity, source)
    num_same = first_changed(ours, theirs)
    names = tuple(one.stage for one in ours)
    if num_same <= names.index("parse"):
        if ours[num_same].stage == theirs[num_same].stage:
            why = what_differs(ours[num_same], plan.identity, earlier.identity, source)
        else:
            why = f"in its place was {theirs[num_same].stage}"
        stage = ours[num_same].stage
        raise RecipeError(
            f"--from {earlier.out.url}: {'the reading' if stage == READING else f'the step {stage}'} of"
            f" source {source!r} is not as it was there ({why}), and only the text after parse is kept: leave"
            f" it as it was ({earlier.out.at('recipe.toml')} has every setting of that run), or run the"
            " recipe from its inputs, without --from"
        )
    stages, num_unchanged = names[1:], num_same - 1  # without READING
    # Clean texts out of which repeats were cut are not those that the steps gave.
    are_cut = earlier.recipe.dedup.inside.is_on
    is_unchanged = num_same == len(ours) == len(theirs) and not are_cut
    first = num_unchanged
    if not is_unchanged:
        tables = tables_of(plan.recipe)
        behind_parse = range(stages.index("parse") + 1, num_unchanged)
        # An edited text is not kept between steps: the first step that edits runs again although it is unchanged.
        first = next((i for i in behind_parse if spec_of(stages[i]).edits_text(tables)), num_unchanged)
    if are_cut and not earlier.texts.kept:
        raise RecipeError(
            f"--from {earlier.out.url}: it was made without run.keep_text, and dedup.inside cut repeats out of its"
            " clean texts: run the recipe from its inputs"
        )
    if not is_unchanged and not earlier.texts.kept:
        if num_unchanged < len(stages):
            why = f"and the step {stages[first]} of source {source!r} would have to judge others"
        else:
            why = f"behind the step {theirs[num_same].stage}, which source {source!r} has no more"
        raise RecipeError(
            f"--from {earlier.out.url}: it was made without run.keep_text, so only its clean texts are there,"
            f" {why}: run the recipe from its inputs"
        )
    of_user = [stage for stage in stages[first:] if ":" in stage]
    if of_user:
        raise RecipeError(
            f"source.steps of {source!r}: {of_user[0]!r} stands after parse and may look at the page, of"
            " which --from has only the text: run the recipe from its inputs"
        )
    encoders = [table for table in plan.recipe.classifier if table.is_encoder]
    if "classifier" in stages[first:] and encoders:
        raise RecipeError(
            f"source.steps of {source!r}: {encoders[0].stage} is an encoder, which a run from an earlier"
            " output does not ask again: run the recipe from its inputs"
        )
    settled, by_measures = len(stages), False
    if not is_unchanged and not are_cut and plan.recipe.quality.ledger == "first":
        settled, by_measures = _settled(source, plan, earlier, ours[1:], theirs[1:])
        by_measures = by_measures and stages[first] == "quality"
    return Start(
        stages=stages,
        num_unchanged=num_unchanged,
        first=first,
        is_unchanged=is_unchanged,
        has_texts=earlier.texts.kept,
        settled=settled,
        by_measures=by_measures,
    )


def _settled(
    source: str, plan: RunPlan, earlier: EarlierRun, ours: Sequence[StepKey], theirs: Sequence[StepKey]
) -> tuple[int, bool]:
    """`settled` and `by_measures` of a source with these steps."""
    stages = [one.stage for one in ours]
    if stages != [one.stage for one in theirs]:
        return len(stages), False
    changed = [i for i, (mine, other) in enumerate(zip(ours, theirs, strict=True)) if mine.key != other.key]
    settled = changed[-1] + 1
    if [stages[i] for i in changed] == ["quality"] and only_thresholds_differ(
        (plan.recipe, plan.identity), (earlier.recipe, earlier.identity), source
    ):
        return settled, True
    # A changed step that edits would give another text on, and a classifier or a function of the user's other
    # fields.
    tables = (tables_of(plan.recipe), tables_of(earlier.recipe))
    hands_on_what_it_got = all(
        spec.only_judges and not any(spec.edits_text(each) for each in tables)
        for spec in (spec_of(stages[i]) for i in changed)
    )
    return (settled if hands_on_what_it_got else len(stages)), False


def record_reuse(run: RunState, refiltering: Refiltering) -> None:
    """Record in lineage which steps an earlier run had run, once the tables are committed."""
    append(run.out, "reused_steps", _reused_steps(run.plan, refiltering), f"from:{run.plan.key}")


def check_unpurged(earlier: EarlierRun) -> None:
    """RecipeError if the earlier output was purged from since it was opened."""
    now = output_identity(earlier.out.url, "--from")
    if now != earlier.held:
        raise RecipeError(
            f"--from {earlier.out.url} was purged from while it was read (it held {earlier.held}, now {now}):"
            " nothing was finished; run into a new output"
        )


def _reused_steps(plan: RunPlan, refiltering: Refiltering) -> pa.Table:
    """Rows of `reused_steps`: of a step that the earlier run had taken over itself, the run that ran it."""
    earlier = refiltering.earlier
    there = {
        (row["source"], row["stage"]): row for row in read_table(earlier.out, "reused_steps").to_pylist()
    }
    rows = []
    for source, start in zip(plan.recipe.source, refiltering.starts, strict=True):
        for position, stage in enumerate(start.stages[: start.first]):
            row = {
                "out": earlier.out.url,
                "run": earlier.name,
                "version": earlier.index.version,
                "content_fingerprint": earlier.index.content_fingerprint,
                **there.get((source.name, stage), {}),
            }
            rows.append(row | {"source": source.name, "stage": stage, "position": position})
    return pa.Table.from_pylist(rows, schema=SCHEMAS["reused_steps"])
