"""recipes/toxicity.toml with small models in the places of the public ones: it runs, and turns down what they
find."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tomli_w

from lineage.recipe import as_plain
from lineage.storage.folder import Folder
from pipeline.cli.main import main
from pipeline.recipe.load import load
from tests.support.outputs.lineage_query import query

RECIPE = Path(__file__).parents[3] / "recipes" / "toxicity.toml"
LABELS = ("toxic", "severe_toxic", "obscene", "threat", "insult", "identity_hate")
"""Those of unitary/toxic-bert."""
FOUND = {"toxic": "idiot moron trash scum", "nsfw": "naked lewd smut filth"}
PLAIN = "the river and the garden that we have seen with the bread of the house and the music"


def fasttext_model(path: Path, label: str) -> None:
    """A model of two labels that tells a vocabulary from plain words."""
    from fasttext import train_supervised

    words = f"{FOUND[label]} " * 3
    lines = [
        f"__label__{label} {PLAIN} {words}",
        f"__label__non-{label} {PLAIN}",
        f"__label__{label} {words}",
    ] * 60
    train = path.with_suffix(".txt")
    train.write_text("\n".join(lines) + "\n")
    train_supervised(str(train), epoch=100, dim=4, lr=0.5, thread=1, verbose=0).save_model(str(path))


def test_the_toxicity_recipe_runs_with_models_at_its_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    hate, adult, insult = load(RECIPE).classifier
    for table, label in ((hate, "toxic"), (adult, "nsfw")):
        assert table.label == label
        fasttext_model(tmp_path / table.model, label)
    # Without the encoder, as the recipe says: it works on actors of Ray's, with which tests of encoders deal.
    assert insult.label in LABELS
    recipe = as_plain(load(RECIPE))
    recipe["classifier"] = recipe["classifier"][:2]
    mine = tmp_path / "mine.toml"
    mine.write_text(tomli_w.dumps(recipe))
    texts = {
        "plain": f"{PLAIN}. " * 8,
        "hate": f"{PLAIN} {FOUND['toxic']} {FOUND['toxic']} {FOUND['toxic']}. " * 8,
        "adult": f"{PLAIN} {FOUND['nsfw']} {FOUND['nsfw']} {FOUND['nsfw']}. " * 8,
    }
    rows = [{"id": name, "text": text} for name, text in texts.items()]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    changed = [
        'source.0.inputs=["a.jsonl"]',
        "quality.rules=[]",
        "language.min_score=0.0",
        "language.prefilter=false",
        'ray.address="none"',
    ]
    call = ["run", str(mine), "--json", *(part for each in changed for part in ("--set", each))]
    assert main(call) == 0
    assert json.loads(capsys.readouterr().out)["num_kept"] == 1
    found = query(Folder("out/toxicity"), "SELECT record_id, rule FROM documents").rows
    assert {str(name): rule for name, rule in found} == {
        "plain": None,
        "hate": "classifier.hate",
        "adult": "classifier.adult",
    }


def test_where_a_model_is_missing_the_run_says_which_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"id": "a", "text": "b"}\n')
    call = ["run", str(RECIPE), "--set", 'source.0.inputs=["a.jsonl"]', "--set", 'ray.address="none"']
    assert main(call) == 2
    said = capsys.readouterr().err
    assert "classifier.model: 'models/" in said
    assert "is not there: expected the file of a fastText model, or the folder of an encoder" in said
    assert not (tmp_path / "out").exists()
