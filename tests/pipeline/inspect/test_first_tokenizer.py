"""Weights whose ids are other tokens than those of the data are refused before a run begins."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex
from tokenizers import Tokenizer as HfTokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer

from lineage.index.output_index import TokenizerIdentity, make_index, publish_index, read_index
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from pipeline.cli.main import main
from pipeline.inspect.first_tokenizer import compare_file
from stages.tokens.tokenizer import load_tokenizer, splitter, train_bpe
from tests.support.inputs.tokenizer_files import LINES
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.training.weights_folders import random_tensors, write_folder
from trainer.data.corpus import Corpus, open_corpus
from trainer.huggingface.same_tokenizer import CompareFile, check_first_tokenizer
from trainer.model.config.sizes import model_config
from trainer.options import DataTable, TrainTable

VOCAB = 400
END = "<|endoftext|>"
Made = dict[str, Any]


def made(vocab: int = VOCAB, end: str = END, pattern: str | None = None) -> Made:
    """A tokenizer.json of the merges that `train_bpe` learns."""
    tokenizer = HfTokenizer(BPE())
    tokenizer.pre_tokenizer = (
        splitter()
        if pattern is None
        else Sequence([Split(Regex(pattern), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])
    )
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(vocab_size=vocab - 1, initial_alphabet=ByteLevel.alphabet(), show_progress=False)
    learner = HfTokenizer(BPE())
    learner.pre_tokenizer = splitter()
    learner.train_from_iterator(LINES, trainer=trainer)
    tokenizer.model = learner.model
    tokenizer.add_special_tokens([end])
    found: Made = json.loads(tokenizer.to_str())
    return found


def with_chat_tokens() -> Made:
    tokenizer = HfTokenizer.from_str(json.dumps(made()))
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    found: Made = json.loads(tokenizer.to_str())
    return found


def swapped() -> Made:
    found = made()
    vocab = found["model"]["vocab"]
    one, other = (next(token for token, id_ in vocab.items() if id_ == at) for at in (300, 310))
    vocab[one], vocab[other] = 310, 300
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ranks") / "mine.tiktoken"
    path.write_bytes(train_bpe(LINES, VOCAB))
    return path


def corpus(folder: Path, file: Path, sources: tuple[str, ...] = ("web",)) -> Corpus:
    """Data of this tokenizer."""
    out = make_corpus(str(folder / "out"), {name: [500] for name in sources})
    index, tokenizer = read_index(out), load_tokenizer(str(file))
    identity = TokenizerIdentity(
        name=str(file), hash=tokenizer.hash, vocab_size=tokenizer.vocab_size, eot_id=tokenizer.eot_id
    )
    publish_index(out, make_index(identity, index.shards, index.documents, index.dedup))
    return open_corpus([DataTable(out=out.url)])


def weights(folder: Path, files: Mapping[str, bytes | Made]) -> Path:
    folder.mkdir()
    for name, content in {"config.json": b"{}", **files}.items():
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        (folder / name).write_bytes(data)
    return folder


def asked(data: Corpus, folder: Path, compare: CompareFile | None = compare_file, **keys: bool) -> list[str]:
    table = TrainTable(
        data=data.outputs[0].url,
        output="/nowhere",
        model="debug",
        seq_len=8,
        global_batch=1,
        steps=1,
        init_from=str(folder),
        **keys,
    )
    return check_first_tokenizer(table, data, compare)


@pytest.mark.parametrize("maker", [made, with_chat_tokens])
@pytest.mark.parametrize("as_ranks", [True, False])
def test_the_same_tokenizer_passes_whatever_file_it_lies_in(
    maker: Callable[[], Made], as_ranks: bool, ranks: Path, tmp_path: Path
) -> None:
    """Special tokens that only the folder has are made by no text."""
    file = ranks
    if not as_ranks:
        file = tmp_path / "tokenizer.json"
        file.write_text(json.dumps(made()))
    data = corpus(tmp_path, file)
    assert asked(data, weights(tmp_path / "hf", {"tokenizer.json": maker()})) == []
    assert asked(data, weights(tmp_path / "other", {"its.tiktoken": ranks.read_bytes()})) == []


REFUSED: dict[str, tuple[Callable[[], Made], str]] = {
    "two ids swapped": (swapped, r"id 300 is '.+' in the folder and '.+' in the data"),
    "another split": (
        lambda: made(pattern=r"\p{L}+|\p{N}|[^\p{L}\p{N}]+"),
        r"the text .* becomes, from its token \d+ on, \[[\d, ]+\] with the folder's and \[[\d, ]+\] with",
    ),
    "another special token": (
        lambda: made(end="<|im_start|>"),
        r"id 399 is '<\|im_start\|>' in the folder and '<\|endoftext\|>' in the data",
    ),
    "a larger vocabulary": (lambda: made(420), "has no special token with id 399, which ends the documents"),
    "a smaller vocabulary": (lambda: made(380), "has no special token with id 399"),
    "no tokenizer": (lambda: {"model": {}}, r"tokenizer\.json cannot be read: "),
}


@pytest.mark.parametrize(("maker", "message"), REFUSED.values(), ids=REFUSED)
def test_another_tokenizer_is_refused_by_what_differs_first_unless_a_key_allows_it(
    maker: Callable[[], Made], message: str, ranks: Path, tmp_path: Path
) -> None:
    data = corpus(tmp_path, ranks)
    folder = weights(tmp_path / "hf", {"tokenizer.json": maker()})
    with pytest.raises(RecipeError, match=message) as refused:
        asked(data, folder)
    assert re.match(r"train\.init_from = '.*hf': its tokenizer is another", str(refused.value))
    assert "train.change_tokenizer = true trains on" in str(refused.value)
    assert asked(data, folder, change_tokenizer=True) == []


def test_an_end_of_another_known_name_means_the_same(ranks: Path, tmp_path: Path) -> None:
    data = corpus(tmp_path, ranks)
    assert asked(data, weights(tmp_path / "hf", {"tokenizer.json": made(end="</s>")})) == []


@pytest.mark.parametrize(
    ("vocab", "message"),
    [
        (380, r"id 379 is no token in the folder and '.+' in the data"),
        (420, r"id 399 is '.+' in the folder and '<\|endoftext\|>' in the data"),
    ],
)
def test_ranks_alone_are_compared_with_ranks(vocab: int, message: str, ranks: Path, tmp_path: Path) -> None:
    """More of them are other merges; fewer are a vocabulary that may be extended."""
    data = corpus(tmp_path, ranks)
    folder = weights(tmp_path / "hf", {"its.tiktoken": train_bpe(LINES, vocab)})
    with pytest.raises(RecipeError, match=message):
        asked(data, folder)
    if vocab < VOCAB:
        assert asked(data, folder, extend_vocabulary=True) == []


def test_a_tokenizer_of_the_data_that_has_moved_is_told(ranks: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved.tiktoken"
    moved.write_bytes(ranks.read_bytes())
    data = corpus(tmp_path, moved)
    moved.unlink()
    (line,) = asked(data, weights(tmp_path / "hf", {"tokenizer.json": made()}))
    assert "tokenizer.json (400 ids) could not be compared with the tokenizer of the data (400 ids)" in line
    assert asked(data, weights(tmp_path / "equal", {"mine.tiktoken": ranks.read_bytes()})) == []


def test_a_call_is_refused_before_a_run_begins(
    ranks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, model = corpus(tmp_path, ranks), model_config("debug", VOCAB)
    folder = write_folder(tmp_path / "hf", random_tensors(model), model, max_position_embeddings=64)
    (folder / "tokenizer.json").write_text(json.dumps(swapped()))
    recipe = tmp_path / "train.toml"
    recipe.write_text(
        f'run.name = "mine"\n[train]\ndata = "{data.outputs[0].url}"\noutput = "{tmp_path}/run"\nmodel = "debug"\n'
        f'seq_len = 64\nglobal_batch = 2\nsteps = 1\ninit_from = "{folder}"\n'
    )
    assert main(["train", str(recipe)]) == 2
    assert "id 300 is" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_an_ablation_tells_what_a_training_does(
    ranks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, model = corpus(tmp_path, ranks, ("web", "books")), model_config("debug", VOCAB)
    folder = write_folder(tmp_path / "hf", random_tensors(model), model, max_position_embeddings=64)
    recipe = tmp_path / "train.toml"
    recipe.write_text(
        f'run.name = "mine"\n[train]\ndata = "{data.outputs[0].url}"\noutput = "{tmp_path}/run"\nmodel = "debug"\n'
        f'seq_len = 8\nglobal_batch = 1\nsteps = 1\nvalidation = 0.2\ninit_from = "{folder}"\n'
        '[mix]\nruns = 4\nheld_out = 0\nproxy = {model = "debug", tokens = 800}\n'
    )
    main(["mix", "design", str(recipe)])
    assert f"{folder} names no tokenizer" in capsys.readouterr().err


def test_what_names_no_tokenizer_and_what_is_not_read_here_is_told(ranks: Path, tmp_path: Path) -> None:
    data = corpus(tmp_path, ranks)
    (line,) = asked(data, weights(tmp_path / "bare", {}))
    assert line.endswith("bare names no tokenizer: its ids are taken as those of the data")
    (line,) = asked(data, weights(tmp_path / "hf", {"tokenizer.json": swapped()}), compare=None)
    assert re.search(r"hf/tokenizer\.json is not compared .* here: `sluice train` compares it", line)


def test_what_an_export_and_a_run_recorded_is_compared_without_a_file(ranks: Path, tmp_path: Path) -> None:
    data = corpus(tmp_path, ranks)
    same = data.tokenizer.to_json()
    other = {**same, "name": "theirs", "hash": "ab" * 16}
    refusal = r"its run recorded theirs \(400 ids, 399 ends a document, hash abab"
    assert asked(data, weights(tmp_path / "same", {"sluice.json": {"tokenizer": same}}), None) == []
    with pytest.raises(RecipeError, match=refusal):
        asked(data, weights(tmp_path / "other", {"sluice.json": {"tokenizer": other}}), None)
    (line,) = asked(data, weights(tmp_path / "earlier", {"sluice.json": {"run": "r"}}), None)
    assert "names no tokenizer" in line
    for number, damaged in enumerate((b'{"out', b"[]", b'{"tokenizer": {"hash": "ab"}}')):
        with pytest.raises(RecipeError, match=r"sluice\.json is not as `sluice export` writes it"):
            asked(data, weights(tmp_path / f"damaged-{number}", {"sluice.json": damaged}))

    run = Folder(str(tmp_path / "run"))
    for place in ("run/checkpoints", "apart"):
        (tmp_path / place).mkdir(parents=True)
        checkpoint = weights(tmp_path / place / "step-1", {"complete.json": b"{}"})
        if place == "apart":
            (tmp_path / place / "run.json").write_text(json.dumps({"output": run.url}))
        run.publish("model.json", json.dumps({"tokenizer": same}).encode())
        assert asked(data, checkpoint, None) == []
        run.publish("model.json", json.dumps({"tokenizer": other}).encode())
        with pytest.raises(RecipeError, match=refusal):
            asked(data, checkpoint, None)
