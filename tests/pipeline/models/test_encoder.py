"""Transformers encoders: scores against transformers called directly, batches, and folders that are none."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from lineage.recipe import RecipeError
from pipeline.models.device import device_of_class, device_of_encoder
from pipeline.models.encoder import check_installed, load_encoder
from stages.chain import build_chain
from stages.document import Document, Place, Rejection
from stages.steps.catalogue import StepTables
from stages.steps.classifier import ClassifierTable
from tests.support.steps.tiny_encoder import make_encoder

TOLERANCE = 1e-5
"""Of a score in another batch: sums in another order."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An encoder with the labels low and high."""
    return make_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Texts of a few to a few hundred words, the empty one among them."""
    rng = random.Random(0)
    words = [
        "the",
        "page",
        "of",
        "words",
        "and",
        "a",
        "long",
        "text",
        "is",
        "for",
        "the",
        "reader",
        "with",
        "in",
        "to",
        "on",
    ]
    return ["", *(" ".join(rng.choices(words, k=rng.randrange(1, 300))) for _ in range(60))]


def table(model: str, **keys: Any) -> ClassifierTable:
    return ClassifierTable(**({"name": "edu", "model": model, "label": "high", "threshold": 0.5} | keys))


def directly(folder: str, text: str) -> torch.Tensor:
    """The outputs of the head for one text, as the library gives them."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        logits: torch.Tensor = model(
            **tokenizer(text, truncation=True, max_length=128, return_tensors="pt")
        ).logits[0]
    return logits


def test_scores_are_the_labels_probabilities_as_transformers_gives_them(folder, texts) -> None:
    scores = load_encoder(table(folder), False)(texts)
    assert len(set(scores)) > 30
    for text, score in list(zip(texts, scores, strict=True))[::7]:
        assert score == pytest.approx(float(directly(folder, text).softmax(-1)[1]), abs=TOLERANCE)
    assert scores != [round(score, 4) for score in scores]


def test_equal_texts_have_scores_equal_to_the_bit_and_in_other_batches_within_the_tolerance(
    folder, texts
) -> None:
    scores = load_encoder(table(folder), False)(texts)
    assert load_encoder(table(folder), False)(texts) == scores
    assert load_encoder(table(folder), False)([*texts, *texts[::-1]]) == [*scores, *scores[::-1]]
    for size in (1, 5, 64):
        others = load_encoder(table(folder, batch_size=size), False)(texts)
        assert others == pytest.approx(scores, abs=TOLERANCE)


def test_a_head_with_one_output_gives_it_as_it_is(tmp_path: Path, texts) -> None:
    folder = make_encoder(tmp_path, ["LABEL_0"])
    scores = load_encoder(table(folder, label="LABEL_0", threshold=3.0), False)(texts)
    assert scores[5] == pytest.approx(float(directly(folder, texts[5])[0]), abs=TOLERANCE)
    assert min(scores) < 0 or max(scores) > 1


def test_labels_that_may_hold_together_have_probabilities_of_their_own(tmp_path: Path, texts) -> None:
    folder = make_encoder(tmp_path, ["low", "high", "spam"])
    change_config(tmp_path, problem_type="multi_label_classification")
    scores = load_encoder(table(folder, label="spam"), False)(texts)
    assert scores[5] == pytest.approx(float(directly(folder, texts[5]).sigmoid()[2]), abs=TOLERANCE)


def test_only_the_beginning_of_a_text_is_looked_at(folder) -> None:
    begin = "the page of words " * 100
    short, long = load_encoder(table(folder, max_tokens=16), False)([begin, begin + "and more " * 1000])
    assert short == long


def test_a_model_of_robertas_kind_has_fewer_positions_than_rows_of_them(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path)
    config = transformers.RobertaConfig(
        vocab_size=json.loads((tmp_path / "config.json").read_text())["vocab_size"],
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=34,
        pad_token_id=0,
        id2label={0: "low", 1: "high"},
        label2id={"low": 0, "high": 1},
    )
    transformers.RobertaForSequenceClassification(config).save_pretrained(folder, safe_serialization=True)
    tokenizer = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del tokenizer["model_max_length"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    begin = "the page of words " * 100
    short, long = load_encoder(table(folder, max_tokens=34), False)([begin, begin + "and more " * 1000])
    assert short == long


def document(text: str) -> Document:
    place = Place(file="a.jsonl", offset=0, length=1)
    return Document(doc_id=bytes(16), source="web", place=place, raw_hash=b"", text=text)


def change_config(folder: Path, **keys: Any) -> None:
    plain = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**plain, **keys}))


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("config.json", r"has no config\.json"),
        (
            "model.safetensors",
            r"has no weights as \*\.safetensors \(pickled weights can hold code and are not read\)",
        ),
        (
            "tokenizer.json",
            r"has no tokenizer\.json: expected a transformers encoder as save_pretrained writes it",
        ),
    ],
)
def test_a_folder_without_its_files_is_refused_before_anything_runs(
    tmp_path: Path, missing: str, said: str
) -> None:
    folder = make_encoder(tmp_path)
    (tmp_path / missing).unlink()
    tables = StepTables(max_document_bytes=100, classifier=(table(folder),), load_encoder=load_encoder)
    with pytest.raises(RecipeError, match=r"classifier\.model: the model folder .*" + said):
        build_chain(("parse", "classifier"), tables).prepare()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"label": "higher"}, r"classifier\.label = 'higher': .* its labels are low, high"),
        ({"threshold": 3.0}, r"classifier\.threshold = 3 of 'edu': expected 0 to 1, where the scores lie"),
    ],
)
def test_a_table_that_does_not_fit_the_model_is_refused(folder, keys, said) -> None:
    tables = StepTables(
        max_document_bytes=100, classifier=(table(folder, **keys),), load_encoder=load_encoder
    )
    with pytest.raises(RecipeError, match=said):
        build_chain(("parse", "classifier"), tables).prepare()


def test_a_model_without_a_head_is_refused(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path)
    change_config(tmp_path, architectures=["BertModel"])
    tables = StepTables(max_document_bytes=100, classifier=(table(folder),), load_encoder=load_encoder)
    with pytest.raises(RecipeError, match="has no classification head"):
        build_chain(("parse", "classifier"), tables).prepare()


def test_weights_that_are_missing_are_never_drawn_at_random(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["classifier.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RecipeError, match=r"has no weights for classifier\.weight: expected a whole model"):
        load_encoder(table(folder), False)


def test_weights_that_cannot_be_read_are_said_in_one_sentence(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(
        RecipeError, match=r"classifier\.model = .* cannot be read as an encoder: \w*Error"
    ) as caught:
        load_encoder(table(folder), False)
    assert "\n" not in str(caught.value)


def test_without_the_extra_a_recipe_with_an_encoder_says_what_to_install(folder, monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        RecipeError, match=r"torch and transformers cannot be imported: install the extra `models`"
    ):
        check_installed([table(folder)])
    check_installed([table("a-fasttext-file.bin")])


def test_a_step_asks_the_model_itself_where_a_document_has_no_answer(folder, texts) -> None:
    tables = StepTables(max_document_bytes=10**6, classifier=(table(folder),), load_encoder=load_encoder)
    chain = build_chain(("parse", "classifier"), tables)
    [score] = load_encoder(table(folder), False)([texts[3]])
    outcome = chain(document(texts[3]))
    assert isinstance(outcome, Rejection) == (score > 0.5)
    assert [(model.name, model.gives_scores) for model in chain.models] == [("classifier.edu", True)]


def test_a_gpu_that_torch_does_not_see_is_said() -> None:
    if torch.cuda.is_available():
        assert device_of_encoder(True) == device_of_class(True) == torch.cuda.get_device_name()
        return
    with pytest.raises(RecipeError, match="this actor was given a GPU and torch sees none"):
        device_of_encoder(True)
    assert (device_of_class(True), device_of_class(False)) == ("gpu", "cpu")
