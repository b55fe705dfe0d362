"""For each language, how its words are split and which words are its stop words; and which labels name one
language."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Mapping
from typing import Final

SPLIT_BY_SPACY: Final = (
    "en", "de", "fr", "es", "it", "pt", "nl", "da", "sv", "nb", "fi", "is", "pl", "cs", "sk", "sl", "hr", "hu", "ro",
    "ru", "uk", "bg", "el", "tr", "ca", "lt", "lv", "et",
)  # fmt: skip
"""Languages whose words spaCy's blank tokenizer splits one substring between white space at a time. datatrove
0.10.1 assigns the same tokenizer to each (assets/tokenizer_assignment.csv)."""

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
"""English: Rae et al. 2021, section A1.1. The others: the lists that FineWeb-2 filters with
(huggingface/fineweb-2, configs/<language>_<Script>.yml, `stopwords`)."""

UNDETERMINED: Final = "und"
"""The code of a text whose language nobody named (BCP 47)."""

LABELS: Final[dict[str, str]] = {
    "af": "afr_Latn", "als": "gsw_Latn", "am": "amh_Ethi", "an": "arg_Latn", "ar": "arb_Arab", "arz": "arz_Arab",
    "as": "asm_Beng", "ast": "ast_Latn", "av": "ava_Cyrl", "az": "azj_Latn", "azb": "azb_Arab", "ba": "bak_Cyrl",
    "bar": "bar_Latn", "bcl": "bcl_Latn", "be": "bel_Cyrl", "bg": "bul_Cyrl", "bh": "bho_Deva", "bn": "ben_Beng",
    "bo": "bod_Tibt", "bpy": "bpy_Beng", "br": "bre_Latn", "bs": "bos_Latn", "bxr": "bxr_Cyrl", "ca": "cat_Latn",
    "cbk": "cbk_Latn", "ce": "che_Cyrl", "ceb": "ceb_Latn", "ckb": "ckb_Arab", "co": "cos_Latn", "cs": "ces_Latn",
    "cv": "chv_Cyrl", "cy": "cym_Latn", "da": "dan_Latn", "de": "deu_Latn", "diq": "diq_Latn", "dsb": "dsb_Latn",
    "dty": "dty_Deva", "dv": "div_Thaa", "el": "ell_Grek", "eml": "eml_Latn", "en": "eng_Latn", "eo": "epo_Latn",
    "es": "spa_Latn", "et": "ekk_Latn", "eu": "eus_Latn", "fa": "fas_Arab", "fi": "fin_Latn", "fr": "fra_Latn",
    "frr": "frr_Latn", "fy": "fry_Latn", "ga": "gle_Latn", "gd": "gla_Latn", "gl": "glg_Latn", "gn": "gug_Latn",
    "gom": "gom_Latn", "gu": "guj_Gujr", "gv": "glv_Latn", "he": "heb_Hebr", "hi": "hin_Deva", "hif": "hif_Latn",
    "hr": "hrv_Latn", "hsb": "hsb_Latn", "ht": "hat_Latn", "hu": "hun_Latn", "hy": "hye_Armn", "ia": "ina_Latn",
    "id": "ind_Latn", "ie": "ile_Latn", "ilo": "ilo_Latn", "io": "ido_Latn", "is": "isl_Latn", "it": "ita_Latn",
    "ja": "jpn_Jpan", "jbo": "jbo_Latn", "jv": "jav_Latn", "ka": "kat_Geor", "kk": "kaz_Cyrl", "km": "khm_Khmr",
    "kn": "kan_Knda", "ko": "kor_Hang", "krc": "krc_Cyrl", "ku": "kmr_Latn", "kv": "kpv_Cyrl", "kw": "cor_Latn",
    "ky": "kir_Cyrl", "la": "lat_Latn", "lb": "ltz_Latn", "lez": "lez_Cyrl", "li": "lim_Latn", "lmo": "lmo_Latn",
    "lo": "lao_Laoo", "lrc": "lrc_Arab", "lt": "lit_Latn", "lv": "lvs_Latn", "mai": "mai_Deva", "mg": "plt_Latn",
    "mhr": "mhr_Cyrl", "min": "min_Latn", "mk": "mkd_Cyrl", "ml": "mal_Mlym", "mn": "khk_Cyrl", "mr": "mar_Deva",
    "mrj": "mrj_Cyrl", "ms": "zsm_Latn", "mt": "mlt_Latn", "mwl": "mwl_Latn", "my": "mya_Mymr", "myv": "myv_Cyrl",
    "mzn": "mzn_Arab", "nah": "nah_Latn", "nap": "nap_Latn", "nb": "nob_Latn", "nds": "nds_Latn", "ne": "npi_Deva",
    "new": "new_Deva", "nl": "nld_Latn", "nn": "nno_Latn", "oc": "oci_Latn", "or": "ory_Orya", "os": "oss_Cyrl",
    "pa": "pan_Guru", "pam": "pam_Latn", "pfl": "pfl_Latn", "pl": "pol_Latn", "pms": "pms_Latn", "pnb": "pnb_Arab",
    "ps": "pbt_Arab", "pt": "por_Latn", "qu": "quh_Latn", "rm": "roh_Latn", "ro": "ron_Latn", "ru": "rus_Cyrl",
    "rue": "rue_Cyrl", "sa": "san_Deva", "sah": "sah_Cyrl", "sc": "srd_Latn", "scn": "scn_Latn", "sco": "sco_Latn",
    "sd": "snd_Arab", "sh": "hbs_Latn", "si": "sin_Sinh", "sk": "slk_Latn", "sl": "slv_Latn", "so": "som_Latn",
    "sq": "als_Latn", "sr": "srp_Cyrl", "su": "sun_Latn", "sv": "swe_Latn", "sw": "swh_Latn", "ta": "tam_Taml",
    "te": "tel_Telu", "tg": "tgk_Cyrl", "th": "tha_Thai", "tk": "tuk_Latn", "tl": "fil_Latn", "tr": "tur_Latn",
    "tt": "tat_Cyrl", "tyv": "tyv_Cyrl", "ug": "uig_Arab", "uk": "ukr_Cyrl", "ur": "urd_Arab", "uz": "uzn_Latn",
    "vec": "vec_Latn", "vep": "vep_Latn", "vi": "vie_Latn", "vls": "vls_Latn", "vo": "vol_Latn", "wa": "wln_Latn",
    "war": "war_Latn", "wuu": "wuu_Hani", "xal": "xal_Cyrl", "xmf": "xmf_Geor", "yi": "ydd_Hebr", "yo": "yor_Latn",
    "yue": "yue_Hani", "zh": "cmn_Hani",
}  # fmt: skip
"""For each label of lid.176, and `nb`, that of GlotLID and FineWeb-2: ISO 639-3 and its texts' script (ISO
15924). The default of each in datatrove 0.10.1 (assets/tokenizer_assignment.csv), but for what lid.176 was
trained on: its `als`, `bh`, `ku`, `no`, `sh` and `tl` are the Wikipedias of that name, in Alemannic,
Bhojpuri, Kurmanji, Bokmål, Serbo-Croatian and Filipino."""

_OTHERS: Final = {
    "no": "nb", "nor": "nb", "ger": "de", "fre": "fr", "dut": "nl", "ice": "is", "cze": "cs", "slo": "sk", "rum": "ro",
    "gre": "el", "lav": "lv", "est": "et", "ara": "ar", "aze": "az", "per": "fa", "pes": "fa", "sqi": "sq", "alb": "sq",
    "msa": "ms", "may": "ms", "swa": "sw", "uzb": "uz", "mon": "mn", "kur": "ku", "nep": "ne", "yid": "yi", "mlg": "mg",
    "que": "qu", "grn": "gn", "pus": "ps", "arm": "hy", "geo": "ka", "mac": "mk", "baq": "eu", "wel": "cy", "tgl": "tl",
    "zho": "zh", "chi": "zh", "bur": "my", "tib": "bo",
}  # fmt: skip
"""Further codes of these languages: ISO 639-2/B, and ISO 639-3 of a macrolanguage. lid.176 calls Norwegian
Bokmål `no`, after the Wikipedia that it was trained on; nn is a language of its own."""

_CODES: Final[dict[str, str]] = {label.partition("_")[0]: code for code, label in LABELS.items()} | _OTHERS
_SCRIPTS: Final[dict[str, str]] = {code: label.partition("_")[2].lower() for code, label in LABELS.items()}
"""The script of the texts that a table is for."""

_WITHOUT_WHITE_SPACE: Final = frozenset({
    "ja", "jpn", "zh", "zho", "chi", "cmn", "yue", "wuu", "gan", "hsn", "lzh",
    "th", "tha", "nod", "tts", "lo", "lao", "km", "khm", "my", "mya", "bur", "mnw", "shn", "ksw", "blk",
    "bo", "bod", "tib", "dz", "dzo",
})  # fmt: skip
_SCRIPTS_WITHOUT_WHITE_SPACE: Final = frozenset({
    "hani", "hans", "hant", "jpan", "hira", "kana", "hrkt", "bopo", "thai", "laoo", "khmr", "mymr", "lana", "tale",
    "talu", "tavt", "ahom", "tibt", "java", "bali",
})  # fmt: skip
"""Languages and scripts that put no white space between words: Unicode's UAX #14, classes ID and SA, and the
scripts that part syllables instead. Of the labels of lid.176: ja, zh, yue, wuu, th, lo, km, my, bo."""

_REGION: Final = re.compile(r"[a-z]{2}|\d{3}")


@functools.lru_cache(maxsize=4096)
def language_code(label: str) -> str:
    """The code of the language that `label` names: lid.176's where it has one, so that `no`, `nb` and
    `nob_Latn` are one, and en-GB is English; else the label itself, in lower case and without a region. One
    in another script than the code's is another. lid.176's `als` is Alemannic, and als_Latn, as GlotLID has
    it, Tosk Albanian (sq)."""
    language, *more = _subtags(label)
    more = [part for part in more if not _REGION.fullmatch(part)]
    code = language if not more and language in LABELS else _CODES.get(language, language)
    return "-".join([code, *(part for part in more if part != _SCRIPTS.get(code))])


def label_hint(name: str, labels: Iterable[str] = LABELS) -> str:
    """For `name`, which is none of the `labels`, the one that was likely meant, in brackets:
    `english` and `Deutsch` are languages by their names. Empty where there is none."""
    if name in (known := frozenset(labels)):
        return ""
    wanted = name.strip().lower()
    by_name = _codes_by_name()
    close = [wanted] if wanted in by_name else difflib.get_close_matches(wanted, by_name, n=1, cutoff=0.8)
    if close:
        code = language_code(by_name[close[0]])
        found = sorted(label for label in known if language_code(label) == code)
    else:
        found = sorted(label for label in known if label.lower() == wanted)
    return f" (did you mean {found[0]!r}?)" if found else ""


@functools.cache
def _codes_by_name() -> Mapping[str, str]:
    """The codes of the languages that have a label, by their names in lower case: in English, and in the
    language itself."""
    from babel.core import Locale, UnknownLocaleError

    english = {str(code): str(name) for code, name in Locale("en").languages.items()}
    names: dict[str, str] = {}
    for code in (code for code in english if language_code(code) in LABELS):
        names.setdefault(english[code].lower(), code)
        try:
            own = Locale.parse(code).languages.get(code)
        except (UnknownLocaleError, ValueError):
            continue  # CLDR has no texts in that language
        if own is not None:
            names.setdefault(str(own).lower(), code)
    return names


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
