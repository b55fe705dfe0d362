"""Whose national phone formats count in a document: its host's country, else its language's."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stages.contamination import Finder
from stages.dedup.options import DedupTable
from stages.document import Document
from stages.pii.options import PiiTable
from stages.pii.phones import find_phones, may_hold_phones
from stages.pii.regions import region_of, regions_in_use
from stages.pii.scrub import scrub
from stages.pii.step import PiiStep


@pytest.mark.parametrize(
    ("language", "host", "region"),
    [
        ("de", "www.example.at", "AT"),
        ("en", "shop.example.co.uk", "GB"),
        ("en", "example.UK", "GB"),
        ("fr", "www.admin.ch", "CH"),
        ("en", "library.example.edu", "US"),
        ("de", "www.example.com", "DE"),
        ("pt", "example.org", "BR"),
        ("ja", None, "JP"),
        ("zh", "example.io", "CN"),
        ("es", "example.co", "ES"),
        ("no", None, "NO"),
        ("nb", None, "NO"),
        ("zh-Hant", None, "TW"),
        ("en-GB", None, "US"),
        ("fr", "example.eu", "FR"),
        ("en", "example.com", "US"),
        (None, "example.com", "US"),
        (None, None, "US"),
        (None, "192.0.2.1", "US"),
        (None, "[2001:db8::de]", "US"),
        (None, "localhost", "US"),
        ("eo", "example.org", None),
        ("xx", "example.org", None),
        ("", "", "US"),
        ("de", "de", "DE"),
    ],
)
def test_the_host_s_country_comes_before_the_language_s(language, host, region):
    assert region_of(language, host) == region


NATIONAL = [
    ("bg", "www.example.bg", "Обадете се на 02 940 1111 днес", "Обадете се на <PHONE> днес"),
    ("da", "www.example.dk", "Ring 33 15 50 50 i dag", "Ring <PHONE> i dag"),
    ("nl", "www.example.be", "Bel 02 555 12 12 nu", "Bel <PHONE> nu"),
    ("el", "example.com", "Καλέστε 210 331 2000 τώρα", "Καλέστε <PHONE> τώρα"),
    ("ko", "example.com", "문의 02-2100-2114 로", "문의 <PHONE> 로"),
    ("cs", "example.com", "Volejte 224 197 111 hned", "Volejte <PHONE> hned"),
    ("en", "www.example.co.nz", "Ring 09 379 1234 now", "Ring <PHONE> now"),
    ("en", "www.example.co.za", "Ring 021 480 2700 now", "Ring <PHONE> now"),
    ("es", "www.example.com.mx", "Llame al 55 5093 3000 hoy", "Llame al <PHONE> hoy"),
    ("he", "example.org", "חייגו 03-607-1111 היום", "חייגו <PHONE> היום"),
    ("th", "example.org", "โทร 02-250-5500 วันนี้", "โทร <PHONE> วันนี้"),
    ("fr", "example.org", "Tél. 0170189904", "Tél. <PHONE>"),
    ("zh", "example.org", "手机13800138000", "手机<PHONE>"),
    ("ru", "example.org", "тел. 84951234567", "тел. <PHONE>"),
]


@pytest.mark.parametrize(("language", "host", "text", "expected"), NATIONAL)
def test_a_national_number_is_found_in_a_document_of_its_country(
    make_document, language, host, text, expected
):
    step = PiiStep(PiiTable())
    document = step(make_document(text=text, language=language, url=f"https://{host}/contact"))
    assert isinstance(document, Document)
    assert document.text == expected


def test_a_country_named_by_the_recipe_counts_whatever_the_document_says(make_document):
    step = PiiStep(PiiTable(phone_region="US"))
    text = "Ruf 030 901820 an, or (212) 736-5000"
    document = step(make_document(text=text, language="de", url="https://www.example.de/"))
    assert isinstance(document, Document)
    assert document.text == "Ruf 030 901820 an, or <PHONE>"


def test_where_no_country_counts_the_international_form_alone_does():
    assert scrub("(212) 736-5000 or +1 212 736 5000", ["phone"], None).text == "(212) 736-5000 or <PHONE>"


def test_an_item_is_found_in_the_documents_of_whatever_country() -> None:
    item = "Ruf heute noch 030 901820 an und frag nach dem Schlüssel"
    finder = Finder([item], "13w", DedupTable(), PiiTable(kinds=("phone",)))
    for region in ("DE", "US", None):
        text = scrub(item, ("phone",), region).text
        assert [evidence.kind for evidence in finder.find(text)] == ["exact"], region
    assert "<PHONE>" in scrub(item, ("phone",), "DE").text
    assert regions_in_use("FR") == ("FR",)


MAYBE_PHONES = st.lists(
    st.sampled_from(
        [*"0123456789 ()[].-/+\n", "tel ", "call", "＋", "٩", "212", "030 ", "+49 ", "x", "电话", "é"]
    ),
    max_size=24,
).map("".join)


@settings(deadline=None, max_examples=150)
@given(MAYBE_PHONES)
@example("call (2125550187")
@example("＋12125550187")
@example("+(1)2125550187")
def test_a_text_of_which_no_phone_may_be_had_has_none_in_any_country(text: str) -> None:
    if not may_hold_phones(text.encode()):
        for region in (None, "US", "DE", "FR", "IT", "CN", "PL", "DK"):
            assert not list(find_phones(text.encode(), region))


def test_sums_are_no_phone_numbers_whoever_is_asked() -> None:
    assert not may_hold_phones(b"What is 12345678 * 87654321? 1081521516789512, 12345678 or 4155552671 = 9")
    assert (
        may_hold_phones(b"tel 4155552671")
        and may_hold_phones(b"030 901820")
        and may_hold_phones(b"+14155552671")
    )
