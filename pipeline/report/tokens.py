"""How each source's documents lie in its shards: their first tokens, their ends, tokens that stand for the
unknown.

A beginning-of-text token that a tokenizer puts before every document, an end that is missing, a script that
the vocabulary does not know: each is seen here before a model learns it. The shards themselves are read; the
documents of a shard are in the order of a keyed hash, so its beginning is a random sample of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from lineage.index.blocks import BLOCK_BYTES, BLOCK_TOKENS, TOKEN_BYTES
from lineage.index.output_index import Index, Shard
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from pipeline.plan import installed_version
from pipeline.recipe.load import recipe_of
from pipeline.report.data import FirstToken, TokensRow
from pipeline.results.rows import read_rows
from stages.libraries import TOKENIZING
from stages.steps.catalogue import libraries_of
from stages.tokens.tokenizer import Tokenizer, load_recorded
from stages.tokens.vocabulary import BUNDLED, bundled_tokens

_BLOCKS: Final = 8
"""8 MiB blocks read of a source at most: 16.8 million tokens."""

_SHOWN: Final = 5


def tokenizer_of(out: Folder, index: Index, file: str | None = None) -> Tokenizer:
    """The tokenizer that made the shards of an output: the one in `file`, or that of its recipe. RecipeError
    where the output holds no tokens, or where the tokenizer is not there, or is another."""
    made_by = index.tokenizer
    if not index.has_tokens:
        raise RecipeError(
            f"{out.url} holds texts and no tokens (tokenize.off): there is nothing to compare texts with"
        )
    encoding = file or _encoding(out, made_by.name)
    tokenizer = load_recorded(encoding, hash_=made_by.hash, eot_id=made_by.eot_id)
    if tokenizer is None:
        raise RecipeError(
            f"{encoding} is another tokenizer than the one that made these shards: index.json has"
            f" {made_by.name} with {made_by.vocab_size:,} ids, of which {made_by.eot_id} ends documents, and"
            f" the hash {made_by.hash}. Put that file back, or say with --tokenizer where it lies"
        )
    return tokenizer


def _encoding(out: Folder, name: str) -> str:
    """What the recipe names; where it cannot be read, what the index calls it."""
    try:
        return recipe_of(out).tokenize.encoding
    except (OSError, ValueError, LookupError):
        return name


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """How tokens are read: the text of one, and which stands for what the vocabulary does not know."""

    text: Callable[[int], str]
    unknown_id: int | None


def tokens_of_sources(out: Folder, index: Index, versions: Mapping[str, str]) -> tuple[TokensRow, ...]:
    """A row for each source that has shards. Where the tokenizer is not at hand tokens are shown by their
    ids. `versions` are those that the run's identity records."""
    if not index.shards:
        return ()
    try:
        reader = _reader(out, index, versions)
    except RecipeError:
        reader = _Reader(text=lambda token: "", unknown_id=None)
    by_source: dict[str, list[Shard]] = {}
    for shard in index.shards:
        by_source.setdefault(shard.source, []).append(shard)
    return tuple(_row(out, index.tokenizer.eot_id, of_source, reader) for of_source in by_source.values())


def _reader(out: Folder, index: Index, recorded: Mapping[str, str]) -> _Reader:
    """RecipeError where the tokenizer is not there, or is another."""
    name = index.tokenizer.name
    libraries = libraries_of(TOKENIZING)
    if name not in BUNDLED or any(recorded.get(each) != installed_version(each) for each in libraries):
        tokenizer = tokenizer_of(out, index)
        return _Reader(text=partial(_text, tokenizer), unknown_id=tokenizer.unknown_id)

    def text(token: int) -> str:
        if token < BUNDLED[name]:
            return repr(bundled_tokens(name, token + 1)[token].decode("utf-8", "replace"))
        return _text(tokenizer_of(out, index), token)

    # The same releases have the same ranks. To prove them takes a small run more time than all else here.
    return _Reader(text=text, unknown_id=None)


def _row(out: Folder, eot_id: int, shards: Sequence[Shard], reader: _Reader) -> TokensRow:
    first: Counter[int] = Counter()
    unknown_id = reader.unknown_id
    num_documents = num_tokens = num_ended = num_unknown = 0
    for tokens, starts, ends in _stretches(out, shards):
        there = tokens[starts] != eot_id  # one that begins with it was purged, or is empty
        first.update(tokens[starts[there]].tolist())
        num_documents += int(there.sum())
        num_ended += int((tokens[ends[there] - 1] == eot_id).sum())
        num_tokens += int((ends - starts)[there].sum())
        num_unknown += 0 if unknown_id is None else int((tokens == unknown_id).sum())
    most = sorted(first.items(), key=lambda item: (-item[1], item[0]))[:_SHOWN]
    return TokensRow(
        source=shards[0].source,
        num_documents=num_documents,
        num_tokens=num_tokens,
        is_sample=sum(shard.num_tokens for shard in shards) > _BLOCKS * BLOCK_TOKENS,
        first=tuple(
            FirstToken(id=token, text=reader.text(token), share=num / num_documents) for token, num in most
        ),
        num_ended=num_ended,
        has_unknown=unknown_id is not None,
        num_unknown=num_unknown,
    )


def _text(tokenizer: Tokenizer, token: int) -> str:
    """The token as text."""
    try:
        return repr(tokenizer.decode(np.array([token], dtype=np.uint32)))
    except ValueError:
        return "beyond the vocabulary"


def _stretches(
    out: Folder, shards: Sequence[Shard]
) -> Iterator[tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """(tokens, starts, ends) of the whole documents at the beginning of some shards, spread over all of
    them."""
    chosen = [
        shards[at] for at in np.unique(np.linspace(0, len(shards) - 1, min(len(shards), _BLOCKS)).astype(int))
    ]
    if sum(shard.num_tokens for shard in shards) <= _BLOCKS * BLOCK_TOKENS:
        chosen = list(shards)
    num_bytes = max(1, _BLOCKS // len(chosen)) * BLOCK_BYTES
    for shard in chosen:
        data = out.read_range(shard.file, 0, num_bytes)
        tokens = np.frombuffer(data, "<u4", len(data) // TOKEN_BYTES)
        rows = read_rows(out, shard.index_file, ["start", "num_tokens"])
        starts = rows["start"].to_numpy()
        ends = starts + rows["num_tokens"].to_numpy()
        whole = (ends <= len(tokens)) & (starts < ends)
        yield tokens[: int(ends[whole].max(initial=0))], starts[whole], ends[whole]
