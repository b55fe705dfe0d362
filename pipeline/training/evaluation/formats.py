"""Rows of benchmarks as texts, or as questions with choices: which fields a row has tells which benchmark's it is.

How a question is put is lm-eval's (0.4.13), template by template, so that scores can stand beside published ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from lineage.recipe import RecipeError, utf8_text
from stages.steps.textfiles import json_lines, named_bytes, read_named_file, without_packing
from trainer.evaluation.prepared import Kind

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question with its choices. For each choice, `contexts` has the prompt and
    `continuations` the scored text; `answer` is the index of the right one. `about` is searched for in the training
    data: the question with its right answer."""

    contexts: tuple[str, ...]
    continuations: tuple[str, ...]
    answer: int
    about: str

    @property
    def solved(self) -> str:
        """The question with its right answer, as an example before others."""
        return f"{self.contexts[self.answer]} {self.continuations[self.answer]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationItem:
    """An item of an evaluation: where it stands in its file, and the text or the question."""

    where: str
    asked: str | Question

    @property
    def about(self) -> str:
        """What is looked for in the training data."""
        return self.asked if isinstance(self.asked, str) else self.asked.about


class _WrongRowError(ValueError):
    """What is wrong with a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemFormat:
    """Rows of a benchmark: `fields` tell them, `answer` is the field without which they ask nothing."""

    name: str
    fields: tuple[str, ...]
    read: Callable[[Row], str | Question]
    answer: str | None = None

    @property
    def kind(self) -> Kind:
        """Whether they are texts or questions."""
        return "text" if self.answer is None else "choices"


def read_evaluation(files: Sequence[str], kind: Kind | None = None) -> list[EvaluationItem]:
    """The items of JSONL or Parquet files, in order, all of one kind. RecipeError names the file, the line or row, and
    what is wrong: no item, fields of no benchmark, no answer, an answer that is none of the choices."""
    items, first = list[EvaluationItem](), ""
    for file in files:
        format_: ItemFormat | None = None
        for where, row in _rows(file):
            format_ = format_ or _format_of(where, row, kind)
            items.append(EvaluationItem(where=where, asked=_read(format_, where, row)))
        if format_ is None:
            raise RecipeError(f"{file} holds no item: expected one in each line of JSONL or row of Parquet")
        if isinstance(items[-1].asked, str) != isinstance(items[0].asked, str):
            raise RecipeError(f"{first} and {file} hold texts and questions: evaluate them apart")
        first = first or file
    return items


def _rows(file: str) -> Iterator[tuple[str, Row]]:
    if file.lower().endswith(".parquet"):
        try:
            table = pq.read_table(pa.BufferReader(named_bytes(file)))
        except pa.ArrowInvalid as error:
            raise RecipeError(f"{file} is no Parquet file: {error}") from error
        for number, row in enumerate(table.to_pylist(), start=1):
            yield f"{file} row {number}", row
        return
    if not without_packing(file).lower().endswith((".jsonl", ".json", ".ndjson")):
        raise RecipeError(f"{file}: expected a name that ends in .jsonl or .parquet")
    for number, row in json_lines(utf8_text(read_named_file(file), file), file):
        if not isinstance(row, dict):
            raise RecipeError(f'{file} line {number} is no object: expected one such as {{"text": …}}')
        yield f"{file} line {number}", row


def _format_of(where: str, row: Row, kind: Kind | None) -> ItemFormat:
    possible = [one for one in FORMATS if kind in (None, one.kind)]
    for one in possible:
        if row.keys() >= {*one.fields}:
            return one
    named = ", ".join(map(repr, row)) or "no field"
    lacking = [one.answer for one in possible if one.answer and row.keys() >= {*one.fields} - {one.answer}]
    if lacking:
        either = " nor ".join(map(repr, dict.fromkeys(lacking)))
        raise RecipeError(f"{where} has no {either}, only {named}: without answers there is no score")
    known = "; ".join(f"{one.name}: {', '.join(one.fields)}" for one in possible)
    raise RecipeError(f"{where} has {named}: expected the fields of one of these ({known})")


def _read(format_: ItemFormat, where: str, row: Row) -> str | Question:
    lacking = next((name for name in format_.fields if row.get(name) is None), None)
    if lacking is not None:
        what = (
            "without answers there is no score"
            if lacking == format_.answer
            else f"expected as {format_.name} has it"
        )
        raise RecipeError(f"{where} has no {lacking!r}: {what}")
    try:
        asked = format_.read(row)
    except (_WrongRowError, TypeError, LookupError, AttributeError, ValueError) as error:
        told = (
            str(error)
            if isinstance(error, _WrongRowError)
            else f"not as rows of {format_.name} are ({error!r})"
        )
        raise RecipeError(f"{where}: {told}") from error
    texts = (asked,) if isinstance(asked, str) else asked.continuations
    if not all(texts):
        raise RecipeError(f"{where}: {'the text' if isinstance(asked, str) else 'a choice'} is empty")
    return asked


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise _WrongRowError(f"{name} is {value!r}: expected a text")
    return value


def _question(context: str, choices: Sequence[str], answer: int, about: str) -> Question:
    texts = tuple(_text(choice, "a choice") for choice in choices)
    if len(texts) < 2:
        raise _WrongRowError(f"{len(texts)} choice{'s' if len(texts) != 1 else ''}: expected at least 2")
    if not 0 <= answer < len(texts):
        raise _WrongRowError(f"the answer is choice {answer}: expected one of 0 to {len(texts) - 1}")
    return Question(
        contexts=(context,) * len(texts),
        continuations=texts,
        answer=answer,
        about=f"{about} {texts[answer]}",
    )


def _answer(given: Any, choices: Sequence[str], *, is_plain: bool = False) -> int:
    """Which choice an answer names: by its number from 0, its letter, or its own text. In the rows of a benchmark the
    first of these counts; where `is_plain`, they may not name different choices."""
    if isinstance(given, bool) or not isinstance(given, (int, str)):
        raise _WrongRowError(f"the answer is {given!r}: expected a choice, its number from 0 or its letter")
    if isinstance(given, int):
        return given
    named = list[int]()
    if re.fullmatch(r"\d+", given):
        named.append(int(given))
    if re.fullmatch("[A-Z]", given):
        named.append(ord(given) - ord("A"))
    if given in choices:
        named = [*(number for number in named if number < len(choices)), choices.index(given)]
    if not named:
        raise _WrongRowError(f"the answer is {given!r}: expected a choice, its number from 0 or its letter")
    if is_plain and named[0] != named[-1]:
        raise _WrongRowError(
            f"the answer {given!r} is the text of choice {named[-1]}, and names choice {named[0]}: expected its number"
            " from 0, without quotes"
        )
    return named[0]


def _labelled(row: Row) -> tuple[Sequence[str], int]:
    """The choices of a row that labels them, and which one its key names."""
    texts, labels = row["choices"]["text"], [str(label) for label in row["choices"]["label"]]
    key = row["answerKey"]
    if str(key).strip() not in labels:
        raise _WrongRowError(f"the answer is {key!r}: expected one of {', '.join(labels)}")
    return texts, labels.index(str(key).strip())


def _lettered(question: str, choices: Sequence[str], answer: int) -> Question:
    """The choices stand in the question, and their letters are scored."""
    letters = [chr(ord("A") + number) for number in range(len(choices))]
    listed = "\n".join(f"{letter}. {choice}" for letter, choice in zip(letters, choices, strict=True))
    asked = _question(f"{question.strip()}\n{listed}\nAnswer:", letters, answer, "")
    return Question(
        contexts=asked.contexts,
        continuations=asked.continuations,
        answer=asked.answer,
        about=f"{question} {choices[answer]}",
    )


def _plain(row: Row) -> Question:
    answer = _answer(row["answer"], row["choices"], is_plain=True)
    return _question(_text(row["question"], "question"), row["choices"], answer, row["question"])


def _arc(row: Row) -> Question:
    return _question(f"Question: {row['question']}\nAnswer:", *_labelled(row), row["question"])


def _openbookqa(row: Row) -> Question:
    return _question(row["question_stem"], *_labelled(row), row["question_stem"])


def _commonsense_qa(row: Row) -> Question:
    asked = _lettered(row["question"], *_labelled(row))
    return Question(
        contexts=tuple(f"Question: {context}" for context in asked.contexts),
        continuations=asked.continuations,
        answer=asked.answer,
        about=asked.about,
    )


def _hellaswag(row: Row) -> Question:
    context = _without_marks(f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}")
    endings = [_without_marks(ending) for ending in row["endings"]]
    return _question(context, endings, _answer(row["label"], endings), f"{row['ctx_a']} {row['ctx_b']}")


def _without_marks(text: str) -> str:
    """HellaSwag without the brackets that WikiHow left in it."""
    text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return text.replace("  ", " ")


def _mmlu(row: Row) -> Question:
    return _lettered(row["question"], row["choices"], _answer(row["answer"], row["choices"]))


def _piqa(row: Row) -> Question:
    choices = [row["sol1"], row["sol2"]]
    return _question(
        f"Question: {row['goal']}\nAnswer:", choices, _answer(row["label"], choices), row["goal"]
    )


def _winogrande(row: Row) -> Question:
    """The choices stand in the sentence, and what follows them is scored."""
    before, _, after = row["sentence"].partition("_")
    choices = [_text(row[name], name) for name in ("option1", "option2")]
    answer = int(row["answer"]) - 1
    if answer not in (0, 1):
        raise _WrongRowError(f"the answer is {row['answer']!r}: expected 1 or 2")
    return Question(
        contexts=tuple(before + choice for choice in choices),
        continuations=(after.strip(),) * 2,
        answer=answer,
        about=before + choices[answer] + after,
    )


def _sciq(row: Row) -> Question:
    choices = [row[name] for name in ("distractor1", "distractor2", "distractor3", "correct_answer")]
    context = f"{row['support'].lstrip()}\nQuestion: {row['question']}\nAnswer:"
    return _question(context, choices, 3, row["question"])


def _boolq(row: Row) -> Question:
    context = f"{row['passage']}\nQuestion: {row['question']}?\nAnswer:"
    return _question(context, ["no", "yes"], int(row["label"]), f"{row['passage']} {row['question']}")


def _siqa(row: Row) -> Question:
    choices = [row[name] for name in ("answerA", "answerB", "answerC")]
    context = f"Q: {row['context']} {row['question']}\nA:"
    return _question(context, choices, int(row["label"]) - 1, f"{row['context']} {row['question']}")


FORMATS: Final = (
    ItemFormat(
        name="commonsense_qa",
        fields=("question", "question_concept", "choices", "answerKey"),
        read=_commonsense_qa,
        answer="answerKey",
    ),
    ItemFormat(name="arc", fields=("question", "choices", "answerKey"), read=_arc, answer="answerKey"),
    ItemFormat(
        name="openbookqa",
        fields=("question_stem", "choices", "answerKey"),
        read=_openbookqa,
        answer="answerKey",
    ),
    ItemFormat(
        name="hellaswag",
        fields=("activity_label", "ctx_a", "ctx_b", "endings", "label"),
        read=_hellaswag,
        answer="label",
    ),
    ItemFormat(name="mmlu", fields=("question", "subject", "choices", "answer"), read=_mmlu, answer="answer"),
    ItemFormat(name="piqa", fields=("goal", "sol1", "sol2", "label"), read=_piqa, answer="label"),
    ItemFormat(
        name="winogrande",
        fields=("sentence", "option1", "option2", "answer"),
        read=_winogrande,
        answer="answer",
    ),
    ItemFormat(
        name="sciq",
        fields=("support", "question", "distractor1", "distractor2", "distractor3", "correct_answer"),
        read=_sciq,
        answer="correct_answer",
    ),
    ItemFormat(name="boolq", fields=("passage", "question", "label"), read=_boolq, answer="label"),
    ItemFormat(
        name="social_iqa",
        fields=("context", "question", "answerA", "answerB", "answerC", "label"),
        read=_siqa,
        answer="label",
    ),
    ItemFormat(
        name="question with choices", fields=("question", "choices", "answer"), read=_plain, answer="answer"
    ),
    ItemFormat(name="text", fields=("text",), read=lambda row: _text(row["text"], "text")),
)
"""In the order in which they are looked for: the first whose fields a row has."""


def format_lines() -> Iterator[str]:
    """A row of a table in Markdown for each format."""
    yield "| Format | Fields |"
    yield "| --- | --- |"
    for one in FORMATS:
        yield f"| {one.name} | {', '.join(f'`{name}`' for name in one.fields)} |"


def solved(items: Iterable[EvaluationItem], shots: int, asked: Question) -> list[str]:
    """The first `shots` items with their answers, as examples before the question `asked`, or fewer where there are no
    more; what is equal to it is passed over (lm-eval's first_n)."""
    others = (one.asked for one in items if isinstance(one.asked, Question) and one.asked != asked)
    return [f"{one.solved}\n\n" for one in islice(others, shots)]
