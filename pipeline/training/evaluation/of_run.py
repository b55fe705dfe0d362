"""The evaluations of a training run (`[[train.eval]]`) as tokens in its output, and a scan of its data for their items:
the trainer has no tokenizer, and reads no text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lineage.index.output_index import read_index
from lineage.recipe import errors_about
from lineage.storage.folder import Folder
from pipeline.phases.progress import ProgressReporter
from pipeline.recipe.tables import RayTable
from pipeline.report.tokens import tokenizer_of
from pipeline.terminal import counted
from pipeline.training.evaluation.formats import read_evaluation
from pipeline.training.evaluation.prepare import EvaluationSet, digest_of, prepare
from pipeline.training.evaluation.read_before import DataPlace, LookedFor, scan_before
from pipeline.training.opened import ModelTokenizer
from stages.tokens.tokenizer import Tokenizer
from trainer.attempts import attempts
from trainer.checkpoint.store import checkpoint_folder, complete_checkpoints
from trainer.evaluation.prepared import Prepared, prepared_name, publish_prepared, read_prepared
from trainer.evaluation.scanned import publish_scanned, read_scanned
from trainer.evidence.chain import first_setup
from trainer.evidence.origin import origin_of
from trainer.options import TrainRecipe
from trainer.provenance.setup import Origin
from trainer.recipe_tables.evaluation import EvalTable


def prepare_evaluations(recipe: TrainRecipe, reporter: ProgressReporter, say: Callable[[str], None]) -> None:
    """Write the inputs of the run's evaluations into its output; those of the same files, tokenizer and data are
    kept. RecipeError for files that ask nothing, a question that is longer than train.seq_len, and a tokenizer that is
    not at hand."""
    if not recipe.train.eval:
        return
    out = Folder(recipe.train.outs[0].out)
    with errors_about("train.eval"):
        tokenizer = tokenizer_of(out, read_index(out))
    for table in recipe.train.eval:
        _prepare(recipe, table, tokenizer, reporter, say)


def _prepare(
    recipe: TrainRecipe,
    table: EvalTable,
    tokenizer: Tokenizer,
    reporter: ProgressReporter,
    say: Callable[[str], None],
) -> None:
    output = Folder(recipe.train.output)
    evaluation = EvaluationSet(
        name=table.name,
        files=table.files,
        kind=None if table.kind == "auto" else table.kind,
        shots=table.shots,
        shots_from=table.shots_from,
    )
    with errors_about("train.eval"):
        items = read_evaluation(evaluation.files, evaluation.kind)
        prepared = _known(output, evaluation, tokenizer, recipe.train.seq_len)
        if prepared is None:
            text = ModelTokenizer(tokenizer=tokenizer, prefix_id=tokenizer.eot_id)
            prepared = prepare(evaluation, items, text, recipe.train.seq_len)
            publish_prepared(output, prepared)
    line = f"Evaluation {table.name}: {counted(len(items), 'item')}"
    if table.scan:
        asked = LookedFor(
            texts=tuple(item.about for item in items),
            digest=prepared.about.texts,
            reporter=reporter,
            ray=RayTable(address=recipe.ray.address, num_cpus=recipe.ray.num_cpus),
        )
        places = [DataPlace(out=entry.out, prefix=entry.prefix) for entry in recipe.train.outs]
        known = read_scanned(output, asked.digest)
        scanned = scan_before(asked, places, _origin(recipe), known)
        if scanned != known:
            publish_scanned(output, scanned)
        held = {span.item for one in scanned.outputs for span in one.spans}
        line += f", of which the data holds {len(held):,}"
        if scanned.before:
            line += f", and the weights that the run begins with had read {len(scanned.before):,}"
        for each in scanned.unknown:
            say(f"warning: evaluation {table.name}: not known: {each}")
    say(line)


def _known(output: Folder, evaluation: EvaluationSet, tokenizer: Tokenizer, seq_len: int) -> Prepared | None:
    """What is prepared already for the same items, tokenizer and length; None where it is not."""
    if not output.exists(prepared_name(evaluation.name)):
        return None
    found = read_prepared(output, evaluation.name)
    now = replace(
        found.about,
        digest=digest_of(evaluation),
        files=evaluation.files,
        shots=evaluation.shots,
        shots_from=evaluation.shots_from,
        tokenizer=tokenizer.hash,
        seq_len=seq_len,
    )
    return found if now == found.about else None


def _origin(recipe: TrainRecipe) -> Origin | None:
    """The weights that the run begins, or began, with; None for those of the seed."""
    output = Folder(recipe.train.output)
    begun = attempts(output)
    saved = complete_checkpoints(checkpoint_folder(recipe), begun)
    if saved:
        setup = first_setup(output, saved[-1])
        return None if setup is None else setup.origin
    return None if recipe.train.init_from is None else origin_of(recipe.train.init_from)
