"""A tokenizer.json as documents are encoded by it: their own ids, nothing before, nothing cut, no chance.

1. Truncation, padding, dropout and what a post-processor adds are switched off.
2. The name of a special token is plain text in a text: the library matches such names, and a Unigram model
  may have
   them among its pieces, so that a page that writes `</s>` would end a document. So they get other names (`hide`).
3. Where byte-level BPE by rank may say the same it is kept as ranks, for tiktoken (`_ranks`), or else why
  not.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from tokenizers import Tokenizer as HfTokenizer

from lineage.recipe import RecipeError
from stages.nesting import read_json
from stages.tokens.end_of_text import KNOWN_ENDS, EndOfText, choose_end
from stages.tokens.vocabulary import GPT2_PATTERN, Vocabulary, byte_level_ranks
from stages.tokens.written_json import tiktoken_pattern

MARK: Final = "\U0010ffff"
"""Stands before the name of a special token where text must not match it: a noncharacter, which no page
should hold."""

_BYTE_TOKEN: Final = re.compile("<0x[0-9A-F]{2}>")
"""What byte fallback writes for a byte (sentencepiece): a token that text makes, special or not."""

Normalizer = Literal["none", "nfc", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerJson:
    """A tokenizer.json, read and checked. Picklable.

    `settings` is it as documents are encoded; `hidden` are the ids, by name, that no text makes; `added` the
    added tokens that are matched in texts. `byte_level`: ids stand for bytes, in `byte_level_alphabet`.
    `strips`: an added token may stand for other text than its own. `ranks`: the same split and merges for
    tiktoken, None where it has no way to say them (`why_not`)."""

    name: str
    data: bytes
    settings: str
    hidden: Mapping[str, int]
    added: tuple[str, ...]
    end: EndOfText
    vocab_size: int
    unknown_id: int | None
    normalizer: Normalizer
    byte_level: bool
    strips: bool
    ranks: Vocabulary | None
    why_not: str

    @property
    def is_plain(self) -> bool:
        """Whether ranks and special tokens are all there is to it."""
        return self.ranks is not None and self.normalizer == "none" and not self.added


class _NotByRankError(Exception):
    """Why tiktoken cannot express a tokenizer."""


def read_tokenizer_json(name: str, data: bytes, end_of_text: str | int | None = None) -> TokenizerJson:
    """The tokenizer.json `name` with this content; `end_of_text` is what `choose_end` is given.

    RecipeError where the tokenizers library does not read it, or where its end of text is in doubt."""
    try:
        raw: dict[str, Any] = read_json(data)
    except ValueError as error:
        raise RecipeError(f"{name} is not JSON: {error}") from error
    settings, library = _switched_off(name, raw)
    model, listed = settings["model"], settings.get("added_tokens") or []
    for token in listed:
        if library.token_to_id(token["content"]) != token["id"]:
            raise RecipeError(
                f"{name}: the added token {token['content']!r} has id {token['id']} in the file, and"
                f" {library.token_to_id(token['content'])} where the tokenizers library loads it: its"
                " vocabulary has gaps or names it twice; save it again from the library that made it"
            )
    vocabulary = library.get_vocab(with_added_tokens=True)
    next_id = max(vocabulary.values(), default=-1) + 1
    unknown = _unknown(model, vocabulary)
    added = {token["content"]: int(token["id"]) for token in listed}
    special = {token["content"] for token in listed if token["special"] and not _is_byte(token, model)}
    may_end = {token: added[token] for token in special if added[token] != unknown}
    may_end |= {
        token: vocabulary[token] for token in KNOWN_ENDS if token in vocabulary.keys() - _merged(model)
    }
    may_end |= {token: id_ for token, id_ in added.items() if end_of_text in (token, id_)}
    end = choose_end(name, may_end, end_of_text, next_id)
    hidden = {token: added[token] for token in special} | (
        {end.token: end.id} if vocabulary.get(end.token) == end.id else {}
    )
    matched = [token for token in listed if not token["special"] and token["content"] not in hidden]
    normalizer = _normalizer(settings.get("normalizer"))
    ranks, why_not = None, ""
    byte_level = _is_byte_level(settings)
    try:
        every_special = {token["content"]: int(token["id"]) for token in listed if token not in matched}
        every_special |= {} if end.id in every_special.values() else {end.token: end.id}
        ranks = Vocabulary(
            name=name,
            ranks=_ranks(settings, matched, every_special),
            pattern=_pattern(settings),
            special=every_special,
            end=end,
        )
    except _NotByRankError as error:
        why_not = str(error)
    return TokenizerJson(
        name=name,
        data=data,
        settings=json.dumps(settings, ensure_ascii=False, sort_keys=True),
        hidden=hidden,
        added=tuple(token["content"] for token in matched),
        end=end,
        vocab_size=max(next_id, end.id + 1),
        unknown_id=unknown,
        normalizer=normalizer,
        byte_level=byte_level,
        strips=any(token["lstrip"] or token["rstrip"] or not _is_nfc(token) for token in matched),
        ranks=ranks,
        why_not=why_not,
    )


def hide(settings: str, names: Collection[str]) -> str:
    """The settings with these tokens under names that text does not make. Ids stay; merges that make one are
    left out."""
    raw: dict[str, Any] = json.loads(settings)
    model = raw["model"]

    def renamed(token: str) -> str:
        return MARK + token if token in names else token

    if isinstance(model["vocab"], list):
        model["vocab"] = [[renamed(piece), *rest] for piece, *rest in model["vocab"]]
    else:
        model["vocab"] = {renamed(token): id_ for token, id_ in model["vocab"].items()}
    if "merges" in model:
        made = zip(model["merges"], _merges(model), strict=True)
        model["merges"] = [pair for pair, tokens in made if not any(token in names for token in tokens)]
    if model.get("unk_token") is not None:
        model["unk_token"] = renamed(model["unk_token"])
    for token in raw.get("added_tokens") or []:
        if token["content"] in names:
            # Not normalised: a normalizer might take the mark away.
            token |= {"content": renamed(token["content"]), "special": True, "normalized": False}
    return json.dumps(raw, ensure_ascii=False)


def _switched_off(name: str, raw: Any) -> tuple[dict[str, Any], HfTokenizer]:
    """What encodes documents, and the tokenizers library's reading of it."""
    if not isinstance(raw, dict) or not isinstance(raw.get("model"), dict):
        raise RecipeError(
            f"{name} is not a tokenizer.json that the tokenizers library reads: it has no model"
        )
    settings = {**raw, "truncation": None, "padding": None, "post_processor": None}
    if settings["model"].get("dropout") is not None:
        settings["model"] = {**settings["model"], "dropout": None}
    try:
        return settings, HfTokenizer.from_str(json.dumps(settings))
    except Exception as error:  # the library raises nothing narrower
        raise RecipeError(
            f"{name} is not a tokenizer.json that the tokenizers library reads: {error}"
        ) from error


def _kind(model: Mapping[str, Any]) -> str:
    """The model's type: the oldest files, GPT-2's own among them, do not say it."""
    untold = (
        "Unigram"
        if isinstance(model.get("vocab"), list)
        else "BPE"
        if "merges" in model
        else "a list of words"
    )
    return str(model.get("type") or untold)


def _unknown(model: Mapping[str, Any], vocabulary: Mapping[str, int]) -> int | None:
    """The id of what the model has no token for; None where it has no such id."""
    if model.get("unk_id") is not None:
        return int(model["unk_id"])
    return vocabulary.get(model.get("unk_token") or "")


def _is_byte(token: Mapping[str, Any], model: Mapping[str, Any]) -> bool:
    return bool(model.get("byte_fallback")) and _BYTE_TOKEN.fullmatch(token["content"]) is not None


def _merges(model: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Each merge of a BPE: left, right, and what they make. Files have pairs, or two tokens with a space
    between."""
    prefix = model.get("continuing_subword_prefix") or ""
    pairs = (
        tuple(merge.split(" ", 1)) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]
    )
    return [(left, right, left + right.removeprefix(prefix)) for left, right in pairs]


def _merged(model: Mapping[str, Any]) -> set[str]:
    """The tokens that merges make of ordinary text."""
    return {made for _, _, made in _merges(model)} if "merges" in model else set()


def _steps(outer: Mapping[str, Any] | None, inner: str) -> list[Mapping[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, those of sequences one by one."""
    if outer is None:
        return []
    if outer.get("type", "Sequence") != "Sequence":  # the oldest files name no type where the steps tell it
        return [outer]
    return [step for one in outer[inner] for step in _steps(one, inner)]


def _normalizer(outer: Mapping[str, Any] | None) -> Normalizer:
    kinds = {step["type"] for step in _steps(outer, "normalizers")}
    return "none" if not kinds else "nfc" if kinds == {"NFC"} else "other"


def _is_byte_level(settings: Mapping[str, Any]) -> bool:
    """Whether every text becomes its bytes, and these tokens: nothing is put before it, and nothing is
    unknown."""
    steps = _steps(settings.get("pre_tokenizer"), "pretokenizers")
    kept = all(step["type"] in ("ByteLevel", "Digits") or _is_isolating(step) for step in steps)
    levels = [step for step in steps if step["type"] == "ByteLevel"]
    if (
        _kind(settings["model"]) != "BPE"
        or not kept
        or len(levels) != 1
        or levels[0].get("add_prefix_space", True)
    ):
        return False
    added = {token["content"] for token in settings.get("added_tokens") or []}
    try:
        byte_level_ranks("", {t: id_ for t, id_ in settings["model"]["vocab"].items() if t not in added})
    except RecipeError:
        return False
    return True


def _is_isolating(step: Mapping[str, Any]) -> bool:
    """Whether a Split keeps every character."""
    return bool(step["type"] == "Split" and step["behavior"] != "Removed")


def _ranks(
    settings: Mapping[str, Any], matched: Sequence[Mapping[str, Any]], special: Mapping[str, int]
) -> dict[bytes, int]:
    """The model as ranks, so far as the settings tell; _NotByRankError where they tell that it is none."""
    model = settings["model"]
    if _kind(model) != "BPE":
        raise _NotByRankError(f"its model is {_kind(model)}, and tiktoken's is byte-level BPE")
    if model.get("byte_fallback"):
        raise _NotByRankError("it is a BPE of characters with byte fallback, and tiktoken's is of bytes")
    if _normalizer(settings.get("normalizer")) == "other":
        kinds = [step["type"] for step in _steps(settings["normalizer"], "normalizers")]
        raise _NotByRankError(f"it normalises texts ({', '.join(kinds)}), and tiktoken does not")
    for token in matched:
        if _is_wider(token) or not _is_nfc(token) or token["normalized"] != matched[0]["normalized"]:
            raise _NotByRankError(f"its added token {token['content']!r} is matched by more than its text")
    added = special.keys() | {token["content"] for token in matched}
    try:
        ranks = byte_level_ranks("", {t: rank for t, rank in model["vocab"].items() if t not in added})
    except RecipeError as error:
        raise _NotByRankError(str(error).removeprefix(": ")) from error
    if {*special.values(), *(token["id"] for token in matched)} & set(ranks.values()):
        raise _NotByRankError("an added token has the id of another")
    return ranks


def _is_wider(token: Mapping[str, Any]) -> bool:
    """Whether what stands around an added token decides if it is matched, or goes with it."""
    return bool(token["lstrip"] or token["rstrip"] or token["single_word"])


def _is_nfc(token: Mapping[str, Any]) -> bool:
    """Whether a normalizer of NFC, which normalises the token too, leaves it what it is."""
    return not token["normalized"] or unicodedata.is_normalized("NFC", token["content"])


def _pattern(settings: Mapping[str, Any]) -> str:
    """The pattern that a byte-level tokenizer.json splits with; _NotByRankError where it is not one."""
    steps = _steps(settings.get("pre_tokenizer"), "pretokenizers")
    if steps and steps[-1]["type"] == "ByteLevel" and not steps[-1].get("add_prefix_space", True):
        if len(steps) == 1 and steps[-1].get("use_regex", True):
            return GPT2_PATTERN
        if len(steps) == 2 and not steps[-1].get("use_regex", True) and steps[0]["type"] == "Split":
            split = steps[0]
            if split["behavior"] == "Isolated" and not split["invert"] and "Regex" in split["pattern"]:
                return tiktoken_pattern(str(split["pattern"]["Regex"]))
    kinds = ", ".join(step["type"] for step in steps) or "not at all"
    raise _NotByRankError(f"it splits texts otherwise than by one pattern ({kinds})")


def identity_of(file: TokenizerJson) -> bytes:
    """What encodes, and nothing else: what turns ids into text again is left out. Equal bytes encode
    alike."""
    settings = {
        part: value for part, value in json.loads(file.settings).items() if part not in ("decoder", "version")
    }
    return json.dumps(settings, ensure_ascii=True, sort_keys=True, separators=(",", ":")).encode()
