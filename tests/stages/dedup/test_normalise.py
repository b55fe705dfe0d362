"""What is made alike before texts are compared: as datatrove and SlimPajama have it, text for text."""

from __future__ import annotations

import hashlib
import re
import string
from pathlib import Path
from typing import Literal, get_args

import pytest
from datatrove.utils.text import simplify_text
from fastwarc.warc import ArchiveIterator, WarcRecordType
from hypothesis import given
from hypothesis import strategies as st

from stages.dedup.bands import bands_of
from stages.dedup.minhash import Signer
from stages.dedup.normalise import normalised
from stages.dedup.options import DedupTable, Normalise
from stages.dedup.shingles import jaccard, shingle_hashes, shingle_strings, shingles, words

WAYS: tuple[Normalise, ...] = get_args(Normalise)

# Digits of six scripts, what may part a number, marks that stand alone, controls, and characters that lower
# case, NFD or the order of the steps treat in a way of their own.
ODD = (
    "aB\u00e9\u1e9e\u0130\u212a"
    " \t\n\u00a0\u3000\x00\x1c\x7f\x85\u2028.,;'\"-\u060c\u066b\u2396\u2018\u2019\u201c\u2014"
    "019\u0661\u0669\u06f3\u0967\u0e53\uff11\uff12\U0001d7d8\u0301\u0323\u0345\u3099\u064b\u0b3e\u0e31\U0001e8d0\u037e"
    "\u1fef\u2260\ud55c\u304c\u6771\u00bd\u2460\ufb01\ufdfa\ud800\u01c5\u0390\u3008\u2501\u2236\U00011f50\u0c66"
)


@pytest.mark.differential("stages/dedup")
@given(st.text(st.sampled_from(ODD) | st.characters(), max_size=60))
def test_fineweb_s_way_equals_datatrove(text: str) -> None:
    assert normalised(text, "fineweb") == simplify_text(text)


@pytest.mark.differential("stages/dedup")
@given(st.text(st.sampled_from(string.printable), max_size=60))
def test_fineweb_s_way_equals_datatrove_on_ascii(text: str) -> None:
    assert normalised(text, "fineweb") == simplify_text(text)


@pytest.mark.differential("stages/dedup")
def test_fineweb_s_way_equals_datatrove_where_a_text_has_more_marks_than_are_searched_for_one_by_one() -> (
    None
):
    text = "".join(f"a{chr(mark)}" for mark in range(0x300, 0x36F)) + " \u0301 b"
    assert normalised(text, "fineweb") == simplify_text(text) != text


@given(st.text(st.sampled_from(ODD) | st.characters() | st.sampled_from(string.punctuation), max_size=60))
def test_slimpajama_s_way_is_lower_case_less_ascii_punctuation_less_white_space(text: str) -> None:
    plain = text.lower().translate(str.maketrans("", "", string.punctuation))
    assert normalised(text, "slimpajama") == re.sub(r"\s+", " ", plain.strip())


@given(st.text(max_size=60))
def test_none_changes_nothing(text: str) -> None:
    assert normalised(text, "none") == text


@pytest.mark.differential("stages/dedup")
@pytest.mark.slow
def test_fineweb_s_way_equals_datatrove_on_every_real_page(real_data: Path) -> None:
    num = 0
    for file in sorted((real_data / "crawl").glob("*.warc.gz")):
        for record in ArchiveIterator(file.open("rb"), record_types=WarcRecordType.response, parse_http=True):
            text = record.reader.read(1 << 16).decode("utf-8", "replace")
            assert normalised(text, "fineweb") == simplify_text(text), record.headers["WARC-Target-URI"]
            num += 1
    assert num >= 1000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("كَتَبَ ٣٫١٤ مرّة", "كتب 0 مرة"),  # Arabic: vowel signs go, a number of its own digits is one
        ("Größe: 1.024,50 €", "große 0 0 €"),
        ("नमस्ते १२३", "नमसत 0"),
        ("がっこう、日本。", "かっこう 日本"),
        ("Don’t — “stop”", "don t stop"),  # the mark of the left single quote is not in datatrove's list
    ],
)
def test_scripts_and_numbers(text: str, expected: str) -> None:
    assert normalised(text, "fineweb") == expected == simplify_text(text)


def test_each_character_of_a_script_without_spaces_stays_a_word() -> None:
    table = DedupTable(normalise="fineweb", shingle=2)
    assert shingle_strings("東京、タワー。", table) == [
        " ".join(pair).encode() for pair in ("東京", "京タ", "タワ")
    ] + ["ワ ー".encode()]
    assert len(words(normalised("สวัสดี ๑๒", "fineweb"))) == 5


def found(left: str, right: str, way: Normalise) -> bool:
    """Whether two texts share a band and reach FineWeb's threshold."""
    table = DedupTable(num_perm=112, bands=14, rows=8, threshold=0.75, normalise=way)
    signatures = [Signer(table).signature(text) for text in (left, right)]
    bands = [bands_of(signature, table) for signature in signatures if signature is not None]
    share_band = len(bands) == 2 and any(one == other for one, other in zip(*bands, strict=True))
    return share_band and jaccard(shingles(left, table), shingles(right, table)) >= 0.75


PAGE = "\n".join(
    f'The {name} keeper said, "it\'s a fair day" - and {name} boats, nets and oars: {number * 37} in all,'
    f" left at {number}:30 from the old {name} pier."
    for number, name in enumerate(
        ["amber", "birch", "coral", "dune", "ember", "fjord", "grove", "heath", "inlet", "knoll"]
    )
)


@pytest.mark.parametrize(
    ("variant", "by"),
    [
        pytest.param(PAGE.upper(), {"fineweb", "slimpajama"}, id="upper case"),
        pytest.param(PAGE.lower(), {"fineweb", "slimpajama"}, id="lower case"),
        pytest.param(re.sub("[,:.]", "", PAGE), {"slimpajama", "fineweb"}, id="marks gone"),
        pytest.param(re.sub("(?m)^", "- ", PAGE), {"slimpajama", "fineweb"}, id="bullets"),
        pytest.param(
            PAGE.replace('"', "\u201d").replace("'", "\u2019").replace(" - ", " \u2014 "),
            {"fineweb"},
            id="quotes",
        ),
        pytest.param(re.sub(r"\d+", lambda number: f"{int(number[0]) + 7}", PAGE), {"fineweb"}, id="numbers"),
        pytest.param(re.sub("[aeiou]", lambda v: v[0] + "\u0301", PAGE), {"fineweb"}, id="accents"),
    ],
)
def test_variants_of_a_page_are_found_by_the_ways_that_make_them_alike(
    variant: str, by: set[Normalise]
) -> None:
    assert {way for way in WAYS if found(PAGE, variant, way)} == by
    assert all(found(PAGE, PAGE + " One more line.", way) for way in WAYS)
    other = "\n".join(reversed(re.findall(r"\w+", PAGE)))
    assert not any(found(PAGE, other, way) for way in WAYS)


@pytest.mark.parametrize("scheme", ["fast", "datasketch"])
def test_what_is_left_of_a_text_decides_whether_it_has_a_signature(scheme: str) -> None:
    def signed(text: str) -> set[Normalise]:
        tables = {way: DedupTable(scheme=scheme, normalise=way) for way in WAYS}  # type: ignore[arg-type]
        return {way for way, table in tables.items() if Signer(table).signature(text) is not None}

    assert signed("!?! -- ... * * *") == {"none"}  # no word is left
    assert signed("1,024 likes today") == {
        "none",
        "slimpajama",
    }  # fewer words than a shingle: datatrove signs none
    assert signed("one two three four five") == set(WAYS)


def test_none_signs_as_ever() -> None:
    text = "The Quick brown fox – it's 12,345.67 km away! 東京タワー and café; (yes) “so” it is, again and again."
    digests = [
        hashlib.sha256(Signer(DedupTable(scheme=scheme, normalise="none")).signature(text) or b"").hexdigest()
        for scheme in ("fast", "datasketch")
    ]
    assert digests == [
        "55ced314cf511940d1b459c986ff90970299ae045b01eac91a63796777be8485",
        "0051b02f108674f5ccb0743358f5d0fd07523f03d8e983ddb055bd4daa160e30",
    ]


@given(
    st.text(st.sampled_from(ODD + "\u03a3\u03c3 \n") | st.characters(), max_size=80),
    st.sampled_from(WAYS),
    st.sampled_from(("word", "code")),
)
def test_a_text_read_in_pieces_has_the_shingles_of_the_whole(
    text: str, way: Normalise, unit: Literal["word", "code"]
) -> None:
    table = DedupTable(normalise=way, shingle_unit=unit, shingle=2)
    whole, strings = shingle_hashes(text, table).tolist(), shingle_strings(text, table)
    for piece_chars in (1, 3, 7):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("stages.dedup.shingles._PIECE_CHARS", piece_chars)
            assert shingle_hashes(text, table).tolist() == whole
            assert shingle_strings(text, table) == strings
