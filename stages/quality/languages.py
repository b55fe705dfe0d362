"""For each language, how its words are split and which words are its stop words."""

from __future__ import annotations

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
