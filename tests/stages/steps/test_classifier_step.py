"""fastText classifiers: trained small here, asked as the recipe says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lineage.recipe import RecipeError
from stages.document import Document, Rejection
from stages.steps.classifier import ClassifierStep, ClassifierTable, check_classifiers

GOOD = "the theorem follows from the lemma and its proof is short"
BAD = "buy cheap pills now best casino win money fast"

# fastText's trainer reads memory that nobody has set and then ends in NaN where that memory was used before:
# so it trains in a process of its own, whose matrices (6 MB) the kernel hands out zeroed.
TRAIN = """
import sys, fasttext
model = fasttext.train_supervised(sys.argv[1], thread=1, seed=1, verbose=0, dim=8, wordNgrams=2, bucket=200_000)
model.save_model(sys.argv[2])
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """A model with the labels good and bad, which a few words tell apart."""
    folder: Path = tmp_path_factory.mktemp("models")
    lines = [f"__label__good {GOOD}", f"__label__bad {BAD}"] * 200
    (folder / "train.txt").write_text("\n".join(lines) + "\n")
    subprocess.run(
        [sys.executable, "-c", TRAIN, str(folder / "train.txt"), str(folder / "small.bin")], check=True
    )
    return str(folder / "small.bin")


def rule(outcome: Document | Rejection) -> str:
    return outcome.finding.rule if isinstance(outcome, Rejection) else "kept"


@pytest.mark.parametrize(
    ("label", "reject", "text", "expected"),
    [
        ("bad", "above", BAD, "classifier.spam"),
        ("bad", "above", GOOD, "kept"),
        ("__label__good", "below", BAD, "classifier.spam"),
        ("good", "below", GOOD, "kept"),
    ],
)
def test_a_score_on_the_wrong_side_turns_a_document_down(make_document, model, label, reject, text, expected):  # noqa: PLR0917
    table = ClassifierTable(name="spam", model=model, label=label, threshold=0.5, reject=reject)
    assert rule(ClassifierStep([table])(make_document(text=text))) == expected


@pytest.mark.parametrize("reject", ["above", "below"])
def test_a_score_equal_to_the_threshold_is_kept(make_document, model, reject):
    probe = ClassifierTable(name="x", model=model, label="bad", threshold=0.0, reject="above")
    outcome = ClassifierStep([probe])(make_document(text=BAD))
    assert isinstance(outcome, Rejection) and outcome.finding.value is not None
    at = ClassifierTable(name="x", model=model, label="bad", threshold=outcome.finding.value, reject=reject)
    assert rule(ClassifierStep([at])(make_document(text=BAD))) == "kept"


def test_one_that_never_turns_down_gives_each_document_its_score(make_document, model):
    tables = [
        ClassifierTable(name="edu", model=model, label="good", reject="never"),
        ClassifierTable(name="spam", model=model, label="bad", threshold=0.5),
        ClassifierTable(name="Late", model=model, label="bad", threshold=0.5, reject="never"),
    ]
    step = ClassifierStep(tables, ledger=True)
    kept, turned_down = step(make_document(text=GOOD)), step(make_document(text=BAD))
    assert isinstance(kept, Document) and isinstance(turned_down, Rejection)
    assert [name for name, _ in kept.scores] == ["edu", "Late"]
    assert kept.scores[0][1] > 0.9 and 0 < kept.scores[1][1] < 0.1
    assert [
        (f.rule, f.value, f.threshold, f.rejected) for f in kept.findings if f.rule != "classifier.spam"
    ] == [
        ("classifier.edu", kept.scores[0][1], None, False),
        ("classifier.Late", kept.scores[1][1], 0.5, False),
    ]
    assert turned_down.finding.rule == "classifier.spam"
    assert [name for name, _ in turned_down.document.scores] == ["edu", "Late"], (
        "with the ledger all are asked"
    )
    [only] = ClassifierStep(tables)(make_document(text=BAD)).document.scores
    assert only[0] == "edu", "what is behind the one that decides is not asked"


def test_one_that_turns_down_needs_a_threshold_and_columns_need_names_that_sql_tells_apart():
    with pytest.raises(RecipeError, match=r"classifier\.threshold of 'a' is missing"):
        check_classifiers([ClassifierTable(name="a", model="m", label="x")])
    alike = [ClassifierTable(name=name, model="m", label="x", reject="never") for name in ("Edu", "edu")]
    with pytest.raises(RecipeError, match="capital letters"):
        check_classifiers(alike)


def test_classifiers_are_asked_in_order_and_with_the_ledger_all_of_them(make_document, model):
    tables = [
        ClassifierTable(name="quality", model=model, label="good", threshold=0.5, reject="below"),
        ClassifierTable(name="spam", model=model, label="bad", threshold=0.5),
    ]
    outcome = ClassifierStep(tables, ledger=True)(make_document(text=BAD))
    assert isinstance(outcome, Rejection)
    assert outcome.finding.rule == "classifier.quality"
    assert [(f.rule, f.rejected) for f in outcome.findings] == [("classifier.spam", True)]
    kept = ClassifierStep(tables, ledger=True)(make_document(text=GOOD))
    assert [f.rule for f in kept.findings] == ["classifier.quality", "classifier.spam"]
    assert not ClassifierStep(tables)(make_document(text=GOOD)).findings


def test_an_unknown_label_is_a_wrong_recipe_that_names_the_known_ones(model):
    table = ClassifierTable(name="x", model=model, label="toxic", threshold=0.5)
    with pytest.raises(RecipeError, match="bad, good"):
        ClassifierStep([table]).prepare()


@pytest.mark.parametrize("names", [("a", "a"), ("with space",), ("",), ("a.b",)])
def test_names_must_make_rules_that_can_be_told_apart(names):
    with pytest.raises(RecipeError, match=r"classifier\.name"):
        check_classifiers([ClassifierTable(name=n, model="m", label="x", threshold=0.5) for n in names])
