"""For each language, how its words are split and which words are its stop words; and which labels name one language."""

from __future__ import annotations

import functools
import re
from typing import Final

SPLIT_BY_SPACY: Final = (
    "en", "de", "fr", "es", "it", "pt", "nl", "da", "sv", "nb", "fi", "is", "pl", "cs", "sk", "sl", "hr", "hu", "ro",
    "ru", "uk", "bg", "el", "tr", "ca", "lt", "lv", "et",
)  # fmt: skip
"""Languages whose words spaCy's blank tokenizer splits one substring between white space at a time. datatrove 0.10.1
assigns the same tokenizer to each (assets/tokenizer_assignment.csv)."""

STOP_WORDS: Final[dict[str, tuple[str, ...]]] = {
    "en": ("the", "be", "to", "of", "and", "that", "have", "with"),
    "de": ("der", "und", "die", "in", "von", "im", "den", "des", "mit", "das", "er", "dem", "als", "wurde", "für"),
    "fr": (
        "de", "la", "le", "et", "à", "en", "l'", "des", "du", "les", "est", "d'", "un", "une", "il", "dans", "par",
        "au",
    ),
    "es": ("de", "la", "en", "el", "y", "a", "que", "del", "los", "se", "por", "un", "con", "una", "las", "su"),
    "it": (
        "di", "e", "il", "la", "in", "a", "del", "che", "è", "della", "un", "per", "nel", "l'", "con", "da", "i",
        "una",
    ),
    "pt": ("de", "a", "e", "o", "em", "do", "da", "que", "um", "no", "uma", "com", "para", "na", "é", "foi"),
    "nl": (
        "de", "van", "in", "het", "een", "en", "is", "op", "voor", "met", "door", "zijn", "werd", "hij", "uit",
    ),
    "pl": (
        "w", "i", "na", "z", "do", "się", "roku", "od", "a", "jest", "przez", "po", "jako", "oraz", "o", "został",
        "był", "nie",
    ),
    "sv": ("i", "och", "är", "av", "en", "som", "den", "med", "på", "till", "att", "för"),
    "da": (
        "i", "og", "af", "en", "til", "er", "den", "at", "som", "på", "for", "med", "det", "blev", "var", "der", "fra",
        "de", "han", "et",
    ),
    "ru": (
        "в", "и", "на", "с", "года", "по", "году", "из", "был", "к", "не", "от", "что", "за", "для", "его", "как", "а",
        "он", "также", "до", "после",
    ),
}  # fmt: skip
"""English: Rae et al. 2021, section A1.1. The others: the lists that FineWeb-2 filters with (huggingface/fineweb-2,
configs/<language>_<Script>.yml, `stopwords`)."""

UNDETERMINED: Final = "und"
"""The code of a text whose language nobody named (BCP 47)."""

_CODES: Final[dict[str, str]] = {
    "no": "nb", "nor": "nb", "nob": "nb",
    "eng": "en", "deu": "de", "ger": "de", "fra": "fr", "fre": "fr", "spa": "es", "ita": "it", "por": "pt", "nld": "nl",
    "dut": "nl", "dan": "da", "swe": "sv", "fin": "fi", "isl": "is", "ice": "is", "pol": "pl", "ces": "cs", "cze": "cs",
    "slk": "sk", "slo": "sk", "slv": "sl", "hrv": "hr", "hun": "hu", "ron": "ro", "rum": "ro", "rus": "ru", "ukr": "uk",
    "bul": "bg", "ell": "el", "gre": "el", "tur": "tr", "cat": "ca", "lit": "lt", "lav": "lv", "lvs": "lv", "est": "et",
    "ekk": "et",
}  # fmt: skip
"""Other labels of the languages that have a table: ISO 639-2 and 639-3, as GlotLID, NLLB and FineWeb-2 write them.
lid.176 calls Norwegian Bokmål `no`, after the Wikipedia that it was trained on; nn is a language of its own."""

_SCRIPTS: Final[dict[str, str]] = dict.fromkeys(SPLIT_BY_SPACY, "latn") | {
    "ru": "cyrl", "uk": "cyrl", "bg": "cyrl", "el": "grek",
}  # fmt: skip
"""The script of the texts that a table is for (ISO 15924)."""

_WITHOUT_WHITE_SPACE: Final = frozenset({
    "ja", "jpn", "zh", "zho", "chi", "cmn", "yue", "wuu", "gan", "hsn", "lzh",
    "th", "tha", "nod", "tts", "lo", "lao", "km", "khm", "my", "mya", "bur", "mnw", "shn", "ksw", "blk",
    "bo", "bod", "tib", "dz", "dzo",
})  # fmt: skip
_SCRIPTS_WITHOUT_WHITE_SPACE: Final = frozenset({
    "hani", "hans", "hant", "jpan", "hira", "kana", "hrkt", "bopo", "thai", "laoo", "khmr", "mymr", "lana", "tale",
    "talu", "tavt", "ahom", "tibt", "java", "bali",
})  # fmt: skip
"""Languages and scripts that put no white space between words: Unicode's UAX #14, classes ID and SA, and the scripts
that part syllables instead. Of the labels of lid.176: ja, zh, yue, wuu, th, lo, km, my, bo."""

_REGION: Final = re.compile(r"[a-z]{2}|\d{3}")


@functools.lru_cache(maxsize=4096)
def language_code(label: str) -> str:
    """The code of the language that `label` names: that of our tables where they have it, so that `no`, `nb` and
    `nob_Latn` are one, and en-GB is English; else the label itself, in lower case and without a region. One in another
    script than its table's is another."""
    language, *more = _subtags(label)
    code = _CODES.get(language, language)
    return "-".join([code, *(part for part in more if part != _SCRIPTS.get(code) and not _REGION.fullmatch(part))])


@functools.lru_cache(maxsize=4096)
def has_white_space(label: str) -> bool:
    """Whether texts in the language have white space between their words, so that it may split them."""
    language, *more = _subtags(label)
    scripts = [part for part in more if len(part) == 4 and part.isalpha()]
    if scripts:
        return scripts[0] not in _SCRIPTS_WITHOUT_WHITE_SPACE
    return language not in _WITHOUT_WHITE_SPACE


def _subtags(label: str) -> list[str]:
    return label.lower().replace("_", "-").split("-")
