"""Which charset a page is read by."""

from __future__ import annotations

import pytest
import webencodings
from hypothesis import given
from hypothesis import strategies as st

from stages.reading.charset import decode_text, known_charset
from stages.reading.headers import charset_of

POLISH = "Zażółć gęślą jaźń. Pchnąć w tę łódź jeża lub ośm skrzyń fig. "
RUSSIAN = "Съешь же ещё этих мягких французских булок, да выпей чаю. "


@pytest.mark.parametrize(
    ("payload", "hint", "text", "charset"),
    [
        (b"plain", None, "plain", "utf-8"),
        (b"", None, "", "utf-8"),
        ("é".encode("cp1252"), "ISO-8859-1", "é", "cp1252"),
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
        (b'<?xml version="1.0" encoding="ISO-8859-2"?>' + POLISH.encode("iso8859-2"), None, POLISH, "iso8859_2"),
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
    ],
)
def test_the_charset_that_is_used(payload: bytes, hint: str | None, text: str, charset: str) -> None:
    decoded, used = decode_text(payload, hint)
    assert decoded.endswith(text)
    assert used == charset


def test_a_meta_element_counts_only_in_html() -> None:
    payload = b'<meta charset="windows-1251"> ' + "é".encode()
    assert decode_text(payload, is_html=False)[1] == "utf-8"
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
    assert decode_text(head + "é".encode())[1] == charset


@pytest.mark.parametrize(
    "piece", [b"<meta ", b"<!", b"<!--", b"<a b=", b"<a '", b"charset=", b"<meta a=' ", b"/", b"<"]
)
@given(data=st.data())
def test_any_head_of_a_page_is_read(piece: bytes, data: st.DataObject) -> None:
    pieces = st.sampled_from([piece, b"<meta ", b"charset=utf-8", b">", b'"', b"'", b"=", b"--", b" ", b"x"])
    text, _ = decode_text(b"".join(data.draw(st.lists(pieces, max_size=40))))
    assert text.isascii()


@pytest.mark.parametrize(("label", "name"), sorted(webencodings.LABELS.items()))
def test_every_label_of_the_web_is_known(label: str, name: str) -> None:
    codec = known_charset(label)
    assert codec == known_charset(name)
    # Bytes of the charsets that browsers replace with one U+FFFD are read by what a detector finds.
    assert (codec is None) == (name == "replacement")


NAMES = ("utf-8", "utf-16", "gb2312", "shift_jis", "iso-2022-jp", "big5", "windows-1252", "euc-kr", "idna", "zlib")


@given(payload=st.binary(max_size=300), hint=st.one_of(st.none(), st.text(max_size=20), st.sampled_from(NAMES)))
def test_any_bytes_with_any_hint_give_a_text(payload: bytes, hint: str | None) -> None:
    text, used = decode_text(payload, hint)
    assert known_charset(used) == used
    text.encode("utf-8")


@given(text=st.text(st.characters(codec="utf-8"), max_size=200))
def test_utf8_without_a_mark_survives(text: str) -> None:
    assert decode_text(text.encode(), "utf-8")[0] == text.removeprefix("\ufeff")


@pytest.mark.timeout(10)
def test_spaces_behind_charset_are_passed_over_in_linear_time() -> None:
    page = b"<html>" + (b"<meta " * 80 + b"charset=" + b" " * 3_600)[:4_000] + b">x</html>"
    assert decode_text(page) == (page.decode(), "utf-8")
    assert charset_of("text/html; charset=" + " " * 200_000 + ";") is None
