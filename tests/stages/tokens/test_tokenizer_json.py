"""A tokenizer.json of any family: the ids of the library that made it, one end, nothing put before and
nothing cut."""

from __future__ import annotations

import functools
import json
import os
import pickle
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers
from tokenizers import Tokenizer as HfTokenizer

from lineage.recipe import RecipeError
from stages.tokens.end_of_text import KNOWN_ENDS, choose_end
from stages.tokens.tokenizer import Tokenizer, load_tokenizer
from stages.tokens.tokenizer_json import MARK
from tests.support.inputs import tokenizer_files as kinds
from tests.support.inputs.tokenizer_files import (
    BY_LIBRARY,
    BY_TIKTOKEN,
    ENDS,
    LINES,
    Kind,
    library_ids,
    made,
    saved,
)

ALL = (*BY_TIKTOKEN, *BY_LIBRARY)
of_every_kind = pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)


@functools.cache
def loaded(kind: Kind) -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        return load_tokenizer(saved(kind, Path(folder)), ENDS.get(kind))


def special_names(kind: Kind) -> list[str]:
    return [token.content for token in made(kind).get_added_tokens_decoder().values() if token.special]


def texts() -> st.SearchStrategy[str]:
    """Text of any code points, and of what normalizers, splits, added tokens and byte fallback look at."""
    blanks = [" ", "  ", "   ", " " * 30, "\n", "\n\n\n", "\r\n", "\t", "\u3000", "\u00a0", "▁"]
    words = [
        "'s",
        "'LL",
        "a",
        "É",
        "e\u0301",
        "ﬁ",
        "日本語",
        "123456",
        "4",
        "page",
        "für",
        "if",
        "iffy",
        "house",
    ]
    odd = [
        "<tool_call>",
        "<think",
        "!",
        "...",
        "\u0130",
        "\ua7ce",
        "\U0001f600",
        "\u1e9b\u0323",
        "\x00",
        MARK,
        "##a",
    ]
    anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    return st.lists(st.one_of(st.sampled_from(blanks + words + odd), anything), max_size=25).map("".join)


@pytest.mark.differential("stages/tokens")
@of_every_kind
@settings(max_examples=60, deadline=None)
@given(text=texts())
def test_a_text_gets_the_ids_that_the_library_gives_it(kind: Kind, text: str) -> None:
    if any(name in text for name in special_names(kind)):
        return
    tokenizer = loaded(kind)
    tokens = tokenizer.encode(text)
    assert tokens.tolist() == library_ids(kind, text)
    assert tokens.dtype.name == "uint32"
    assert tokenizer.eot_id not in tokens
    assert len(tokens) == 0 or int(tokens.max()) < tokenizer.vocab_size
    if tokenizer.keeps(text):
        assert tokenizer.decode(tokens) == text


@pytest.mark.parametrize("kind", BY_TIKTOKEN, ids=lambda kind: kind.__name__)
def test_what_tiktoken_can_express_goes_through_tiktoken(kind: Kind) -> None:
    assert loaded(kind).why_slow == ""
    assert len(loaded(kind).lines()) == 1
    assert loaded(kind).keeps(LINES[0])


@pytest.mark.parametrize("kind", BY_LIBRARY, ids=lambda kind: kind.__name__)
def test_what_it_cannot_is_said_with_the_reason(kind: Kind) -> None:
    said = " ".join(loaded(kind).lines())
    assert f"tiktoken cannot express {kind.__name__}.json: {loaded(kind).why_slow}." in said
    assert "the tokenizers library encodes" in said


@pytest.mark.differential("stages/tokens")
def test_a_text_that_is_not_nfc_is_normalised_as_the_library_does() -> None:
    for text in ("e\u0301", "a\u0327\u0301 \u212b", "\u1112\u1161\u11ab", "\u0958"):
        assert not unicodedata.is_normalized("NFC", text)
        assert loaded(kinds.qwen).encode(text).tolist() == library_ids(kinds.qwen, text)
        assert not loaded(kinds.qwen).keeps(text)


@pytest.mark.differential("stages/tokens")
@pytest.mark.slow
@pytest.mark.parametrize("kind", [kinds.gpt2, kinds.qwen, kinds.neox], ids=lambda kind: kind.__name__)
def test_code_points_are_split_and_normalised_as_the_library_does(kind: Kind) -> None:
    """tiktoken's engine and Python know Unicode of other releases than the library: NFC of one is NFC of the
    other."""
    ideographs = range(
        0x2F800, 0x2FA20
    )  # what lies between and beyond is alike: ideographs, private and unassigned
    characters = [chr(code) for code in (*range(0x20000), *ideographs) if not 0xD800 <= code < 0xE000]
    for context in ("{0}", "a{0}\u0301 {0}1{0}!{0}\n", "{0}\u0328\u0301"):
        for first in range(0, len(characters), 5000):
            text = " ".join(context.format(character) for character in characters[first : first + 5000])
            for one in (text, unicodedata.normalize("NFC", text)):
                (theirs,) = made(kind).encode_batch_fast([one], add_special_tokens=False)
                assert loaded(kind).encode(one).tolist() == theirs.ids, hex(ord(characters[first]))


@pytest.mark.differential("stages/tokens")
@of_every_kind
def test_no_text_makes_a_special_token(kind: Kind) -> None:
    tokenizer, theirs = loaded(kind), made(kind)
    fallback = isinstance(theirs.model, models.BPE) and theirs.model.byte_fallback
    names = [name for name in special_names(kind) if not (fallback and name.startswith("<0x"))]
    never = {theirs.token_to_id(name) for name in names} - {tokenizer.unknown_id} | {tokenizer.eot_id}
    for name in {*names, tokenizer.end.token}:
        for text in (
            name,
            f"a {name} b",
            f"{name}{name}",
            f" {name}\n",
            f"{MARK}{name}",
            f"▁{name}",
            f"x{name}y{MARK}",
        ):
            assert not never & set(tokenizer.encode(text).tolist()), text


def test_a_piece_of_the_name_of_a_special_token_is_no_special_token() -> None:
    """Unigram's pieces hold them, and the library itself gives their ids to a page that writes them."""
    assert made(kinds.unigram_bytes).token_to_id("</s>") in library_ids(kinds.unigram_bytes, "a </s> b")
    tokens = loaded(kinds.unigram_bytes).encode("a </s> b")
    assert loaded(kinds.unigram_bytes).decode(tokens) == "a </s> b"


def test_merges_that_make_a_special_token_are_left_out(tmp_path: Path) -> None:
    raw = json.loads(made(kinds.gpt2).to_str())
    word = next(left + right for left, right in raw["model"]["merges"] if (left + right).isalpha())
    raw["added_tokens"].append(raw["added_tokens"][0] | {"id": raw["model"]["vocab"][word], "content": word})
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    tokenizer = load_tokenizer(str(tmp_path / "tokenizer.json"), word)
    assert (tokenizer.end.token, tokenizer.eot_id) == (word, raw["model"]["vocab"][word])
    for text in (word, f" {word}{word}", *LINES):
        tokens = tokenizer.encode(text)
        assert tokenizer.eot_id not in tokens
        assert tokenizer.decode(tokens) == text


def test_truncation_padding_dropout_and_what_comes_before_a_text_are_switched_off() -> None:
    text = " ".join(LINES[:5])
    plain = loaded(kinds.gpt2)
    assert len(plain.encode(text)) > 64
    for kind in (kinds.truncating, kinds.with_dropout):
        assert loaded(kind).encode(text).tolist() == plain.encode(text).tolist()
        assert loaded(kind).hash == plain.hash
    llama = loaded(kinds.llama2)
    assert made(kinds.llama2).encode(text).ids[0] == made(kinds.llama2).token_to_id("<s>") == 1
    assert llama.encode(text)[0] != 1


@of_every_kind
def test_ids_do_not_hang_on_what_was_encoded_before_nor_on_the_process(kind: Kind) -> None:
    tokenizer = loaded(kind)
    alone = [tokenizer.encode(text).tolist() for text in LINES[:20]]
    assert [tokens.tolist() for tokens in tokenizer.encode_batch(LINES[19::-1])] == alone[::-1]
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert (copy.hash, copy.end, copy.vocab_size) == (tokenizer.hash, tokenizer.end, tokenizer.vocab_size)
    assert [copy.encode(text).tolist() for text in LINES[:20]] == alone


def test_the_library_makes_no_threads_of_its_own() -> None:
    """Whatever a worker's environment says, unless it says so itself."""
    code = (
        "import os, sys; from stages.tokens.tokenizer import load_tokenizer; t = load_tokenizer(sys.argv[1]);"
        "t.encode_batch(['a b c'] * 64);"
        "print(os.environ['TOKENIZERS_PARALLELISM'], len(os.listdir('/proc/self/task')))"
    )
    before = "import os; import stages.tokens.tokenizer; print(len(os.listdir('/proc/self/task')))"
    with tempfile.TemporaryDirectory() as folder:
        path = saved(kinds.deepseek, Path(folder))
        env = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
        with_it, without = (
            subprocess.run(
                [sys.executable, "-c", *arguments], env=env, capture_output=True, text=True, check=True
            )
            for arguments in ([code, path], [before])
        )
    assert with_it.stdout.split() == ["false", without.stdout.strip()]


@pytest.mark.hostile("stages/tokens")
@pytest.mark.parametrize(
    "kind", [kinds.deepseek, kinds.llama2, kinds.gemma, kinds.t5, kinds.unigram_bytes, kinds.bert, kinds.neox],
    ids=lambda kind: kind.__name__,
)  # fmt: skip
@pytest.mark.parametrize("piece", ["a", " ", "\n", "<", "中", "1", " \n", "\u0301"])
def test_an_endless_run_is_encoded_in_bounded_time(kind: Kind, piece: str) -> None:
    text = piece * (200_000 // len(piece)) + "b"
    tokens = loaded(kind).encode(text)
    assert len(tokens) > 0 and int(tokens.max()) < loaded(kind).vocab_size


def test_a_lone_surrogate_is_refused() -> None:
    for kind in (kinds.qwen, kinds.llama2, kinds.neox):
        with pytest.raises(UnicodeEncodeError):
            loaded(kind).encode("a\ud800b")


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        (kinds.gpt2, "<|endoftext|>"),
        (kinds.llama3, "<|end_of_text|>"),
        (kinds.qwen, "<|endoftext|>"),
        (kinds.deepseek, "<｜end▁of▁sentence｜>"),
        (kinds.llama2, "</s>"),
        (kinds.gemma, "<eos>"),
        (kinds.t5, "</s>"),
        (kinds.word_level, "<eos>"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_the_end_of_each_family_is_known(kind: Kind, end: str) -> None:
    tokenizer = loaded(kind)
    assert (tokenizer.end.token, tokenizer.eot_id) == (end, made(kind).token_to_id(end))
    assert tokenizer.vocab_size == made(kind).get_vocab_size()
    assert f"Each document ends with {end} (id {tokenizer.eot_id}), its special token" in tokenizer.lines()[0]


def test_without_a_known_name_the_recipe_is_asked_and_no_id_is_invented(tmp_path: Path) -> None:
    path = saved(kinds.bert, tmp_path)
    with pytest.raises(
        RecipeError, match=r"tokenize\.end_of_text: which token.*'\[PAD\]' \(0\), '\[CLS\]' \(2\)"
    ):
        load_tokenizer(path)
    tokenizer = load_tokenizer(path, "[SEP]")
    assert (tokenizer.eot_id, tokenizer.vocab_size) == (3, made(kinds.bert).get_vocab_size())
    assert "tokenize.end_of_text names" in tokenizer.lines()[0]
    with pytest.raises(RecipeError, match=r"'\[EOD\]': bert\.json has no such special token"):
        load_tokenizer(path, "[EOD]")


def test_two_known_names_are_a_doubt(tmp_path: Path) -> None:
    theirs = HfTokenizer.from_str(made(kinds.gpt2).to_str())
    theirs.add_special_tokens(["</s>"])
    theirs.save(str(tmp_path / "two.json"))
    with pytest.raises(RecipeError, match=r"'<\|endoftext\|>' and '</s>' may each be it"):
        load_tokenizer(str(tmp_path / "two.json"))
    assert load_tokenizer(str(tmp_path / "two.json"), "</s>").eot_id == theirs.token_to_id("</s>")


def test_an_added_token_that_the_recipe_names_is_made_by_no_text_any_more(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(saved(kinds.qwen, tmp_path), "</tool_call>")
    assert tokenizer.eot_id == made(kinds.qwen).token_to_id("</tool_call>")
    assert load_tokenizer(saved(kinds.qwen, tmp_path), tokenizer.eot_id).hash == tokenizer.hash
    tokens = tokenizer.encode("<tool_call> a </tool_call>")
    assert made(kinds.qwen).token_to_id("<tool_call>") in tokens and tokenizer.eot_id not in tokens
    assert tokenizer.decode(tokens) == "<tool_call> a </tool_call>"


@pytest.mark.parametrize("unknown", [None, "<unk>"])
def test_without_special_tokens_the_end_is_the_next_free_id(tmp_path: Path, unknown: str | None) -> None:
    vocabulary = {"<unk>": 0, "a": 1, "b": 2}
    theirs = HfTokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    if unknown is not None:
        theirs.add_special_tokens([unknown])
    theirs.save(str(tmp_path / "words.json"))
    tokenizer = load_tokenizer(str(tmp_path / "words.json"))
    assert (tokenizer.eot_id, tokenizer.vocab_size, tokenizer.unknown_id) == (3, 4, 0)
    assert "the next free id" in tokenizer.lines()[0]
    assert tokenizer.decode(np.array([1, 3], dtype=np.uint32)) == "a"


def test_the_id_that_an_index_recorded_names_the_end_again(tmp_path: Path) -> None:
    path = saved(kinds.bert, tmp_path)
    assert (
        load_tokenizer(path, 3).hash
        == load_tokenizer(path, "[SEP]").hash
        != load_tokenizer(path, "[CLS]").hash
    )
    invented = made(kinds.bert).get_vocab_size()
    assert load_tokenizer(path, invented).eot_id == invented  # by an earlier release
    with pytest.raises(RecipeError, match="no special token with id 7"):
        load_tokenizer(path, 7)


def test_named_encodings_and_rank_files_take_the_key_too(tmp_path: Path) -> None:
    assert load_tokenizer("cl100k_base", "<|endofprompt|>").eot_id == 100_276
    assert load_tokenizer("cl100k_base", 100_257).hash == load_tokenizer("cl100k_base").hash
    with pytest.raises(RecipeError, match=r"cl100k_base has no such special token; its special tokens are"):
        load_tokenizer("cl100k_base", "</s>")
    (tmp_path / "mine.tiktoken").write_bytes(load_tokenizer("cl100k_base").rank_bytes())
    assert load_tokenizer(str(tmp_path / "mine.tiktoken"), "<|endoftext|>").eot_id == 100_256
    with pytest.raises(RecipeError, match="it has none: leave the key out"):
        load_tokenizer(str(tmp_path / "mine.tiktoken"), "</s>")


@pytest.mark.parametrize("name", KNOWN_ENDS)
def test_each_known_name_is_taken_where_it_stands_alone(name: str) -> None:
    chosen = choose_end("x.json", {"<|pad|>": 4, name: 9, "<|im_end|>": 5}, None, 10)
    assert (chosen.token, chosen.id) == (name, 9)


def test_sentencepiece_s_own_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e")
    with pytest.raises(
        RecipeError, match=r"SentencePiece's own files are not read.*tokenizer\.json.*save_pretrained"
    ):
        load_tokenizer(str(tmp_path / "tokenizer.model"))


def test_a_tokenizer_that_cannot_encode_every_text_is_refused(tmp_path: Path) -> None:
    theirs = HfTokenizer(models.Unigram([("a", 0.0), ("b", -1.0)]))
    theirs.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(RecipeError, match="a character that it does not know cannot be encoded"):
        load_tokenizer(str(tmp_path / "tokenizer.json"))


def test_an_added_token_whose_id_is_not_the_library_s_is_refused(tmp_path: Path) -> None:
    raw = json.loads(made(kinds.qwen).to_str())
    raw["added_tokens"][-1]["id"] += 40
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    with pytest.raises(
        RecipeError, match=r"'<think>' has id .* in the file, and .* where the tokenizers library loads it"
    ):
        load_tokenizer(str(tmp_path / "tokenizer.json"))


def test_the_oldest_files_which_do_not_name_their_model_load(tmp_path: Path) -> None:
    raw = json.loads(made(kinds.gpt2).to_str())
    del raw["model"]["type"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    assert load_tokenizer(str(tmp_path / "tokenizer.json")).hash == loaded(kinds.gpt2).hash


def test_an_old_normalizer_that_names_no_type_loads(tmp_path: Path) -> None:
    raw = json.loads(made(kinds.gpt2).to_str())
    raw["normalizer"] = {"normalizers": [{"type": "NFC"}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    tokenizer = load_tokenizer(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode("cafe\u0301").tolist() == loaded(kinds.gpt2).encode("caf\xe9").tolist()


def test_an_added_token_that_is_normalised_itself_is_matched_as_the_library_does(tmp_path: Path) -> None:
    theirs = HfTokenizer.from_str(made(kinds.gpt2).to_str())
    theirs.normalizer = normalizers.NFC()
    theirs.add_tokens([AddedToken("cafe\u0301", normalized=True)])
    theirs.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(str(tmp_path / "tokenizer.json"))
    for text in ("un caf\xe9.", "un cafe\u0301."):
        assert tokenizer.encode(text).tolist() == theirs.encode(text).ids
        assert tokenizer.decode(tokenizer.encode(text)) == text or not tokenizer.keeps(text)


@pytest.mark.parametrize("opening", ["[", '{"model":'])
def test_a_file_that_is_nested_without_end_is_refused(tmp_path: Path, opening: str) -> None:
    (tmp_path / "tokenizer.json").write_text(opening * 200_000)
    with pytest.raises(RecipeError, match="is not JSON: its lists and objects are nested more than"):
        load_tokenizer(str(tmp_path / "tokenizer.json"))


def test_an_end_of_text_beyond_the_last_id_of_a_token_is_refused(tmp_path: Path) -> None:
    raw = json.loads(made(kinds.gpt2).to_str())
    raw["added_tokens"] = []
    del raw["model"]["vocab"]["<|endoftext|>"]
    raw["model"]["vocab"]["Ġpage"] = 2**32 - 1
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    with pytest.raises(RecipeError, match=r"ids lie below 2\^32, and its last is 4,294,967,295"):
        load_tokenizer(str(tmp_path / "tokenizer.json"))
    ranks = load_tokenizer("cl100k_base").rank_bytes().splitlines()
    (tmp_path / "mine.tiktoken").write_bytes(
        b"\n".join([*ranks[:256], ranks[256].split()[0] + b" 4294967296"])
    )
    with pytest.raises(RecipeError, match=r"the rank 4294967296: expected ranks below 2\^32"):
        load_tokenizer(str(tmp_path / "mine.tiktoken"))


def test_identity_is_of_what_encodes() -> None:
    hashes = [loaded(kind).hash for kind in ALL if kind not in (kinds.truncating, kinds.with_dropout)]
    assert len(set(hashes)) == len(hashes)
    decoded_otherwise = HfTokenizer.from_str(made(kinds.llama2).to_str())
    decoded_otherwise.decoder = None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "llama2.json")
        decoded_otherwise.save(str(path))
        assert load_tokenizer(str(path)).hash == loaded(kinds.llama2).hash
        decoded_otherwise.normalizer = None
        decoded_otherwise.save(str(path))
        assert load_tokenizer(str(path)).hash != loaded(kinds.llama2).hash


def test_the_file_is_given_along_as_it_is() -> None:
    files = loaded(kinds.truncating).files()
    assert list(files) == ["tokenizer.json", "tokenizer_config.json"]
    assert (
        HfTokenizer.from_str(files["tokenizer.json"].decode()).truncation == made(kinds.truncating).truncation
    )


def test_an_id_that_the_tokenizer_lacks_is_named() -> None:
    for kind in (kinds.qwen, kinds.llama2):
        with pytest.raises(ValueError, match="no token 70000"):
            loaded(kind).decode(np.array([70_000], dtype=np.uint32))
