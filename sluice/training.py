"""Train on finished outputs, sample from a model, certify what it no longer holds, check that, and compare two."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lineage.storage.folder import Folder
from pipeline.phases.progress import ProgressReporter
from pipeline.training import certify as certifying
from pipeline.training.evaluation import evaluate as evaluating
from pipeline.training.opened import open_text_model
from pipeline.training.sampling import SampledText, Sampling, decoding_of, device_named
from pipeline.training.train import train_recipe
from sluice.messages import in_python
from sluice.running import load_train_recipe
from sluice.shown import shown_table
from trainer.attempts import attempts
from trainer.checkpoint.store import checkpoint_folder, complete_checkpoints
from trainer.evaluation.result import EvaluationResult
from trainer.evidence.check import Line
from trainer.evidence.compare import CheckpointComparison
from trainer.options import TrainRecipe
from trainer.recovery.options import ReplayOptions
from trainer.run.preflight import so_far


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """A complete checkpoint of a run: `step` steps are done in it."""

    step: int
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRun:
    """What a training run has come to: `step` of `num_steps` steps are done, `loss` is that of the last one that
    counted. `checkpoints` are those that are kept, by step. `purges` are those that the call was to forget, and
    `certificate` names the file that certifies it. `lines` are what the call told: epochs, warnings, where it went
    back to. A line for each step is in metrics.jsonl under `output`."""

    name: str
    output: str
    step: int
    num_steps: int
    num_tokens: int
    loss: float | None
    checkpoints: tuple[SavedCheckpoint, ...]
    purges: tuple[str, ...]
    certificate: str | None
    lines: tuple[str, ...]

    @property
    def finished(self) -> bool:
        """Whether all steps are done; else the same call continues."""
        return self.step >= self.num_steps

    def _repr_html_(self) -> str:
        loss = "" if self.loss is None else f", loss {self.loss:.4f}"
        caption = (
            f"Training run {self.name} in {self.output}: {self.step:,} of {self.num_steps:,} steps,"
            f" {self.num_tokens:,} tokens{loss}"
        )
        note = "" if self.certificate is None else f"Certificate: {self.certificate}"
        rows = [(each.step, each.folder) for each in self.checkpoints]
        return shown_table(caption, ("checkpoint", "folder"), rows, note)


@in_python
def train(
    recipe: str | Path | TrainRecipe,
    overrides: Sequence[str] = (),
    *,
    from_step: int | None = None,
    forget: str | Sequence[str] | None = None,
    restart: bool = False,
    show_progress: bool = False,
) -> TrainedRun:
    """Carry a training recipe out, or continue it from its newest checkpoint, as `sluice train` does: on Ray, or in
    this process with "ray.address=none". `overrides` ("train.steps=200") change keys of the recipe.

    `from_step` goes back to the checkpoint of so many steps. `forget` ("all", or ids of purges) goes back before the
    first reading of the purged documents, repeats the steps since then, and writes a certificate; with `restart` from
    the first weights where no checkpoint is early enough. Ctrl-C saves a checkpoint and ends the run: the same call
    continues. Progress goes to stderr; warnings always do.

    RecipeError where recipe or call are wrong, NotFinishedError where train.data is no output, CheckpointError where
    a checkpoint is damaged or does not fit, TrainingStoppedError where going on does not help, FencedOutError where
    another start of the run has taken over, CertificateError where a replay cannot be certified."""
    file = None if isinstance(recipe, TrainRecipe) else str(recipe)
    loaded = load_train_recipe(recipe, overrides)
    reporter, lines = ProgressReporter(quiet=not show_progress), list[str]()

    def say(line: str) -> None:
        lines.append(line)
        reporter.say(line)

    wanted = (forget,) if isinstance(forget, str) else forget
    replay = ReplayOptions(
        from_step=from_step, forget=None if wanted is None else tuple(wanted), restart=restart
    )
    ended = train_recipe(loaded, replay, say, file=file, shows_progress=show_progress)
    result, table = ended.result or so_far(loaded), loaded.train
    folder = checkpoint_folder(loaded)
    step = 0 if result is None else result.step
    return TrainedRun(
        name=loaded.run.name,
        output=Folder(table.output).url,
        step=step,
        num_steps=table.steps,
        num_tokens=step * table.global_batch * table.seq_len,
        loss=None if result is None else result.loss,
        checkpoints=tuple(
            SavedCheckpoint(step=each.step, folder=folder.at(each.name))
            for each in complete_checkpoints(folder, attempts(Folder(table.output)))
        ),
        purges=ended.purges,
        certificate=ended.certificate,
        lines=tuple(lines),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedPurge:
    """A purge of a certificate: how many documents it took from `out`, and how often the run read them, first in
    `first_step`; `applied` of these readings are in the weights, which is 0."""

    purge_id: str
    out: str
    num_documents: int
    readings: int
    first_step: int | None
    applied: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCovered:
    """Something that may still hold the documents, and why."""

    kind: str
    what: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The certificate of a run's checkpoint: it holds nothing of what the purges took. `weights_digest` is of weights
    and moments; `inexact` says why another layout or machine may give other bits; `read` names the folders that it was
    made from. `file` and `page` are None where it was not written."""

    run: str
    output: str
    checkpoint: str
    step: int
    purges: tuple[CertifiedPurge, ...]
    weights_digest: str
    not_covered: tuple[NotCovered, ...]
    inexact: tuple[str, ...]
    read: str
    file: str | None
    page: str | None

    def _repr_html_(self) -> str:
        caption = f"Certificate of {self.checkpoint} of run {self.run} in {self.output}"
        rows = [
            (each.purge_id, each.num_documents, each.readings, each.first_step, each.applied)
            for each in self.purges
        ]
        note = "".join(f"Not covered: {each.kind} {each.what}: {each.why}. " for each in self.not_covered)
        columns = ("purge", "documents", "readings", "first in step", "applied")
        return shown_table(caption, columns, rows, note)


@in_python
def certify(
    run_output: str, *, purges: str | Sequence[str] = (), outs: Sequence[str] = (), to: str | None = None
) -> Certificate:
    """The certificate of a run's newest checkpoint, as `sluice certify` makes it: for these purges, or all, of the
    outputs that the run read; `outs` says where they lie now. With `to`, a name that ends in .json, it is written
    there, and its page beside it.

    CertificateError where the checkpoint read what the purges took (`train` with `forget` does the steps since again)
    or the run's records contradict each other, CheckpointError where a file is damaged, RecipeError where it is no
    run's output or no such purge is recorded."""
    wanted = (purges,) if isinstance(purges, str) else purges
    made = certifying.make_certificate(Folder(run_output), wanted, outs, to)
    row = made.row
    return Certificate(
        run=row["run"],
        output=row["output"],
        checkpoint=row["checkpoint"]["name"],
        step=row["checkpoint"]["step"],
        purges=tuple(
            CertifiedPurge(
                purge_id=each["purge_id"],
                out=each["out"],
                num_documents=each["num_documents"],
                readings=each["readings"],
                first_step=each["first_step"],
                applied=each["applied"],
            )
            for each in row["purges"]
        ),
        weights_digest=row["weights"]["digest"],
        not_covered=tuple(NotCovered(**gap) for gap in row["not_covered"]),
        inexact=tuple(row["inexact"]),
        read=made.certified.read,
        file=to,
        page=made.page,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedCertificate:
    """What a certificate says, a line each, and whether it holds."""

    file: str
    lines: tuple[Line, ...]

    @property
    def holds(self) -> bool:
        """Whether every line does."""
        return all(line.holds for line in self.lines)

    def _repr_html_(self) -> str:
        caption = f"Check of {self.file}: {'every line holds' if self.holds else 'it does NOT hold'}"
        rows = [("yes" if line.holds else "NO", line.what, line.why) for line in self.lines]
        return shown_table(caption, ("holds", "line", "why not"), rows)


@in_python
def check_certificate(file: str, run_output: str, *, outs: Sequence[str] = ()) -> CheckedCertificate:
    """Every line of a certificate found again in the run's output and in what it read, as `sluice certify --check`
    does; `outs` says where the outputs that the run read lie now. What does not hold is in `lines`, and is no
    exception.

    CertificateError where the file is no certificate, RecipeError where it cannot be read or there is no run."""
    lines = certifying.check_certificate(file, Folder(run_output), outs)
    return CheckedCertificate(file=file, lines=tuple(lines))


@in_python
def compare_runs(run_output: str, other: str) -> CheckpointComparison:
    """Whether the newest checkpoint of a run and that of the same step of another are equal to the last bit, weights
    and moments, as `sluice certify --against` says.

    RecipeError where one has no such checkpoint or both are one, CheckpointError where a file is damaged."""
    return certifying.compare_runs(Folder(run_output), Folder(other))


@in_python
def sample(
    run_output: str,
    prompt: str,
    *,
    step: int | None = None,
    tokens: int = 128,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    tokenizer: str | None = None,
    dtype: Literal["float64", "float32", "bfloat16"] | None = None,
    device: str | None = None,
) -> SampledText:
    """The text that a model puts behind a prompt, as `sluice sample` does: the newest checkpoint of a run, that of
    `step`, or a folder of safetensors. Temperature 0 takes the likeliest token each time; otherwise equal seeds give
    equal texts. `tokenizer` is its file, where the model does not bring it.

    RecipeError where there is no such model, its tokenizer is not at hand, or the prompt is empty or longer than the
    model's rows, CheckpointError where a file is damaged."""
    asked = decoding_of(temperature, top_p, seed)
    model = open_text_model(
        run_output, step=step, tokenizer=tokenizer, device=device_named(device), dtype=dtype
    )
    sampling = Sampling(model, prompt, tokens, asked)
    deque(sampling, maxlen=0)
    assert sampling.result is not None
    return sampling.result


@in_python
def evaluate(
    place: str,
    on: str | Sequence[str],
    *,
    kind: Literal["text", "choices"] | None = None,
    shots: int = 0,
    shots_from: str | None = None,
    step: int | None = None,
    tokenizer: str | None = None,
    scan: bool = True,
    show_progress: bool = False,
) -> EvaluationResult:
    """The score of a run's checkpoint (the newest, or that of `step` steps), or of a folder of safetensors, as
    `sluice eval` gives it: on all items and on `clean`, those that the model had not read in training; `seen` are the
    others. `on`: JSONL or Parquet files of texts, or of questions with choices. Without `scan` the training data is not
    looked at, and `clean` and `seen` are None.

    RecipeError for files that ask nothing, a question that is longer than the model's context, a place that holds no
    model, or a tokenizer that is not at hand; CheckpointError where a file of the model is damaged."""
    files = (on,) if isinstance(on, str) else tuple(on)
    asked = evaluating.evaluation_of(files, kind=kind, shots=shots, shots_from=shots_from)
    reporter = ProgressReporter(quiet=not show_progress)
    return evaluating.evaluate(place, asked, reporter, step=step, tokenizer=tokenizer, scans=scan).result
