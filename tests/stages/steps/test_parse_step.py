"""Parsing: bounds first, then the extractor, then what its text must be; and no memory between pages."""

from __future__ import annotations

import codecs
import gzip
import signal
import threading
import unicodedata
from dataclasses import replace

import pytest
from fastwarc.warc import ArchiveIterator, WarcRecordType
from hypothesis import given
from hypothesis import strategies as st

from lineage.ids import text_hash
from stages.document import Document, Rejection
from stages.fault import Fault
from stages.html import extraction
from stages.html.extraction import (
    BrokenPatchError,
    Extractor,
    Failure,
    OutOfTimeError,
    extract,
    processor_time_limit,
)
from stages.html.extraction_child import IsolatedExtraction, _answer, _outcome_of
from stages.html.markup import depth
from stages.html.markup_bounds import markup_bounds
from stages.html.page import PageReader, read_page
from stages.html.trafilatura_patches import composing, loading
from stages.html.trafilatura_patches.apply import WrongVersionError, check_version
from stages.reading.warc.body import decode_body
from stages.steps.parse import ParseStep, ParseTable, clean_text

SENTENCE = "The quick brown fox jumps over the lazy dog while the cat looks on in silence. "
PAGE = f"<html><head><title>t</title></head><body><article><p>{SENTENCE * 4}</p></article></body></html>"
TRAFILATURA = Extractor(name="trafilatura", favor="precision", fast=False, timeout_seconds=60.0)
RESILIPARSE = Extractor(name="resiliparse", favor="precision", fast=False, timeout_seconds=60.0)


def parse(
    document: Document, *, max_bytes: int = 10**7, ledger: bool = False, **keys
) -> Document | Rejection:
    table = ParseTable(**keys)
    return ParseStep(table, PageReader(table.bounds(max_bytes), table.timeout_seconds), ledger=ledger)(
        document
    )


def rule(outcome: Document | Rejection) -> str:
    return outcome.finding.rule if isinstance(outcome, Rejection) else "kept"


@pytest.fixture(scope="module")
def real_pages(real_data) -> list[str]:
    """The first 60 pages of a real crawl."""
    with open(sorted((real_data / "crawl").glob("*.warc.gz"))[0], "rb") as file:
        records = ArchiveIterator(file, record_types=WarcRecordType.response, parse_http=True)
        return [
            record.reader.read().decode("utf-8", "replace")
            for record, _ in zip(records, range(60), strict=False)
        ]


HEAD = "<meta name=a><title>„Ebbe“ und Flut</title><script>var a = '<p>';</script>"
WITH_HEAD = (
    f"<!DOCTYPE html><html><head>{HEAD}</head><body><article><p>{SENTENCE * 4}</p></article></body></html>"
)


@pytest.mark.parametrize(
    ("payload", "fields", "is_left_out"),
    [
        (WITH_HEAD.encode(), {}, True),
        (codecs.BOM_UTF8 + WITH_HEAD.encode(), {}, True),
        (WITH_HEAD.encode("cp1252"), {"charset_hint": "windows-1252"}, True),
        (f"{WITH_HEAD}{'é' * 60}".encode() + b"\xff", {}, True),
        (f"{WITH_HEAD}{'é' * 60}".encode().replace(b"Ebbe", b"Ebbe\xff\x80\xe2\x80"), {}, False),
        (WITH_HEAD.replace("</p>", " 10<sup>6</sup></p>").encode(), {}, False),
        (f"<p>{HEAD}{SENTENCE * 4}".encode(), {}, False),
    ],
)
def test_resiliparse_does_not_parse_what_is_in_the_head_alone(make_document, payload, fields, is_left_out):
    table = ParseTable(extractor="resiliparse")
    bounds = table.bounds(10**7)
    pages, document = PageReader(bounds, 60.0), make_document(html=payload, **fields)
    page = read_page(document, bounds)
    assert page.charset == ("cp1252" if fields else "utf-8")
    assert page.without_head == (page.html.replace(HEAD, "") if is_left_out else page.html)
    assert (HEAD in page.without_head) is (HEAD in page.html and not is_left_out)
    assert pages.extract(page, RESILIPARSE) == extract(page.html, RESILIPARSE)
    assert pages.extract(page, TRAFILATURA) == extract(page.html, TRAFILATURA)


@pytest.mark.parametrize("extractor", ["trafilatura", "resiliparse"])
def test_a_page_gives_its_main_text_its_charset_and_the_hash_of_the_text(make_document, extractor):
    parsed = parse(make_document(html=PAGE), extractor=extractor)
    assert isinstance(parsed, Document)
    assert parsed.text.startswith("The quick brown fox")
    assert "<" not in parsed.text
    assert parsed.charset == "utf-8"
    assert parsed.text_hash == text_hash(parsed.text)


def test_the_charset_of_the_header_decides_and_is_kept(make_document):
    page = PAGE.replace("fox", "füchs").encode("cp1252")
    parsed = parse(make_document(html=page, charset_hint="windows-1252"))
    assert isinstance(parsed, Document)
    assert (parsed.charset, "füchs" in parsed.text) == ("cp1252", True)


def test_a_compressed_body_is_undone_first(make_document):
    parsed = parse(make_document(html=gzip.compress(PAGE.encode()), content_encoding="gzip"))
    assert rule(parsed) == "kept"


def test_a_bomb_is_turned_down_without_being_held(make_document):
    outcome = parse(
        make_document(html=gzip.compress(bytes(50_000_000)), content_encoding="gzip"), max_bytes=10**6
    )
    assert rule(outcome) == "parse.too_large"
    assert isinstance(outcome, Rejection)
    assert (outcome.finding.value, outcome.finding.threshold) == (None, 1e6)


def test_an_oversized_payload_that_was_not_held_is_too_large_also_without_the_url_step(make_document):
    assert rule(parse(make_document(html="", num_bytes=10**8))) == "parse.too_large"


def test_too_many_tags_and_too_deep_are_told_before_anything_is_extracted(make_document):
    many = parse(make_document(html="<p>a" * 100_001))
    assert (rule(many), many.finding.value) == ("parse.too_many_tags", 100_001)
    deep = parse(make_document(html="<div>" * 4_000 + "</div>" * 4_000))
    assert (rule(deep), deep.finding.value) == ("parse.too_deep", 4_002)
    deep = parse(make_document(html="<div>" * 50_000 + "</div>" * 50_000))
    assert (rule(deep), deep.finding.value) == ("parse.too_deep", 10_002), "of its first 10,000 tags"


def paragraphs_behind(num_open: int, num_paragraphs: int) -> str:
    """A page of paragraphs behind a block with so many elements in it that are left open."""
    return "<div>" + "".join(f"<b id={n}>" for n in range(num_open)) + "</div>" + "<p>x</p>" * num_paragraphs


def test_elements_that_a_parser_opens_again_in_every_block_are_tags_too(make_document):
    outcome = parse(make_document(html=paragraphs_behind(600, 10_000)), extractor="resiliparse")
    assert rule(outcome) == "parse.too_many_tags"
    assert outcome.finding.value > 6_000_000
    told_by_the_tree = parse(make_document(html=paragraphs_behind(30, 4_000)), extractor="resiliparse")
    assert (rule(told_by_the_tree), told_by_the_tree.finding.value) == ("parse.too_many_tags", 124_034)
    kept = parse(make_document(html=paragraphs_behind(20, 4_000)), extractor="resiliparse", ledger=True)
    measured = {finding.rule: finding.value for finding in kept.findings}
    assert (rule(kept), measured["parse.too_many_tags"]) == ("kept", 84_024)


@pytest.mark.parametrize("extractor", ["trafilatura", "resiliparse"])
def test_a_select_of_very_many_options_is_turned_down_before_a_parser_looks_at_each_with_all_before(
    make_document, extractor
):
    def page(num_options: int) -> str:
        return PAGE.replace("</article>", f"</article><select>{'<option>x' * num_options}</select>")

    outcome = parse(make_document(html=page(2_001)), extractor=extractor)
    assert (rule(outcome), outcome.finding.value) == ("parse.too_many_options", 2_001)
    assert rule(parse(make_document(html=page(2_000)), extractor=extractor)) == "kept"


@pytest.mark.parametrize("extractor", ["trafilatura", "resiliparse"])
def test_a_text_with_many_marks_in_a_row_is_turned_down(make_document, extractor):
    def page(num_marks: int, mark: str) -> str:
        return PAGE.replace("lazy", f"lazya{mark * num_marks}")

    for mark in ("\u0301", "&#769;"):
        outcome = parse(make_document(html=page(31, mark)), extractor=extractor)
        assert (rule(outcome), outcome.finding.value, outcome.finding.threshold) == (
            "parse.too_many_marks",
            31,
            30,
        )
        assert rule(parse(make_document(html=page(30, mark)), extractor=extractor)) == "kept"
        assert rule(parse(make_document(html=page(31, mark)), extractor=extractor, max_marks=31)) == "kept"


def test_marks_of_plain_text_count_as_they_decompose_and_whatever_nul_stands_between(make_document):
    for marks, value in (("\u0316\u0301" * 60_000, 120_000), ("\u0344" * 16, 32), ("\u0301\0" * 31, 31)):
        outcome = parse(make_document(text=f"Words a{marks}", is_html=False))
        assert (rule(outcome), outcome.finding.value) == ("parse.too_many_marks", value)


def test_trafilatura_composes_by_our_own_function_which_is_linear():
    extract(PAGE, TRAFILATURA)
    import trafilatura.core

    assert trafilatura.core.normalize_unicode is composing._composed


def test_a_tag_of_very_many_attributes_is_turned_down_before_anything_compares_them(make_document):
    def page(num_attributes: int) -> str:
        return PAGE.replace("<article>", f"<article {' '.join(f'a{n}=1' for n in range(num_attributes))}>")

    outcome = parse(make_document(html=page(1_001)))
    assert (rule(outcome), outcome.finding.value) == ("parse.too_many_attributes", 1_001)
    assert rule(parse(make_document(html=page(1_000)))) == "kept"


def test_depth_in_a_charset_of_two_bytes_is_seen_too(make_document):
    outcome = parse(make_document(html=("<div>" * 5_000).encode("utf-16"), charset_hint="utf-16"))
    assert rule(outcome) == "parse.too_deep"


@pytest.mark.parametrize(
    "html", ["", " ", "<html></html>", "<script>x</script>", "\0\0\0", "<!-- only this -->"]
)
@pytest.mark.parametrize("extractor", ["trafilatura", "resiliparse"])
def test_a_page_without_text_is_empty(make_document, html, extractor):
    outcome = parse(make_document(html=html), extractor=extractor)
    assert rule(outcome) == "parse.empty"
    assert isinstance(outcome, Rejection)
    assert outcome.finding.value == 0


def test_a_plain_text_keeps_its_words_and_gets_plain_line_ends(make_document):
    parsed = parse(make_document(text="  one\r\ntwo\rthree\0\n\ud800 cafe\u0301 \n"))
    assert isinstance(parsed, Document)
    assert parsed.text == "one\ntwo\nthree\n\ufffd café"
    assert parsed.text_hash == text_hash(parsed.text)


def test_a_text_record_of_the_web_is_decoded_and_kept_as_it_is(make_document):
    document = make_document(
        payload="Grüße\r\n<b>not markup</b>".encode("latin-1"), charset_hint="iso-8859-1"
    )
    parsed = parse(document)
    assert isinstance(parsed, Document)
    assert (parsed.text, parsed.charset) == ("Grüße\n<b>not markup</b>", "cp1252")


def test_a_letter_and_its_mark_are_one_where_a_nul_stood_between_them() -> None:
    assert clean_text("e\0\u0301") == ("é", "é".encode())


@given(st.text(st.characters()))
def test_clean_text_is_what_utf8_can_hold_and_twice_is_once(text):
    cleaned, encoded = clean_text(text)
    assert cleaned.encode("utf-8") == encoded
    assert "\0" not in cleaned and "\r" not in cleaned
    assert unicodedata.is_normalized("NFC", cleaned)
    assert clean_text(cleaned) == (cleaned, encoded)


def test_with_the_ledger_the_bounds_that_held_are_kept(make_document):
    parsed = parse(make_document(html=PAGE), ledger=True)
    assert [f.rule for f in parsed.findings] == [
        "parse.too_large",
        "parse.too_many_attributes",
        "parse.too_many_options",
        "parse.too_deep",
        "parse.too_many_tags",
        "parse.too_many_marks",
    ]
    assert not parse(make_document(html=PAGE)).findings


@pytest.mark.parametrize(
    "extractor", [TRAFILATURA, RESILIPARSE, replace(TRAFILATURA, fast=True, favor="recall")]
)
def test_a_page_gives_the_same_text_whatever_was_parsed_before_it(real_pages, extractor):
    first = [extract(page, extractor) for page in real_pages]
    assert [extract(page, extractor) for page in reversed(real_pages)] == first[::-1]


def test_the_call_without_a_cache_of_its_own_does_remember_which_is_why_ours_has_one():
    import trafilatura

    answers = [trafilatura.extract(PAGE, favor_precision=True, deduplicate=True) for _ in range(5)]
    assert len(set(answers)) > 1
    assert len({extract(PAGE, TRAFILATURA) for _ in range(5)}) == 1


@pytest.mark.parametrize("nested", ["div", "b", "table", "ul><li", "blockquote", "span"])
def test_a_deep_page_gives_the_same_text_however_deep_the_callers_stack_is(nested):
    html = f"<html><body><p>{SENTENCE}</p>" + f"<{nested}>" * 250 + SENTENCE * 5 + "</body></html>"

    def below(frames: int) -> str | Failure:
        return below(frames - 1) if frames else extract(html, TRAFILATURA)

    assert below(150) == extract(html, TRAFILATURA)


def spin_forever(_html: str) -> str:
    while True:
        pass


def test_a_page_that_takes_too_long_is_tried_twice_and_given_up(make_document, monkeypatch):
    tries = []
    monkeypatch.setattr(
        extraction, "_callable", lambda _: lambda html, _tags: (tries.append(1), spin_forever(html))
    )
    outcome = parse(make_document(html=PAGE), timeout_seconds=0.05)
    assert (rule(outcome), len(tries)) == ("parse.timeout", 2)


def test_an_extractor_that_raises_is_an_error_of_that_page_only(make_document, monkeypatch):
    def fail(html: str, _num_tags: int) -> str:
        raise ValueError(html)

    monkeypatch.setattr(extraction, "_callable", lambda _: fail)
    outcome = parse(make_document(html=PAGE))
    assert rule(outcome) == "parse.error"
    assert outcome.fault.error == "ValueError"
    assert outcome.fault.where == f"{__name__}, line {fail.__code__.co_firstlineno + 1}, in fail"
    assert PAGE[:20] not in outcome.fault.traceback


@pytest.mark.parametrize(
    "outcome",
    [
        "text \ud800",
        "",
        *Failure,
        Fault(error="ValueError", where="x, line 1, in f", traceback="a\nb", message="é\ud800"),
    ],
)
def test_an_extractor_in_a_child_gives_the_same_answer(outcome):
    assert _outcome_of(_answer(outcome)) == outcome


def broken(*_arguments: object) -> None:
    raise TypeError("our own mistake")


def test_a_broken_patch_ends_the_run_and_is_no_error_of_the_page(make_document, monkeypatch):
    assert rule(parse(make_document(html=PAGE))) == "kept"  # the patches are in place
    monkeypatch.setattr("trafilatura.utils.INVALID_XML_CHARS", loading.IfAny("no pattern"))
    with pytest.raises(BrokenPatchError, match=r"broken at loading.py:\d+: AttributeError"):
        parse(make_document(html=PAGE.replace("fox", "fox\x01")))


def test_a_broken_patch_in_a_child_ends_the_run_too(monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import stages.html.trafilatura_patches.loading as loading\n"
        "loading.holds_forbidden.__code__ = (lambda text: None.missing).__code__.replace("
        "co_filename=loading.__file__)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    child = IsolatedExtraction()
    try:
        with pytest.raises(BrokenPatchError, match="AttributeError"):
            child(PAGE, TRAFILATURA)
    finally:
        child.close()


def test_an_error_of_the_library_below_a_patch_is_the_page_s(make_document, monkeypatch):
    assert rule(parse(make_document(html=PAGE))) == "kept"
    monkeypatch.setattr("trafilatura.main_extractor.extract_content", broken)
    assert rule(parse(make_document(html=PAGE))) in ("parse.error", "parse.empty")


def test_a_lack_of_memory_is_tried_again_in_a_child(make_document, monkeypatch):
    def lack(_html: str, _num_tags: int) -> str:
        raise MemoryError

    wanted = parse(make_document(html=PAGE))
    monkeypatch.setattr(extraction, "_callable", lambda _: lack)
    assert parse(make_document(html=PAGE)) == wanted


@pytest.mark.parametrize("version", ["2.3.0", "2.3.2", "3.0"])
def test_the_patches_refuse_any_other_release_by_name(version):
    with pytest.raises(WrongVersionError, match=rf"trafilatura {version} is installed.*trafilatura==2.3.1"):
        check_version(version)


def test_a_page_goes_along_with_its_document_and_nothing_is_kept(make_document, monkeypatch):
    reads = []
    monkeypatch.setattr(
        "stages.html.page.decode_body", lambda *given: (reads.append(1), decode_body(*given))[1]
    )
    table = ParseTable(extractor="resiliparse")
    pages = PageReader(table.bounds(10**7), 60.0)
    seen = pages.with_fast_text(make_document(html=PAGE))
    assert ParseStep(table, pages)(seen) == parse(make_document(html=PAGE), extractor="resiliparse")
    assert len(reads) == 2, "once for each of the two documents"
    changed = replace(seen, payload=PAGE.replace("fox", "cat").encode())
    assert "brown cat" in ParseStep(table, pages)(changed).text, "a page is its payload's and no other's"
    assert ParseStep(table, pages)(seen).decoded is None


def test_the_clock_leaves_other_handlers_and_timers_as_they_were():
    before = signal.getsignal(signal.SIGVTALRM)
    with pytest.raises(OutOfTimeError), processor_time_limit(0.01):
        spin_forever("")
    assert signal.getsignal(signal.SIGVTALRM) == before
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def test_off_the_main_thread_extraction_works_without_a_clock():
    texts: list[str | Failure] = []
    thread = threading.Thread(target=lambda: texts.append(extract(PAGE, TRAFILATURA)))
    thread.start()
    thread.join()
    assert texts == [extract(PAGE, TRAFILATURA)]


def test_a_child_process_gives_the_same_texts(real_pages):
    child = IsolatedExtraction()
    try:
        for page in [*real_pages[:10], "", "\ud800 lone", "\0"]:
            assert child(page, TRAFILATURA) == extract(page, TRAFILATURA)
    finally:
        child.close()


def test_a_child_that_dies_on_a_page_is_replaced_and_the_page_given_up(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, stages.html.extraction as e\n"
        "real = e.extract\n"
        "e.extract = lambda html, x: os._exit(139) if 'kill me' in html else real(html, x)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    child = IsolatedExtraction()
    try:
        assert child("<p>kill me</p>", TRAFILATURA) is Failure.CRASHED
        assert child(PAGE, TRAFILATURA) == extract(PAGE, TRAFILATURA)
    finally:
        child.close()


def test_a_child_that_never_answers_is_killed(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(
        "import time, stages.html.extraction as e\ne.extract = lambda html, x: time.sleep(600)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("stages.html.extraction_child._GRACE_SECONDS", 1.0)
    monkeypatch.setattr("stages.html.extraction_child._STALLED_TIMES", 1)
    child = IsolatedExtraction()
    try:
        assert child(PAGE, replace(TRAFILATURA, timeout_seconds=0.1)) is Failure.TIMEOUT
    finally:
        child.close()


def test_a_large_page_on_which_native_code_does_not_come_back_is_a_timeout(make_document, monkeypatch):
    # The bound that turns such a page down is lifted: there may be others that no bound knows of.
    monkeypatch.setattr("stages.html.extraction_child._GRACE_SECONDS", 0.3)
    lifted = {"extractor": "resiliparse", "max_options": 10**9}
    endless = f"{PAGE}<select>{'<option>x</option>' * 45_000}"
    assert rule(parse(make_document(html=endless), **lifted, timeout_seconds=0.1)) == "parse.timeout"
    assert rule(parse(make_document(html=PAGE + "<br>" * 20_000), extractor="resiliparse")) == "kept"


def test_a_large_page_has_the_same_text_from_a_child(make_document, monkeypatch):
    html = PAGE.replace("</article>", f"<p>{SENTENCE * 4}</p>" * 6_000 + "</article>")
    texts = [parse(make_document(html=html), extractor="resiliparse").text]
    monkeypatch.setattr("stages.html.extraction_child._MOST_TAGS_HERE", 10**9)
    monkeypatch.setattr("stages.html.extraction_child._MOST_CHARS_HERE", 10**9)
    texts.append(parse(make_document(html=html), extractor="resiliparse").text)
    assert len(texts[0]) > 100_000 and texts[0] == texts[1]


@pytest.mark.parametrize("stray", ["</x>", "</b></b></b>", "</divx>", "</longername>"])
def test_stray_end_tags_do_not_hide_depth(make_document, stray):
    outcome = parse(make_document(html=("<div>" + stray) * 2_000))
    assert rule(outcome) == "parse.too_deep"
    assert outcome.finding.value == 2_002


def test_elements_that_end_do_not_hide_what_they_stand_in(make_document):
    outcome = parse(make_document(html="<div><i></i >" * 2_000))
    assert (rule(outcome), outcome.finding.value) == ("parse.too_deep", 2_003)


@pytest.mark.parametrize(
    "hiding",
    [
        "<!--</div>-->",
        "<br title='</div>'>",
        "<script></div></script>",
        "<title></div></title>",
        "<span></p><section></span>",
        "<table><tr><td></div></td></tr></table>",
        "<select></div></select>",
        "<svg><g><![CDATA[></g>]]>",
        "<svg><style><g><!--</g>--></style>",
    ],
)
@pytest.mark.parametrize("extractor", ["trafilatura", "resiliparse"])
def test_end_tags_that_a_parser_does_not_take_for_such_do_not_hide_depth(make_document, hiding, extractor):
    outcome = parse(make_document(html=("<div>" + hiding) * 1_100), extractor=extractor)
    assert rule(outcome) == "parse.too_deep"
    assert outcome.finding.value > 1_100


@pytest.mark.parametrize("inline", ["x1", "span", "ins"])
def test_inline_elements_whose_end_tags_stand_within_a_block_do_not_hide_depth(make_document, inline):
    outcome = parse(make_document(html=f"<{inline}><div></{inline}></div>" * 1_100), extractor="resiliparse")
    assert (rule(outcome), outcome.finding.value) == ("parse.too_deep", 1_103)


def test_names_of_one_kind_each_that_end_within_a_block_do_not_hide_depth(make_document):
    html = "".join(f"<x{number}><div></x{number}></div>" for number in range(1_100))
    outcome = parse(make_document(html=html), extractor="resiliparse")
    assert (rule(outcome), outcome.finding.value) == ("parse.too_deep", 1_103)


def test_end_tags_of_another_long_name_do_not_hide_depth(make_document):
    assert rule(parse(make_document(html="<longname-a></longname-b>" * 20_000))) == "parse.too_deep"


def test_real_pages_are_far_from_the_bounds(real_pages):
    assert max(depth(page) for page in real_pages) < ParseTable().max_depth / 4
    assert max(markup_bounds(page.encode())[0] for page in real_pages) < ParseTable().max_tags / 4
