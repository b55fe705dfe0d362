"""A vocabulary of ranks written as tokenizer.json gives the ids that tiktoken gives."""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HfTokenizer

from pipeline.inspect.first_tokenizer import PROBES
from stages.tokens.tokenizer import Tokenizer, load_tokenizer, train_bpe
from stages.tokens.tokenizer_json import read_tokenizer_json
from stages.tokens.vocabulary import Vocabulary
from stages.tokens.written_json import oniguruma_pattern, tiktoken_pattern, write_tokenizer_json
from trainer.model.config.family_table import FAMILIES

DOCS = Path(__file__).parents[3] / "docs"
ALPHABETS = (
    "日本語中文한국어のテスト東京都", "😀👨\u200d👩\u200d👧🏳️🇩🇪é̂a\u0301", "    \t\n\r\n\u3000\u00a0\u2028\x0b\x0c\x85  ",
    "0123456789٣४５¼²", "'S'll'RE 'ſ ſt K İ ß Ǆ ǅ", "aaaaaaabbbcccAAAA...!!!---===",
    "สวัสดีชาวโลก नमस्ते Привет Ωμέγα שלום مرحبا",
)  # fmt: skip


@functools.cache
def own(folder: str) -> Tokenizer:
    texts = [file.read_text() for file in sorted(DOCS.glob("*.md"))]
    path = Path(folder, "own.tiktoken")
    path.write_bytes(train_bpe(texts, 2048))
    return load_tokenizer(str(path))


@functools.cache
def written(tokenizer: Tokenizer) -> HfTokenizer:
    return HfTokenizer.from_str(tokenizer.files()["tokenizer.json"].decode())


@pytest.fixture(params=["cl100k_base", "o200k_base", "own"], scope="module")
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    if request.param == "own":
        return own(str(tmp_path_factory.getbasetemp()))
    return load_tokenizer(request.param)


def assert_equal_ids(tokenizer: Tokenizer, text: str) -> None:
    ids = written(tokenizer).encode(text, add_special_tokens=False).ids
    assert ids == tokenizer.encode(text).tolist(), text


def test_texts_of_many_scripts_and_white_space_become_the_same_ids(tokenizer: Tokenizer) -> None:
    rng = random.Random(5)
    lines = [
        *PROBES,
        *(line for file in sorted(DOCS.glob("*.md")) for line in file.read_text().splitlines(True)),
    ]
    for _ in range(3000):
        lines.append("".join(rng.choice(rng.choice(ALPHABETS)) for _ in range(rng.randrange(1, 60))))
    for line in lines:
        if not any(token in line for token in ("<|endoftext|>", "<|endofprompt|>")):
            assert_equal_ids(tokenizer, line)


@settings(max_examples=300, deadline=None)
@given(
    text=st.text(alphabet=st.characters(max_codepoint=0x2FFF, exclude_categories=["Cs", "Cn"]), max_size=80)
)
def test_any_text_becomes_the_same_ids(tokenizer: Tokenizer, text: str) -> None:
    assert_equal_ids(tokenizer, text)


def test_the_file_read_back_is_the_same_tokenizer(tokenizer: Tokenizer) -> None:
    data = tokenizer.files()["tokenizer.json"]
    again = Tokenizer(read_tokenizer_json("tokenizer.json", data))
    assert (again.hash, again.eot_id, again.vocab_size) == (
        tokenizer.hash,
        tokenizer.eot_id,
        tokenizer.vocab_size,
    )


def test_transformers_opens_the_folder_and_ends_documents_as_the_data_does(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    for name, data in tokenizer.files().items():
        (tmp_path / name).write_bytes(data)
    opened = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    text = "It's 12345 straße,\n\n  新しい <tag>"
    assert opened(text)["input_ids"] == tokenizer.encode(text).tolist()
    assert opened.decode(opened(text)["input_ids"]) == text
    assert opened.eos_token_id == opened.bos_token_id == tokenizer.eot_id


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"\p{N}{1,3}+| ?x", r"(?>\p{N}{1,3})| ?x"),
        (r"[a-z\]]{2,}+", r"(?>[a-z\]]{2,})"),
        (r"\p{L}++|\p{N}{1,3}|x?+", r"\p{L}++|\p{N}{1,3}|x?+"),
    ],
    ids=["count", "open count", "nothing to change"],
)
def test_a_pattern_is_written_for_oniguruma_and_read_back(pattern: str, expected: str) -> None:
    assert oniguruma_pattern(pattern) == expected
    assert tiktoken_pattern(expected) == pattern


def test_a_vocabulary_to_which_the_library_gives_other_ids_is_given_as_ranks_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_its_last_merges(vocabulary: Vocabulary) -> bytes:
        table = json.loads(write_tokenizer_json(vocabulary))
        table["model"] |= {"merges": table["model"]["merges"][:-500], "ignore_merges": False}
        return json.dumps(table).encode()

    monkeypatch.setattr("stages.tokens.tokenizer.write_tokenizer_json", without_its_last_merges)
    assert list(own(str(tmp_path)).files()) == ["tokenizer.tiktoken"]


@pytest.mark.parametrize("family", [name for name, row in FAMILIES.items() if not row.planned_only])
def test_auto_tokenizer_keeps_the_ids_of_every_family_that_has_no_splitting_of_its_own(
    family: str, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = own(str(tmp_path))
    for name, data in tokenizer.files().items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    text = "It's 12345 straße,\n\n  新しい <tag> 1234567"
    ids = transformers.AutoTokenizer.from_pretrained(str(tmp_path))(text)["input_ids"]
    assert (ids != tokenizer.encode(text).tolist()) == FAMILIES[family].own_splitting
    plain = transformers.PreTrainedTokenizerFast.from_pretrained(str(tmp_path))
    assert plain(text)["input_ids"] == tokenizer.encode(text).tolist()
