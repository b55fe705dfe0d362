"""Pages whose charset nobody names, or a header misnames: what a detector is believed, and windows-1252 where
not."""

from __future__ import annotations

import importlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.reading.charsets.charset import decode_text
from stages.reading.charsets.detector import detected_charset

ASCII = (
    "In the silver elbow they painted a patient elbow, and that is how the hammer was covered with the"
    " dagger. " * 20
)
ENGLISH = [
    "It’s a small house, and the keeper’s daughter said “nobody comes here in winter” – which was true.",
    "The café charged £3 for soup and £1.50 for bread, and the keeper’s wife said that was fair.",
    "He wrote it down — twice — and then lost the résumé on the way to the harbour…",
    "The museum’s oldest clock – built in 1790 – still tells the time; its maker’s name is on the dial.",
    # More of the kind: signs of money and measure, rights, names.
    "© 2009 Acme® — 20 °C to 25 °C, ±2%; €5, £4, ¥300, 50¢.",
    "Jorge Muñoz’s piñata cost £3, Zoë’s £2½; “naïve”, said Anaïs.",
    "Path A:\xa0Iceland\xa0\xa0• Path B:\xa0Slovakia •",
    "Section §4 ‘Rules’ ¶2: see p.\xa012…",
]
GERMAN = "Über die Straße läuft „Felix“, während es für Größere heißt: «Ich grüße dich»."
FRENCH = "L’œuvre coûte 3 € à Besançon… « Où est-ce ? » – déjà vu."
SPANISH = "El año pasado, ¿quién dijo «mañana» en la Compañía? ¡Qué niño!"
SENTENCES = {
    "cs": ("cp1250", "iso8859_2"), "pl": ("cp1250", "iso8859_2"), "hu": ("cp1250", "iso8859_2"),
    "ru": ("cp1251", "koi8_r"), "uk": ("cp1251",), "bg": ("cp1251",), "el": ("cp1253", "iso8859_7"), "tr": ("cp1254",),
    "he": ("cp1255",), "ar": ("cp1256",), "lt": ("cp1257",), "ja": ("cp932", "euc_jp"),
    "zh": ("gb18030",), "ko": ("cp949",),
}  # fmt: skip


def page(text: str) -> str:
    return f"<html><head><title>A page</title></head><body class='main'><p>{text}</p></body></html>"


@pytest.mark.parametrize("hint", [None, "utf-8", "klingon"])
@pytest.mark.parametrize("text", [*ENGLISH, *(ASCII + one for one in ENGLISH)])
def test_english_pages_with_typographic_characters_are_windows_1252(text: str, hint: str | None) -> None:
    assert decode_text(page(text).encode("cp1252"), hint) == (page(text), "cp1252")
    assert decode_text(text.encode("cp1252"), hint, is_html=False) == (text, "cp1252")


@pytest.mark.parametrize("hint", [None, "utf-8"])
@pytest.mark.parametrize(
    "text", [GERMAN, FRENCH, SPANISH, "año", "¿Qué?", "naïve", "£3", "50 °C", "½ · ¼", "«Ich»", "®"]
)
def test_western_texts_are_windows_1252(text: str, hint: str | None) -> None:
    assert decode_text(page(text).encode("cp1252"), hint) == (page(text), "cp1252")


@pytest.mark.parametrize(
    "meta", ['<meta charset="utf-8">', '<meta http-equiv=content-type content="text/html;charset=utf-8">']
)
def test_a_page_that_says_utf8_and_is_not(meta: str) -> None:
    assert decode_text((meta + page(FRENCH)).encode("cp1252")) == (meta + page(FRENCH), "cp1252")


@pytest.mark.parametrize(
    ("language", "charset"), [(one, name) for one, names in SENTENCES.items() for name in names]
)
@pytest.mark.parametrize("hint", [None, "utf-8"])
def test_sentences_of_other_scripts_are_read_by_their_charset(
    language: str, charset: str, hint: str | None
) -> None:
    sentences = importlib.import_module(f"spacy.lang.{language}.examples").sentences
    text = page(
        "</p><p>".join(one for one in sentences if one.encode(charset, "ignore").decode(charset) == one)
    )
    payload = text.encode(charset)
    assert not text.isascii()
    assert decode_text(payload, hint)[0] == payload.decode(charset)


@pytest.mark.parametrize(
    "text",
    [
        "————————————————— The cabin stood alone amidst the darkness. It was not far —",
        "• Remarketing with the following • On our Privacy policy • By email: é, à",
        "<!-- CSS ––––––––––––––––––––––––––––––––––––––––– --> Solidarität mit arbeitenden Mädchen",
        "“Fatally wounding him,” Supt Peters said. He added: “He was…” Muñoz ’" + "’ “ ” " * 40,
    ],
)
def test_dashes_dots_and_quotation_marks_are_no_evidence(text: str) -> None:
    assert detected_charset(text.encode("cp1252")) is None


def test_what_stands_far_from_the_start_is_looked_at() -> None:
    text = page("x" * 300_000 + " Съешь же ещё этих мягких французских булок, да выпей чаю.")
    assert decode_text(text.encode("cp1251")) == (text, "cp1251")


@given(payload=st.binary(max_size=400))
def test_what_a_detector_finds_is_a_codec_that_reads_the_bytes(payload: bytes) -> None:
    charset = detected_charset(payload)
    assert charset is None or payload.decode(charset, "replace").encode("utf-8")
