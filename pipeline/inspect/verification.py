"""`sluice verify`: what does not hold in a finished output, and which purges are proved."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.storage.lock import holder_of
from lineage.store.lookup import Lookup
from lineage.store.rows import PurgeRow
from lineage.verify.output import verify
from lineage.verify.problems import Problem, Verification
from pipeline.inspect import hooks
from pipeline.inspect.retokenize import retokenizing
from pipeline.phases.progress import ProgressReporter


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedOutput:
    """What was found. `problems` say what does not hold and where, the first 1,000 of them; `has_more`: there are
    more. `notes` are worth reading and no failure. `purges` are proved: nothing is wrong, so no token or text of
    theirs is left. `num_retokenized`: the documents whose texts were encoded again."""

    problems: tuple[Problem, ...]
    has_more: bool
    notes: tuple[Problem, ...]
    purges: tuple[PurgeRow, ...]
    num_files: int
    num_documents: int
    num_tokens: int
    num_retokenized: int

    @property
    def ok(self) -> bool:
        """Whether all of it holds."""
        return not self.problems

    def as_json(self) -> dict[str, object]:
        """As `sluice verify --json` gives it."""
        return {"ok": self.ok} | asdict(self)


def verify_output(
    out: Folder, reporter: ProgressReporter, *, retokenize: float | None = None, tokenizer: str | None = None
) -> VerifiedOutput:
    """Every checksum and balance of a finished output; with `retokenize` this share of the texts is compared with
    the tokens, by the tokenizer in the file `tokenizer` or else by the one that the recipe names.

    NotFinishedError where there is no index, RecipeError where the tokenizer is not the one that made the
    shards."""
    if tokenizer is not None and retokenize is None:
        raise RecipeError("--tokenizer is for --retokenize: nothing else looks at it")
    if retokenize is None:
        found = verify(out, hooks.verify_hooks(out))
    else:
        if not 0 < retokenize <= 1:
            raise RecipeError(f"--retokenize {retokenize:g}: expected a share above 0 and up to 1")
        with retokenizing(out, retokenize, tokenizer, reporter) as encoder:
            found = verify(out, hooks.verify_hooks(out), retokenize=encoder)
    return VerifiedOutput(
        problems=found.problems,
        has_more=found.has_more,
        notes=(*found.notes, *_held(out, found)),
        purges=_proved(out, found),
        num_files=found.num_files,
        num_documents=found.num_documents,
        num_tokens=found.num_tokens,
        num_retokenized=found.num_retokenized,
    )


def _held(out: Folder, found: Verification) -> list[Problem]:
    """A note that another process is at the output, where something does not hold: it may be what that is
    changing."""
    if not found.problems or (holder := holder_of(out)) is None:
        return []
    return [Problem("output.held", out.url, f"it is held by {holder}: verify again when that has ended")]


def _proved(out: Folder, found: Verification) -> tuple[PurgeRow, ...]:
    """The purges that are proved: all that were carried out, where nothing is wrong; none else."""
    if found.problems:
        return ()
    purges = (row for row in Lookup(out).purges() if row.num_documents)
    return tuple(sorted(purges, key=lambda row: (row.at, row.purge_id)))
