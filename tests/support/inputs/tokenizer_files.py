"""Small tokenizers of the kinds that models are published with, made by the `tokenizers` library itself.

Each has the normalizer, split, model and added tokens of its family, learnt from a few hundred lines."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as HfTokenizer

END: Final = "<|endoftext|>"
WORDS: Final = ("house", "tokenizer", "naïve", "STRASSE", "don't", "日本語", "größer", "x2y")
LINES: Final = [
    f"The {word} of page {n}, isn't it?  Preis: {n * 37} € für {word}s.\n\n\tif ({word}) {{ return {n}; }}"
    for n in range(60)
    for word in WORDS
]

_QWEN_SPLIT: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK_SPLITS: Final = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)


def _bpe(model: models.BPE, **options: Any) -> HfTokenizer:
    """A BPE of 600 tokens by these normalizer and pre-tokenizer."""
    special = options.pop("special", [END])
    alphabet = options.pop("alphabet", pre_tokenizers.ByteLevel.alphabet())
    tokenizer = HfTokenizer(model)
    for name, value in options.items():
        setattr(tokenizer, name, value)
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=alphabet, special_tokens=list(special), show_progress=False
    )
    tokenizer.train_from_iterator(LINES, trainer=trainer)
    return tokenizer


def _bytes() -> pre_tokenizers.ByteLevel:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def _splits(*patterns: str) -> pre_tokenizers.Sequence:
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*splits, _bytes()])


def gpt2() -> HfTokenizer:
    return _bpe(models.BPE(), pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False))


def llama3() -> HfTokenizer:
    tokenizer = _bpe(models.BPE(ignore_merges=True), pre_tokenizer=_splits(_QWEN_SPLIT), special=[])
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|reserved_0|>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A",
        special_tokens=[("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))],
    )
    return tokenizer


def qwen() -> HfTokenizer:
    tokenizer = _bpe(
        models.BPE(), normalizer=normalizers.NFC(), pre_tokenizer=_splits(_QWEN_SPLIT), special=[]
    )
    tokenizer.add_special_tokens([END, "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens(
        [AddedToken(text, normalized=False) for text in ("<tool_call>", "</tool_call>", "<think>")]
    )
    return tokenizer


def neox(normalized: bool = False) -> HfTokenizer:
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = _bpe(
        models.BPE(), normalizer=normalizers.NFC(), pre_tokenizer=plain, special=[END, "<|padding|>"]
    )
    tokenizer.add_tokens([AddedToken(" " * width, normalized=normalized) for width in range(24, 1, -1)])
    return tokenizer


def olmo() -> HfTokenizer:
    return neox(normalized=True)


def deepseek() -> HfTokenizer:
    tokenizer = _bpe(
        models.BPE(),
        normalizer=normalizers.Sequence([]),
        pre_tokenizer=_splits(*_DEEPSEEK_SPLITS),
        special=[],
    )
    tokenizer.add_special_tokens(["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"])
    return tokenizer


def starcoder() -> HfTokenizer:
    digits = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return _bpe(
        models.BPE(), pre_tokenizer=digits, special=[END, "<fim_prefix>", "<fim_suffix>", "<filename>"]
    )


_BYTES: Final = [f"<0x{byte:02X}>" for byte in range(256)]
_SENTENCEPIECE: Final = ["<unk>", "<s>", "</s>", *_BYTES]


def _llama_decoder() -> decoders.Sequence:
    return decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )


def _fallback() -> models.BPE:
    return models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True)


def llama2() -> HfTokenizer:
    """One word from the first character to the last, as Llama 2's file has it."""
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    split = pre_tokenizers.Split("▁", "merged_with_next")
    tokenizer = _bpe(
        _fallback(), normalizer=normalizer, pre_tokenizer=split, special=_SENTENCEPIECE, alphabet=["▁"]
    )
    tokenizer.pre_tokenizer = None
    tokenizer.decoder = _llama_decoder()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def mistral() -> HfTokenizer:
    space = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=True)
    tokenizer = _bpe(_fallback(), pre_tokenizer=space, special=_SENTENCEPIECE, alphabet=["▁"])
    tokenizer.decoder = _llama_decoder()
    return tokenizer


def gemma() -> HfTokenizer:
    special = ["<pad>", "<eos>", "<bos>", "<unk>", *_BYTES]
    split = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer = _bpe(
        _fallback(),
        normalizer=normalizers.Replace(" ", "▁"),
        pre_tokenizer=split,
        special=special,
        alphabet=["▁"],
    )
    tokenizer.add_tokens([AddedToken("\n" * width, normalized=False) for width in range(2, 8)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def _unigram(tokenizer: HfTokenizer, special: Sequence[str]) -> HfTokenizer:
    trainer = trainers.UnigramTrainer(
        vocab_size=400, special_tokens=list(special), unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(LINES, trainer=trainer)
    return tokenizer


def t5() -> HfTokenizer:
    tokenizer = HfTokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return _unigram(tokenizer, ["<pad>", "</s>", "<unk>"])


def unigram_bytes() -> HfTokenizer:
    """A Unigram with byte fallback, whose pieces hold its special tokens too, as SentencePiece's conversions
    do."""
    learnt = json.loads(t5().to_str())["model"]["vocab"]
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), *((byte, -20.0) for byte in _BYTES)]
    tokenizer = HfTokenizer(models.Unigram([*pieces, *map(tuple, learnt[3:])], unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = _llama_decoder()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def bert() -> HfTokenizer:
    tokenizer = HfTokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(
        LINES, trainer=trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    )
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def word_level() -> HfTokenizer:
    tokenizer = HfTokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordLevelTrainer(
        vocab_size=300, special_tokens=["<unk>", "<eos>"], show_progress=False
    )
    tokenizer.train_from_iterator(LINES, trainer=trainer)
    return tokenizer


def lowercase() -> HfTokenizer:
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return _bpe(models.BPE(), normalizer=normalizers.Lowercase(), pre_tokenizer=plain)


def prefix_space() -> HfTokenizer:
    return _bpe(models.BPE(), pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True))


def stripping() -> HfTokenizer:
    """Added tokens that take white space with them, or stand only as whole words."""
    tokenizer = gpt2()
    tokenizer.add_tokens(
        [AddedToken("page", lstrip=True), AddedToken("für", rstrip=True), AddedToken("if", single_word=True)]
    )
    return tokenizer


def truncating() -> HfTokenizer:
    tokenizer = gpt2()
    tokenizer.enable_truncation(max_length=16)
    tokenizer.enable_padding(length=64, pad_id=0, pad_token="!")
    return tokenizer


def with_dropout() -> HfTokenizer:
    tokenizer = gpt2()
    tokenizer.model.dropout = 0.4
    return tokenizer


def turned_merges() -> HfTokenizer:
    raw = json.loads(gpt2().to_str())
    raw["model"]["merges"] = raw["model"]["merges"][::-1]
    return HfTokenizer.from_str(json.dumps(raw))


BY_TIKTOKEN: Final = (gpt2, llama3, qwen, neox, olmo, truncating, with_dropout)
BY_LIBRARY: Final = (
    deepseek, starcoder, llama2, mistral, gemma, t5, unigram_bytes, bert, word_level, lowercase, prefix_space,
    stripping, turned_merges,
)  # fmt: skip
ENDS: Final = {bert: "[SEP]"}
"""The tokens that end documents where no name tells."""

Kind = Callable[[], HfTokenizer]


@functools.cache
def made(kind: Kind) -> HfTokenizer:
    """The tokenizer of this kind, as its library has it: to compare with, and not to change."""
    return kind()


def saved(kind: Kind, folder: Path) -> str:
    """The path of its tokenizer.json."""
    path = folder / f"{kind.__name__}.json"
    made(kind).save(str(path))
    return str(path)


def library_ids(kind: Kind, text: str) -> list[int]:
    """What the library gives for the whole text and nothing else."""
    tokenizer = HfTokenizer.from_str(made(kind).to_str())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if isinstance(tokenizer.model, models.BPE):
        tokenizer.model.dropout = None
    return list(tokenizer.encode(text, add_special_tokens=False).ids)
