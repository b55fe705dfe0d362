"""Rows of the common benchmarks as lm-eval's templates put them, and what is refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lineage.recipe import RecipeError
from pipeline.cli.main import main
from pipeline.training.evaluation.formats import (
    FORMATS,
    EvaluationItem,
    Question,
    format_lines,
    read_evaluation,
)
from pipeline.training.evaluation.prepare import EvaluationSet, encoded_pair, prepare, windows
from pipeline.training.opened import ModelTokenizer
from stages.tokens.tokenizer import load_tokenizer

LABELLED = {"text": ["iron", "wood"], "label": ["A", "B"]}
ROWS: dict[str, tuple[dict[str, Any], tuple[str, ...], tuple[str, ...], int, str]] = {
    "commonsense_qa": (
        {"question": " What floats? ", "question_concept": "float", "choices": LABELLED, "answerKey": "B"},
        ("Question: What floats?\nA. iron\nB. wood\nAnswer:",), ("A", "B"), 1, " What floats?  wood",
    ),
    "arc": (
        {"question": "What floats?", "choices": {"text": ["iron", "wood"], "label": ["1", "2"]}, "answerKey": "2"},
        ("Question: What floats?\nAnswer:",), ("iron", "wood"), 1, "What floats? wood",
    ),
    "openbookqa": (
        {"question_stem": "What floats is", "choices": LABELLED, "answerKey": " B"},
        ("What floats is",), ("iron", "wood"), 1, "What floats is wood",
    ),
    "hellaswag": (
        {"activity_label": "Sailing", "ctx_a": "A man  [header] sits. [title] He", "ctx_b": "the BOAT",
         "endings": ["sinks. [step] Ah", "floats."], "label": "1"},
        ("Sailing: A man  sits.. He The boat",), ("sinks. Ah", "floats."), 1,
        "A man  [header] sits. [title] He the BOAT floats.",
    ),
    "mmlu": (
        {"question": " What floats?", "subject": "physics", "choices": ["iron", "wood"], "answer": 1},
        ("What floats?\nA. iron\nB. wood\nAnswer:",), ("A", "B"), 1, " What floats? wood",
    ),
    "piqa": (
        {"goal": "To float", "sol1": "use iron", "sol2": "use wood", "label": 1},
        ("Question: To float\nAnswer:",), ("use iron", "use wood"), 1, "To float use wood",
    ),
    "winogrande": (
        {"sentence": "Wood not iron floats as _ is light.", "option1": "wood", "option2": "iron", "answer": "1"},
        ("Wood not iron floats as wood", "Wood not iron floats as iron"), ("is light.",) * 2, 0,
        "Wood not iron floats as wood is light.",
    ),
    "sciq": (
        {"support": " Wood is light.", "question": "What floats?", "distractor1": "a", "distractor2": "b",
         "distractor3": "c", "correct_answer": "wood"},
        ("Wood is light.\nQuestion: What floats?\nAnswer:",), ("a", "b", "c", "wood"), 3, "What floats? wood",
    ),
    "boolq": (
        {"passage": "Wood is light.", "question": "does it float", "label": 1},
        ("Wood is light.\nQuestion: does it float?\nAnswer:",), ("no", "yes"), 1, "Wood is light. does it float yes",
    ),
    "social_iqa": (
        {"context": "Ann fell.", "question": "Why?", "answerA": "ice", "answerB": "joy", "answerC": "wind",
         "label": "3"},
        ("Q: Ann fell. Why?\nA:",), ("ice", "joy", "wind"), 2, "Ann fell. Why? wind",
    ),
    "question with choices": (
        {"question": "What floats?", "choices": ["iron", "wood"], "answer": "B"},
        ("What floats?",), ("iron", "wood"), 1, "What floats? wood",
    ),
}  # fmt: skip
"""By the name of a format: a row, contexts (one for all choices), continuations, the right one, what is looked for."""


def read(file: Path, *rows: Any, kind: Any = None) -> list[EvaluationItem]:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_evaluation([str(file)], kind)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_put_as_lm_eval_puts_it(name: str, tmp_path: Path) -> None:
    row, contexts, continuations, answer, about = ROWS[name]
    (item,) = read(tmp_path / "a.jsonl", row | {"id": 7})
    assert item.asked == Question(
        contexts=contexts if len(contexts) > 1 else contexts * len(continuations),
        continuations=continuations,
        answer=answer,
        about=about,
    )


def test_every_format_has_a_row_here() -> None:
    assert {one.name for one in FORMATS} - {"text"} == ROWS.keys()


@pytest.mark.parametrize(("given", "answer"), [(1, 1), ("1", 1), ("B", 1), ("wood", 1), ("A", 0)])
def test_an_answer_is_a_number_a_letter_or_the_choice(given: Any, answer: int, tmp_path: Path) -> None:
    (item,) = read(tmp_path / "a.jsonl", {"question": "q", "choices": ["iron", "wood"], "answer": given})
    assert isinstance(item.asked, Question)
    assert item.asked.answer == answer


@pytest.mark.parametrize(
    ("name", "changes", "answer"),
    [
        ("arc", {"answerKey": 1}, 0),
        ("arc", {"answerKey": 2, "choices": {"text": ["iron", "wood"], "label": [1, 2]}}, 1),
        ("mmlu", {"choices": ["C", "B", "A"], "answer": "C"}, 2),
        ("mmlu", {"choices": ["1", "2", "0"], "answer": "1"}, 1),
        ("mmlu", {"answer": "wood"}, 1),
        ("question with choices", {"choices": ["10", "20"], "answer": "10"}, 0),
    ],
)
def test_a_benchmark_s_answer_is_a_label_or_a_letter_before_it_is_a_text(
    name: str, changes: Any, answer: int, tmp_path: Path
) -> None:
    (item,) = read(tmp_path / "a.jsonl", ROWS[name][0] | changes)
    assert isinstance(item.asked, Question)
    assert item.asked.answer == answer


def test_parquet_and_packed_lines_are_read(tmp_path: Path) -> None:
    rows = [{"text": "one"}, {"text": "two"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    found = read_evaluation([str(tmp_path / "a.parquet")])
    assert [(item.asked, item.where) for item in found] == [
        ("one", f"{tmp_path}/a.parquet row 1"),
        ("two", f"{tmp_path}/a.parquet row 2"),
    ]


QUESTION = {"question": "q", "choices": ["a", "b"], "answer": 0}
WRONG: dict[str, tuple[list[Any], str]] = {
    "no answer": ([{"question": "q", "choices": ["a"]}], "line 1 has no 'answerKey' nor 'answer', only 'question', 'c"),
    "an answer that is null": ([QUESTION, QUESTION | {"answer": None}], "line 2 has no 'answer': without answers"),
    "no answer key": ([{"question_stem": "q", "choices": LABELLED}], "line 1 has no 'answerKey', only 'question_stem'"),
    "fields of nothing": ([{"prompt": "p", "target": "t"}], "line 1 has 'prompt', 'target': expected the fields of"),
    "another answer": ([QUESTION | {"answer": 2}], "line 1: the answer is choice 2: expected one of 0 to 1"),
    "an empty answer": ([QUESTION | {"answer": ""}], "line 1: the answer is '': expected a choice, its number from 0"),
    "a true answer": ([QUESTION | {"answer": True}], "line 1: the answer is True: expected a choice"),
    "an answer of two meanings": (
        [QUESTION | {"choices": ["1", "0"], "answer": "1"}],
        "line 1: the answer '1' is the text of choice 0, and names choice 1: expected its number from 0, without",
    ),
    "a number that is no label": (
        [{"question": "q", "choices": LABELLED, "answerKey": 1}], "line 1: the answer is 1: expected one of A, B",
    ),
    "one choice": ([QUESTION | {"choices": ["a"]}], "line 1: 1 choice: expected at least 2"),
    "a choice that is no text": ([QUESTION | {"choices": ["a", 2]}], "line 1: a choice is 2: expected a text"),
    "an empty choice": ([QUESTION | {"choices": ["a", ""]}], "line 1: a choice is empty"),
    "an empty text": ([{"text": ""}], "line 1: the text is empty"),
    "another label": ([{"question": "q", "choices": LABELLED, "answerKey": "C"}], "is 'C': expected one of A, B"),
    "choices in a text": ([{"question": "q", "choices": "ab", "answerKey": "A"}], "line 1: not as rows of arc are"),
    "no object": ([[1]], "line 1 is no object"),
    "nothing": ([], "holds no item"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_asks_nothing_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    rows, told = WRONG[name]
    with pytest.raises(RecipeError, match=told) as refused:
        read(tmp_path / "a.jsonl", *rows)
    assert "\n" not in str(refused.value)


def test_texts_and_questions_are_evaluated_apart(tmp_path: Path) -> None:
    read(tmp_path / "a.jsonl", {"text": "a"})
    read(tmp_path / "b.jsonl", QUESTION)
    with pytest.raises(RecipeError, match="hold texts and questions: evaluate them apart"):
        read_evaluation([str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")])
    with pytest.raises(RecipeError, match="has 'text': expected the fields of one of these"):
        read_evaluation([str(tmp_path / "a.jsonl")], "choices")
    (tmp_path / "c.csv").write_text("a")
    with pytest.raises(RecipeError, match=r"c\.csv: expected a name that ends in \.jsonl or \.parquet"):
        read_evaluation([str(tmp_path / "c.csv")])


TEXT = ModelTokenizer(tokenizer=load_tokenizer("cl100k_base"), prefix_id=100257)


def test_examples_are_the_first_others_or_those_of_a_file(tmp_path: Path) -> None:
    rows = [QUESTION | {"question": f"q{number}", "answer": number % 2} for number in range(4)]
    items = read(tmp_path / "a.jsonl", *rows)
    read(tmp_path / "b.jsonl", QUESTION | {"question": "other"})

    def first_contexts(**options: Any) -> list[str]:
        asked = EvaluationSet(name="a", files=(str(tmp_path / "a.jsonl"),), **options)
        prepared = prepare(asked, items, TEXT, 100)
        return [TEXT.tokenizer.decode(item.requests[0].tokens) for item in prepared.items]

    assert first_contexts(shots=2)[:2] == ["q1 b\n\nq2 a\n\nq0 a", "q0 a\n\nq2 a\n\nq1 a"]
    assert first_contexts(shots=1, shots_from=str(tmp_path / "b.jsonl"))[0] == "other a\n\nq0 a"
    # No question has its own answer before it, whatever file its examples come from.
    own = first_contexts(shots=2, shots_from=str(tmp_path / "a.jsonl"))
    assert own == first_contexts(shots=2)
    with pytest.raises(
        RecipeError, match=r"4 shots: .*a\.jsonl has 3 questions that are not that of .* line 1"
    ):
        first_contexts(shots=4, shots_from=str(tmp_path / "a.jsonl"))
    with pytest.raises(RecipeError, match=r"4 shots: .*a\.jsonl has 4 items, one of which is asked"):
        first_contexts(shots=4)
    with pytest.raises(RecipeError, match=r"2 shots: .*b\.jsonl has 1 items$"):
        first_contexts(shots=2, shots_from=str(tmp_path / "b.jsonl"))
    texts = read(tmp_path / "c.jsonl", {"text": "a"})
    with pytest.raises(RecipeError, match=r"1 shots: .*c\.jsonl holds texts, before which no examples stand"):
        prepare(EvaluationSet(name="c", files=(str(tmp_path / "c.jsonl"),), shots=1), texts, TEXT, 100)


def test_a_question_that_is_longer_than_the_model_s_rows_is_refused(tmp_path: Path) -> None:
    items = read(
        tmp_path / "a.jsonl", QUESTION, QUESTION | {"question": "one two three four five six seven eight"}
    )
    asked = EvaluationSet(name="a", files=(str(tmp_path / "a.jsonl"),))
    assert len(prepare(asked, items, TEXT, 8).items[1].requests[0].tokens) == 9
    with pytest.raises(
        RecipeError, match=r"a\.jsonl line 2: .* are 9 tokens: expected at most 8, the model's context"
    ):
        prepare(asked, items, TEXT, 7)


def test_white_space_before_a_choice_is_the_choice_s() -> None:
    tokens, num_scored = encoded_pair("The boat  ", " floats", TEXT)
    assert TEXT.tokenizer.decode(tokens[:-num_scored]) == "The boat"
    assert encoded_pair("", " floats", TEXT) == ([100257, *TEXT.tokenizer.encode(" floats").tolist()], 1)
    assert encoded_pair(" \n", " floats", TEXT) == (
        [100257, *(blank := TEXT.tokenizer.encode(" \n floats").tolist())],
        len(blank),
    )
    begun = ModelTokenizer(tokenizer=TEXT.tokenizer, prefix_id=1, begins=(1,))
    assert encoded_pair("The boat", " floats", begun) == (
        [1, *tokens[:2], *TEXT.tokenizer.encode(" floats").tolist()],
        1,
    )


@pytest.mark.parametrize("num", [1, 4, 5, 8, 9, 11])
def test_windows_score_every_token_once(num: int) -> None:
    tokens = list(range(num))
    found = list(windows(tokens, 99, 4))
    assert [token for window, scored in found for token in window[-scored:]] == tokens
    assert found[0][0][0] == 99
    assert all(len(window) == 5 for window, _ in found[1:])
    assert list(windows([], 99, 4)) == []


def test_a_wrong_call_is_told_before_a_model_is_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text('{"question": "q", "choices": ["a", "b"]}')
    assert main(["eval", str(tmp_path / "nowhere"), "--on", str(tmp_path / "a.jsonl")]) == 2
    assert "has no 'answerKey' nor 'answer'" in capsys.readouterr().err
    read(tmp_path / "a.jsonl", QUESTION)
    assert main(["eval", str(tmp_path / "nowhere"), "--on", str(tmp_path / "a.jsonl")]) == 2
    assert "holds neither model.json" in capsys.readouterr().err
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"model_type": "mamba"}')
    assert main(["eval", str(tmp_path / "other"), "--on", str(tmp_path / "a.jsonl")]) == 2
    assert "tokenizer" in capsys.readouterr().err


def test_the_page_lists_the_formats() -> None:
    page = Path(__file__).parents[4] / "docs" / "evaluation.md"
    assert "\n".join(format_lines()) in page.read_text()
