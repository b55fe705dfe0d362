"""Which charset a page is read by."""

from __future__ import annotations

import pytest
import webencodings
from hypothesis import assume, given
from hypothesis import strategies as st

from stages.reading.charsets.charset import decode_text
from stages.reading.charsets.labels import known_charset
from stages.reading.warc.headers import charset_of

POLISH = "Zażółć gęślą jaźń. Pchnąć w tę łódź jeża lub ośm skrzyń fig. "
RUSSIAN = "Съешь же ещё этих мягких французских булок, да выпей чаю. "


@pytest.mark.parametrize(
    ("payload", "hint", "text", "charset"),
    [
        (b"plain", None, "plain", "utf-8"),
        (b"", None, "", "utf-8"),
        ("é".encode("cp1252"), "ISO-8859-1", "é", "cp1252"),
        ("é".encode("cp1252"), None, "é", "cp1252"),
        (b"\x93quoted\x94", "latin-1", "“quoted”", "cp1252"),
        ("é".encode(), "utf-8", "é", "utf-8"),
        ("中文".encode("gb18030"), "GB2312", "中文", "gb18030"),
        ("日本".encode("cp932"), "x-sjis", "日本", "cp932"),
        (RUSSIAN.encode("koi8-r"), "koi8-r", RUSSIAN, "koi8_r"),
        # The header says nothing: the page does.
        (b'<meta charset="windows-1251">' + RUSSIAN.encode("cp1251"), None, RUSSIAN, "cp1251"),
        (
            b'<meta http-equiv="content-type" content="text/html; charset=cp1250">' + POLISH.encode("cp1250"),
            None,
            POLISH,
            "cp1250",
        ),
        (
            b'<?xml version="1.0" encoding="ISO-8859-2"?>' + POLISH.encode("iso8859-2"),
            None,
            POLISH,
            "iso8859_2",
        ),
        (b"\xef\xbb\xbfmark", None, "mark", "utf-8"),
        (b"\xff\xfem\0a\0", None, "ma", "utf-16-le"),
        (b"\xfe\xff\0m\0a", None, "ma", "utf-16-be"),
        # A byte-order mark goes before the header, which says nothing of the order.
        ("wörter".encode("utf-16"), "utf-16", "wörter", "utf-16-le"),
        (b"\xfe\xff" + "wörter".encode("utf-16-be"), "utf-16", "wörter", "utf-16-be"),
        (b"\xef\xbb\xbf" + "Café".encode(), "iso-8859-1", "Café", "utf-8"),
        # A mark counts where no byte is NUL.
        (b"\xff\xfe" + "你好世界这是测试".encode("utf-16-le"), None, "你好世界这是测试", "utf-16-le"),
        # The header goes before the page.
        (b'<meta charset="windows-1252">' + POLISH.encode("cp1250"), "windows-1250", POLISH, "cp1250"),
        # A header that is unknown, or lies, is passed over.
        (POLISH.encode(), "klingon", POLISH, "utf-8"),
        (b"abc-9000", "punycode", "abc-9000", "utf-8"),
        (b"+AGE-", "utf-7", "+AGE-", "utf-8"),
        (b"ab" * 20, "utf-16", "ab" * 20, "utf-8"),
        ((RUSSIAN * 20).encode("cp1251"), "utf-8", RUSSIAN * 20, "cp1251"),
        ((RUSSIAN * 20).encode("cp1251"), None, RUSSIAN * 20, "cp1251"),
        # A few broken bytes do not make a page another charset's.
        ((POLISH * 20).encode() + b"\xff", "utf-8", POLISH * 20 + "\ufffd", "utf-8"),
        # UTF-8 goes before header and page, also with a broken byte, cut off, or where it was damaged before.
        ("日本語の頁".encode(), "shift_jis", "日本語の頁", "utf-8"),
        ('<meta charset="gb2312">中文网页'.encode(), "gbk", "中文网页", "utf-8"),
        ("Straße für Wörter".encode(), "iso-8859-1", "Straße für Wörter", "utf-8"),
        ((POLISH * 20).encode() + b"\xe9 ", "iso-8859-2", POLISH * 20 + "\ufffd ", "utf-8"),
        ("naïve 日本".encode()[:-1], "iso-8859-1", "naïve 日\ufffd", "utf-8"),
        ("\ufffd\ufffd\ufffd é ".encode() + b"\xff" + POLISH.encode(), None, POLISH, "utf-8"),
        # More of its characters than misfits: a template in UTF-8, a few quotation marks that were pasted in.
        ("© « » → ".encode() + b"\x93pasted\x94", None, "© « » → \ufffdpasted\ufffd", "utf-8"),
        # A mark that lies.
        (b"\xef\xbb\xbfcaf\xe9 cr\xe8me", None, "café crème", "cp1252"),
        # What refutes a name in a short text is passed over in a long one.
        (b"caf\xe9", "utf-8", "café", "cp1252"),
        ("日本語の文章です。".encode("cp932")[:-1], "shift_jis", "日本語の文章です\ufffd", "cp932"),
        ((RUSSIAN * 20).encode("cp1251") + b"\x98", "windows-1251", RUSSIAN * 20 + "\ufffd", "cp1251"),
        # Bytes of seven bits that say by their escape sequences what they are, and others that a name is
        # needed for.
        ("漢字かな".encode("iso2022_jp"), None, "漢字かな", "iso2022_jp_ext"),
        ("漢字かな".encode("iso2022_jp"), "utf-8", "漢字かな", "iso2022_jp_ext"),
        ("한국어".encode("iso2022_kr"), None, "한국어", "iso2022_kr"),
        ("中文".encode("hz"), "hz-gb-2312", "中文", "hz"),
        ("中文".encode("hz"), None, "~{VPND~}", "utf-8"),
        (b"\x1b[31mred\x1b[0m", None, "\x1b[31mred\x1b[0m", "utf-8"),
        # What NEC and IBM added to JIS X 0208, and katakana of half width, as browsers read them.
        ("見出し①㈱".encode("cp932"), "shift_jis", "見出し①㈱", "cp932"),
        ("見出しの文章".encode("euc_jp") + b"\xad\xa1\xf9\xa1", "euc-jp", "見出しの文章①纊", "euc_jp"),
        (b"\x1b$B8+=P$7$NJ8>O-!\x1b(I1\x1b(B.", "iso-2022-jp", "見出しの文章①ｱ.", "iso2022_jp_ext"),
    ],
)
def test_the_charset_that_is_used(payload: bytes, hint: str | None, text: str, charset: str) -> None:
    decoded, used = decode_text(payload, hint)
    assert decoded.endswith(text)
    assert used == charset


def test_a_meta_element_counts_only_in_html() -> None:
    payload = b'<meta charset="windows-1251"> ' + "Привет".encode("koi8-r")
    assert decode_text(payload, is_html=False)[1] == "koi8_r"
    assert decode_text(payload, is_html=True)[1] == "cp1251"


META = b'<meta charset="windows-1251">'


@pytest.mark.parametrize(
    ("head", "charset"),
    [
        (META, "cp1251"),
        (b"<META\nCharSet = windows-1251 >", "cp1251"),
        (b"<meta/charset='windows-1251'/>", "cp1251"),
        (b'<meta http-equiv="Content-Type" content="text/html; charset = windows-1251">', "cp1251"),
        (b'<meta content="charset=windows-1251;x" http-equiv=content-type>', "cp1251"),
        (b"<!-- --><!--><!doctype html><? php ?></ ><title lang=ru>" + META, "cp1251"),
        (b'<?xml version="1.0" encoding="utf-8"?>' + META, "cp1251"),
        (b'<meta charset="klingon">' + META, "cp1251"),
        (b'<meta charset="windows-1251" charset="utf-8">', "cp1251"),
        (b'<meta charset="x-user-defined">', "cp1252"),
        (b'<meta charset="utf-16">', "utf-8"),
        # None of these is an element that names a charset.
        (b"<!-- " + META + b" -->", "utf-8"),
        (b"<!doctype html><!-- never closed " + META, "utf-8"),
        (b'<img alt="' + META.replace(b'"', b"") + b'">', "utf-8"),
        (b'<meta name="description" content="text/html; charset=windows-1251">', "utf-8"),
        (b'<meta http-equiv="refresh" content="0; url=/?charset=windows-1251">', "utf-8"),
        (b'<meta data-charset="windows-1251">', "utf-8"),
        (b'<metadata charset="windows-1251">', "utf-8"),
        (b"<meta http-equiv=content-type content='charset=\"windows-1251'>", "utf-8"),
        (b'<meta charset="windows-1251', "utf-8"),
    ],
)
def test_a_page_names_its_charset_where_browsers_look_for_it(head: bytes, charset: str) -> None:
    # No UTF-8: that would go before what the page says. Two names are known by the text that is read.
    text, used = decode_text(head + "é ".encode("cp1252"))
    if charset == "utf-8":
        assert (text[-2:], used) == ("é ", "cp1252")
    else:
        assert (text[-2:], used) == (b"\xe9 ".decode(charset), charset)


@pytest.mark.parametrize(
    "piece", [b"<meta ", b"<!", b"<!--", b"<a b=", b"<a '", b"charset=", b"<meta a=' ", b"/", b"<"]
)
@given(data=st.data())
def test_any_head_of_a_page_is_read(piece: bytes, data: st.DataObject) -> None:
    pieces = st.sampled_from([piece, b"<meta ", b"charset=utf-8", b">", b'"', b"'", b"=", b"--", b" ", b"x"])
    text, _ = decode_text(b"".join(data.draw(st.lists(pieces, max_size=40))))
    assert text.isascii()


@pytest.mark.differential("stages/reading")
@pytest.mark.parametrize(("label", "name"), sorted(webencodings.LABELS.items()))
def test_every_label_of_the_web_is_known(label: str, name: str) -> None:
    codec = known_charset(label)
    # Of the charsets that browsers replace with one U+FFFD two are read, and Python knows no other.
    if name == "replacement":
        assert codec == {"csiso2022kr": "iso2022_kr", "iso-2022-kr": "iso2022_kr", "hz-gb-2312": "hz"}.get(
            label
        )
    else:
        assert codec == known_charset(name) is not None


NAMES = (
    "utf-8",
    "utf-16",
    "gb2312",
    "shift_jis",
    "iso-2022-jp",
    "big5",
    "windows-1252",
    "euc-kr",
    "idna",
    "zlib",
)


@given(
    payload=st.binary(max_size=300), hint=st.one_of(st.none(), st.text(max_size=20), st.sampled_from(NAMES))
)
def test_any_bytes_with_any_hint_give_a_text(payload: bytes, hint: str | None) -> None:
    text, used = decode_text(payload, hint)
    assert known_charset(used) == used
    text.encode("utf-8")


LABELS = st.one_of(st.none(), st.sampled_from(sorted(webencodings.LABELS)))


@given(text=st.text(st.characters(codec="utf-8"), max_size=200), hint=LABELS)
def test_utf8_beyond_ascii_is_read_whatever_the_header_says(text: str, hint: str | None) -> None:
    expected = text + "…"
    assert decode_text(expected.encode(), hint) == (expected.removeprefix("\ufeff"), "utf-8")


@given(
    text=st.text(st.characters(codec="utf-8"), min_size=12, max_size=200), cut=st.integers(1, 3), hint=LABELS
)
def test_utf8_that_is_cut_off_within_a_character_is_utf8(text: str, cut: int, hint: str | None) -> None:
    text = text.removeprefix("\ufeff") + "…"
    assert decode_text((text + "😀").encode()[:-cut], hint) == (text + "\ufffd", "utf-8")


@pytest.mark.parametrize("label", ["windows-1252", "iso-8859-1", "latin1", "ascii"])
@given(text=st.text(st.characters(codec="cp1252"), max_size=200))
def test_what_is_declared_as_windows_1252_is_read_as_that(label: str, text: str) -> None:
    payload = text.encode("cp1252")
    try:
        assume(payload.decode("utf-8").isascii())
    except UnicodeDecodeError:
        assume(
            payload.decode("utf-8", "ignore").isascii() and not payload.startswith((b"\xff\xfe", b"\xfe\xff"))
        )
    assert decode_text(payload, label)[0] == text


@pytest.mark.timeout(10)
def test_spaces_behind_charset_are_passed_over_in_linear_time() -> None:
    page = b"<html>" + (b"<meta " * 80 + b"charset=" + b" " * 3_600)[:4_000] + b">x</html>"
    assert decode_text(page) == (page.decode(), "utf-8")
    assert charset_of("text/html; charset=" + " " * 200_000 + ";") is None


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "piece", [b"\xe9", b"\xe9<", b"\xe9" + b" " * 33, b"\xff\xa1 ", b"\xad\xa1", b"\x1b$B", b"a\0"]
)
@pytest.mark.parametrize("hint", [None, "utf-8", "euc-jp", "gb18030", "hz"])
def test_large_pages_are_read_in_linear_time(piece: bytes, hint: str | None) -> None:
    payload = piece * ((1 << 20) // len(piece))
    assert len(decode_text(payload, hint)[0]) <= len(payload)
