"""Precision and recall of a classifier: counts worked by hand, intervals, the command on a small model."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from pipeline.cli.main import main
from pipeline.inspect.evaluation import ScoredText, evaluation, points, wilson


def scored(*pairs: tuple[float, bool], language: str | None = None) -> list[ScoredText]:
    return [ScoredText(score=score, is_positive=positive, language=language) for score, positive in pairs]


TEXTS = scored((0.1, False), (0.2, True), (0.2, False), (0.6, True), (0.9, False), (0.9, True), (0.95, True))


def test_the_curve_counts_what_lies_above_each_threshold() -> None:
    found = evaluation(TEXTS, "toxic", 0.7)
    counts = [(round(at.threshold, 3), at.num_found, at.num_right) for at in found.curve]
    assert counts == [(0.1, 7, 4), (0.15, 6, 4), (0.4, 4, 3), (0.75, 3, 2), (0.925, 1, 1)]
    assert found.curve[0].threshold < 0.1
    assert [at.recall.value for at in found.curve if at.recall] == [1, 1, 0.75, 0.5, 0.25]
    # By rank: 1/1 of the first, 2/3 of the second with its equal, 3/4, 4/6.
    assert found.average_precision == pytest.approx((1 + 2 / 3 + 3 / 4 + 4 / 6) / 4)
    assert (found.num_texts, found.num_positive, found.by_language) == (7, 4, {})


def test_the_wanted_threshold_has_most_recall_and_the_sure_one_its_interval() -> None:
    found = evaluation(TEXTS, "toxic", 0.7)
    assert found.wanted is not None and round(found.wanted.threshold, 3) == 0.4
    assert found.sure is None, "four texts prove nothing"
    assert evaluation(TEXTS, "toxic", 0.99).wanted is not None  # the highest score alone
    assert evaluation(scored((0.9, False), (0.1, True)), "toxic", 0.9).wanted is None
    many = scored(*[(0.9, True)] * 400, *[(0.1, False)] * 400)
    sure = evaluation(many, "toxic", 0.98).sure
    assert (
        sure is not None
        and sure.num_right == 400
        and sure.precision is not None
        and sure.precision.low > 0.98
    )


def test_wilsons_interval_has_the_published_values() -> None:
    """Newcombe 1998, table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29."""
    for num, of, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        found = wilson(num, of, 0.95)
        assert found is not None
        assert (round(found.low, 4), round(found.high, 4), found.value) == (low, high, num / of)
    assert wilson(0, 0, 0.95) is None
    whole = wilson(5, 5, 0.95)
    assert whole is not None and whole.high == 1.0


def test_each_language_has_a_curve_of_its_own() -> None:
    texts = TEXTS + scored((0.3, True), (0.4, False), language="de")
    found = evaluation(texts, "toxic", 0.5)
    assert list(found.by_language) == ["de", "no language"]
    assert found.by_language["de"].num_texts == 2 and found.by_language["no language"].num_texts == 7


def test_a_long_curve_is_shown_at_even_places() -> None:
    curve = evaluation(scored(*[(number / 1000, number % 3 == 0) for number in range(1000)]), "x", 0.5).curve
    shown = points(curve, 15)
    assert len(shown) == 15 and (shown[0], shown[-1]) == (curve[0], curve[-1])
    assert points(curve[:3], 15) == list(curve[:3])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model that tells two vocabularies apart, and 60 labelled texts."""
    from fasttext import train_supervised

    folder, rng = tmp_path_factory.mktemp("evaluated"), random.Random(1)
    words = {"toxic": ["idiot", "moron", "trash", "scum"], "fine": ["river", "garden", "music", "bread"]}

    def text(label: str) -> str:
        return " ".join(rng.choice(words[label]) for _ in range(6))

    lines = [f"__label__{label} {text(label)}" for label in list(words) * 60]
    (folder / "train.txt").write_text("\n".join(lines) + "\n")
    train_supervised(str(folder / "train.txt"), epoch=20, dim=4, thread=1, verbose=0).save_model(
        str(folder / "m.bin")
    )
    rows = [
        {"text": text(label), "label": label, "is_toxic": label == "toxic", "language": language}
        for label in words
        for language in ("de", "en")
        for _ in range(15)
    ]
    (folder / "labelled.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    return folder


def evaluate(model: Path, *more: str, file: str = "labelled.jsonl") -> int:
    call = [
        "classifier",
        "evaluate",
        str(model / "m.bin"),
        "--against",
        str(model / file),
        "--label",
        "toxic",
    ]
    return main([*call, *more])


def test_the_command_tells_a_good_model(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(model, "--precision", "0.9", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["num_texts"], told["num_positive"], told["average_precision"]) == (60, 30, 1.0)
    assert told["wanted"]["num_found"] == told["wanted"]["num_right"] == 30
    assert sorted(told["by_language"]) == ["de", "en"]
    assert evaluate(model, "--truth", "is_toxic", "--precision", "0.8") == 0
    shown = capsys.readouterr().out
    assert "60 texts, 30 of them toxic; average precision 1.000" in shown
    assert "\nde:\n30 texts" in shown and "wanted, precision of at least 0.8: " in shown


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"text": "a", "label": "toxic"}\n{"text": ', r"line 2 is not JSON"),
        ('{"text": "a", "label": "toxic"}\n["a"]', r"line 2: expected an object with 'text'"),
        ('{"text": 3, "label": "toxic"}', r"line 1: expected an object with 'text', a text"),
        ('{"text": "a"}', r"line 1: expected an object with 'text'.*'label'"),
        ('{"text": "a", "label": "toxic"}', r"no text without the label 'toxic'"),
        ('{"text": "a", "label": "fine"}', r"no text with the label 'toxic'"),
        ("", r"no text with the label 'toxic'"),
    ],
)
def test_a_file_that_is_none_is_told_with_its_line(
    model: Path, content: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import re

    (model / "bad.jsonl").write_text(content)
    assert evaluate(model, file="bad.jsonl") == 2
    assert re.search(said, capsys.readouterr().err)


def test_a_language_field_that_no_text_has_is_told_with_those_that_there_are(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(model, "--language-field", "lang") == 2
    assert (
        "has no key 'lang' (--language-field), only is_toxic, label, language, text"
        in capsys.readouterr().err
    )
    (model / "none.jsonl").write_text(
        '{"text": "a", "label": "toxic"}\n{"text": "b\u2028c", "label": "fine"}\n'
    )
    assert evaluate(model, file="none.jsonl") == 0


def test_wrong_calls_name_what_is_wrong(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = [
        "classifier",
        "evaluate",
        str(model / "m.bin"),
        "--against",
        str(model / "labelled.jsonl"),
        "--label",
    ]
    assert main([*call, "nothing"]) == 2
    assert "no text with the label 'nothing'" in capsys.readouterr().err
    assert main([*call, "toxic", "--truth", "text"]) == 2
    assert "expected three different keys" in capsys.readouterr().err
    assert main(["classifier", "evaluate", str(model / "none.bin"), *call[3:], "toxic"]) == 2
    assert "none.bin" in capsys.readouterr().err
