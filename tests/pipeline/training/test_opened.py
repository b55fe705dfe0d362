"""A model is opened with the tokenizer that its run recorded, its folder holds, or the caller names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer as HfTokenizer
from tokenizers.processors import TemplateProcessing

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from pipeline.export.checkpoint import export_checkpoint
from pipeline.training.opened import open_text_model
from stages.tokens.tokenizer import load_tokenizer, train_bpe
from tests.support.outputs.own_tokenizer import make_own_tokenizer_out
from tests.support.training.training_runs import Run

TEXTS = [
    f"The {name} and the boats of the harbour, in the year {1700 + number}."
    for number in range(60)
    for name in ("gulls", "nets")
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on tokens of own.tiktoken, and its export."""
    folder = tmp_path_factory.mktemp("opened")
    make_own_tokenizer_out(folder, TEXTS, 280)
    Run(data=str(folder / "out"), output=folder / "run", changes={"steps": 1, "global_batch": 2}).start()
    export_checkpoint(Folder(str(folder / "run")), str(folder / "hf"), tokenizer=str(folder / "own.tiktoken"))
    return folder


def test_an_export_opens_with_the_tokenizer_in_it(folder: Path) -> None:
    found = open_text_model(str(folder / "hf")).text
    assert found.tokenizer.hash == load_tokenizer(str(folder / "own.tiktoken")).hash
    assert (found.prefix_id, found.begins) == (found.tokenizer.eot_id, ())


def test_a_run_opens_with_the_tokenizer_of_its_data_or_the_one_that_is_named(folder: Path) -> None:
    """A run records only the name of a tokenizer file; the recipe of its data has the path."""
    assert open_text_model(str(folder / "run")).text.tokenizer.hash
    (folder / "out").rename(folder / "gone")
    try:
        with pytest.raises(RecipeError, match=r"its tokenizer own\.tiktoken is not here: --tokenizer says"):
            open_text_model(str(folder / "run"))
        found = open_text_model(str(folder / "run"), tokenizer=str(folder / "own.tiktoken"))
    finally:
        (folder / "gone").rename(folder / "out")
    assert found.opened.checkpoint is not None
    assert found.text.tokenizer.decode(found.text.tokenizer.encode("boats")) == "boats"
    (folder / "other.tiktoken").write_bytes(train_bpe(TEXTS, 270))
    with pytest.raises(RecipeError, match=r"other\.tiktoken: another tokenizer than own\.tiktoken"):
        open_text_model(str(folder / "run"), tokenizer=str(folder / "other.tiktoken"))


def test_a_folder_of_nobody_we_know_begins_texts_as_its_own_tokenizer_does(
    folder: Path, tmp_path: Path
) -> None:
    theirs = Path(shutil.copytree(folder / "hf", tmp_path / "theirs"))
    (theirs / "sluice.json").unlink()
    library = HfTokenizer.from_file(str(theirs / "tokenizer.json"))
    library.add_special_tokens(["<s>"])
    begin = library.token_to_id("<s>")
    library.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", begin)])
    library.save(str(theirs / "tokenizer.json"))
    config = json.loads((theirs / "config.json").read_text())
    (theirs / "config.json").write_text(json.dumps(config | {"bos_token_id": begin}))
    found = open_text_model(str(theirs)).text
    assert (found.prefix_id, found.begins) == (begin, (begin,))
    assert found.tokenizer.eot_id == config["eos_token_id"]
    (theirs / "tokenizer.json").unlink()
    with pytest.raises(RecipeError, match=r"has no tokenizer\.json: --tokenizer says"):
        open_text_model(str(theirs))
