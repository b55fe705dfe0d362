"""Text from a model: a prompt to tokens, tokens to text as they come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from lineage.recipe import RecipeError

if TYPE_CHECKING:
    import torch

    from pipeline.training.opened import ModelTokenizer, TextModel
    from stages.tokens.tokenizer import Tokenizer

Ended = Literal["end of text", "tokens", "context"]
_CUT: Final = "�"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledText:
    """What a model made of a prompt: the text behind it, its tokens, and what ended it: the token that ends texts
    (which is not among them), the number of tokens that was asked for, or the end of the model's context."""

    prompt: str
    text: str
    tokens: tuple[int, ...]
    ended: Ended


class Asked(NamedTuple):
    """How tokens are chosen, as `trainer.huggingface.generation.Decoding` has it."""

    temperature: float
    top_p: float
    seed: int


def decoding_of(temperature: float, top_p: float, seed: int) -> Asked:
    """The choice of tokens, checked before torch is imported. RecipeError where it is none."""
    if not 0 <= temperature < float("inf"):
        raise RecipeError(f"--temperature {temperature}: expected 0 (the likeliest token) or more")
    if not 0 < top_p <= 1:
        raise RecipeError(f"--top-p {top_p}: expected a share above 0, at most 1")
    return Asked(temperature, top_p, seed)


@dataclass(slots=True)
class Sampling:
    """A sample that is being made: iterate over its pieces of text, then read `result`."""

    model: TextModel
    prompt: str
    num_tokens: int
    asked: Asked
    result: SampledText | None = None

    def __iter__(self) -> Iterator[str]:
        """The text behind the prompt, piece by piece; a piece ends with a whole character."""
        from trainer.huggingface.generation import Decoding, generate

        tokenizer, text = self.model.text.tokenizer, ""
        found: list[int] = []
        prompt = prompt_ids(self.model.text, self.prompt)
        decoding = Decoding(*self.asked)
        ends = self.model.text.more_ends | {tokenizer.eot_id}
        tokens = generate(self.model.opened, prompt, decoding, tokenizer.tokens().keys() | ends)
        ended: Ended = "context"
        for token in islice(tokens, self.num_tokens):
            if token in ends:
                ended = "end of text"
                break
            found.append(token)
            # Bytes of a character may lie in several tokens.
            whole = _decoded(tokenizer, prompt, found).rstrip(_CUT)
            if len(whole) > len(text):
                yield whole[len(text) :]
                text = whole
        if len(found) == self.num_tokens:
            ended = "tokens"
        rest = _decoded(tokenizer, prompt, found)
        if len(rest) > len(text):
            yield rest[len(text) :]
        self.result = SampledText(prompt=self.prompt, text=rest, tokens=tuple(found), ended=ended)


def device_named(name: str | None) -> torch.device | None:
    """The device of this name, None without one. RecipeError where it is not there."""
    if name is None:
        return None
    import torch

    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise RecipeError(f"--device {name}: {str(error).splitlines()[0]}") from error
    return device


def prompt_ids(text: ModelTokenizer, prompt: str) -> list[int]:
    """The tokens of a prompt, behind what the tokenizer begins texts with. RecipeError for an empty one where no
    token begins texts: what follows the end of another text is never learned."""
    ids = [*text.begins, *text.tokenizer.encode(prompt).tolist()]
    if not ids and text.prefix_id != text.tokenizer.eot_id:
        return [text.prefix_id]
    if not ids:
        raise RecipeError("the prompt is empty: expected a text that the model continues")
    return ids


def _decoded(tokenizer: Tokenizer, prompt: Sequence[int], found: Sequence[int]) -> str:
    """The text behind the prompt. Where the vocabulary is not of bytes a token's space shows only behind
    another one, so both are decoded."""
    before = tokenizer.decode(prompt)
    whole = tokenizer.decode([*prompt, *found])
    return whole[len(before) :] if whole.startswith(before) else tokenizer.decode(found)
