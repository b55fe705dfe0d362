"""Items of an evaluation as tokens, by lm-eval's rules (0.4.13): the prompt and the
scored part of each choice, and the windows of a text that is longer than the model's rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from lineage.ids import content_hash, length_prefixed
from lineage.recipe import RecipeError
from pipeline.training.evaluation.formats import EvaluationItem, Question, read_evaluation, solved
from pipeline.training.opened import ModelTokenizer
from stages.steps.textfiles import named_bytes
from trainer.evaluation.prepared import AboutPrepared, AskedItem, Kind, Prepared, Request

_RULES: Final = 2
"""Of how items become tokens: what was prepared by others is prepared again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSet:
    """What is evaluated: items of `files`, each question behind `shots` solved ones, which are the first of
    `shots_from` or, without it, the first others of `files`. `kind`: None is told by the fields."""

    name: str
    files: tuple[str, ...]
    kind: Kind | None = None
    shots: int = 0
    shots_from: str | None = None


def digest_of(evaluation: EvaluationSet) -> str:
    """BLAKE3-128 (hex) of the bytes of its files and of how questions are put."""
    files = (*evaluation.files, *([] if evaluation.shots_from is None else [evaluation.shots_from]))
    how = f"{_RULES} {evaluation.kind} {evaluation.shots} {len(evaluation.files)}".encode()
    return content_hash(length_prefixed(how, *map(named_bytes, files))).hex()


def digest_of_texts(items: Sequence[EvaluationItem]) -> str:
    """BLAKE3-128 (hex) of what is looked for in the training data."""
    return content_hash(
        length_prefixed(*(item.about.encode("utf-8", "surrogatepass") for item in items))
    ).hex()


def prepare(
    evaluation: EvaluationSet, items: Sequence[EvaluationItem], text: ModelTokenizer, seq_len: int
) -> Prepared:
    """The items of an evaluation (`read_evaluation`) as tokens for rows of `seq_len`. RecipeError for texts with shots,
    for fewer items than shots, and for a question that is longer than a row."""
    kind: Kind = "text" if isinstance(items[0].asked, str) else "choices"
    asked = tuple(_asked(evaluation, items, text, seq_len))
    about = AboutPrepared(
        name=evaluation.name,
        kind=kind,
        digest=digest_of(evaluation),
        texts=digest_of_texts(items),
        files=evaluation.files,
        shots=evaluation.shots,
        shots_from=evaluation.shots_from,
        tokenizer=text.tokenizer.hash,
        seq_len=seq_len,
    )
    return Prepared(about, asked)


def _asked(
    evaluation: EvaluationSet, items: Sequence[EvaluationItem], text: ModelTokenizer, seq_len: int
) -> Iterator[AskedItem]:
    shots, examples = evaluation.shots, list(items)
    if shots and isinstance(items[0].asked, str):
        raise RecipeError(f"{shots} shots: {evaluation.files[0]} holds texts, before which no examples stand")
    if evaluation.shots_from is not None:
        examples = read_evaluation([evaluation.shots_from], "choices")
    own = evaluation.shots_from is None
    if shots > len(examples) - own:
        raise RecipeError(
            f"{shots} shots: {evaluation.shots_from or evaluation.files[0]} has {len(examples)} items"
            f"{', one of which is asked' if own else ''}"
        )
    for item in items:
        try:
            if isinstance(item.asked, str):
                yield _asked_text(item.asked, text, seq_len)
            else:
                before = solved(examples, shots, item.asked)
                if len(before) < shots:
                    raise RecipeError(
                        f"{shots} shots: {evaluation.shots_from or evaluation.files[0]} has {len(before)} questions"
                        f" that are not that of {item.where}"
                    )
                yield _asked_question(item, item.asked, "".join(before), text, seq_len)
        except UnicodeEncodeError as error:
            raise RecipeError(f"{item.where} holds half a surrogate pair, which is no text") from error


def _asked_text(document: str, text: ModelTokenizer, seq_len: int) -> AskedItem:
    tokens: list[int] = text.tokenizer.encode(document).tolist()
    return AskedItem(
        answer=0,
        num_bytes=(len(document.encode()),),
        requests=tuple(
            Request(choice=0, tokens=window, num_scored=scored)
            for window, scored in windows(tokens, text.prefix_id, seq_len)
        ),
    )


def windows(tokens: Sequence[int], prefix_id: int, seq_len: int) -> Iterator[tuple[list[int], int]]:
    """The windows of a text and how many tokens at the end of each are scored: every token once, the first behind
    `prefix_id`. Each next window scores the `seq_len` tokens behind those that were, with the one before them as its
    context; the last one has as much context as makes it whole (lm_eval.utils.get_rolling_token_windows and
    make_disjoint_window, with a context of 1)."""
    first = min(seq_len, len(tokens))
    if first:
        yield [prefix_id, *tokens[:first]], first
    for begin in range(first, len(tokens), seq_len):
        end = min(begin + seq_len, len(tokens))
        yield list(tokens[end - seq_len - 1 : end]), end - begin


def _asked_question(
    item: EvaluationItem, question: Question, before: str, text: ModelTokenizer, seq_len: int
) -> AskedItem:
    requests = []
    pairs = zip(question.contexts, question.continuations, strict=True)
    for choice, (context, continuation) in enumerate(pairs):
        tokens, num_scored = encoded_pair(before + context, f" {continuation}", text)
        if num_scored < 1:
            raise RecipeError(f"{item.where}: choice {choice} adds no token to its question")
        if len(tokens) > seq_len + 1:
            raise RecipeError(
                f"{item.where}: the question with its examples and choice {choice} are {len(tokens):,} tokens: expected"
                f" at most {seq_len + 1:,}, the model's context and the one that is only scored; take fewer shots, or"
                " leave the item out"
            )
        requests.append(Request(choice=choice, tokens=tokens, num_scored=num_scored))
    return AskedItem(
        answer=question.answer,
        num_bytes=tuple(len(continuation.encode()) for continuation in question.continuations),
        requests=tuple(requests),
    )


def encoded_pair(context: str, continuation: str, text: ModelTokenizer) -> tuple[list[int], int]:
    """The tokens of both, and how many at the end are those of the continuation. They are encoded together, so that no
    token is one that the model never meets, and cut where the context's own tokens end; white space between them
    belongs to the continuation (lm_eval.api.model.TemplateLM._encode_pair)."""
    encode = text.tokenizer.encode
    if not context.strip():
        tokens = encode(context + continuation).tolist()
        return [text.prefix_id, *tokens], len(tokens)
    end = len(context.rstrip())
    whole = [*text.begins, *encode(context + continuation).tolist()]
    return whole, len(whole) - len(text.begins) - len(encode(context[:end]))
