"""The tokenizer of an output's shards, for `verify --retokenize`: the one that made them, or none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lineage.index.checksums import DamagedFileError
from lineage.index.output_index import read_index
from lineage.storage.folder import Folder
from lineage.verify.retokenize import Retokenize
from pipeline.phases.progress import ProgressReporter
from pipeline.report.tokens import tokenizer_of


@contextmanager
def retokenizing(
    out: Folder, share: float, file: str | None, reporter: ProgressReporter
) -> Iterator[Retokenize | None]:
    """What `verify` needs to encode this share of the texts again, by the tokenizer in `file` or else by the
    one that the recipe names; None where index.json is damaged, which `verify` names.

    RecipeError where the output holds no tokens, or where the tokenizer is not the one that made them."""
    try:
        index = read_index(out)
    except DamagedFileError:
        yield None
        return
    tokenizer = tokenizer_of(out, index, file)
    for line in tokenizer.lines():
        reporter.say(line)
    with reporter.phase("retokenize", share * sum(shard.num_documents for shard in index.shards)) as progress:
        yield Retokenize(
            encode_batch=tokenizer.encode_batch,
            decode=tokenizer.decode,
            keeps=tokenizer.keeps,
            share=share,
            progress=progress.step,
        )
