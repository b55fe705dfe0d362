"""Ids and URLs are read out of what people write: mails, lists, sentences."""

from __future__ import annotations

import pytest

from pipeline.page.views.written import read_written, several_names

ID = "0123456789abcdef0123456789abcdef"
MAIL = f"""Dear Sir or Madam,

please take down:
- https://web9.example.org/12/page-1769/,
  * <https://web9.example.org/12/page-1770>
> 3. "https://web9.example.org/a_(b)".
(see https://web9.example.org/c, and https://web9.example.org/d!)
web9.example.org/e;
{ID.upper()}.

Kind regards,
J. Smith
legal@web9.example.org
"""


def values(text: str) -> list[str]:
    return [name.value for name in read_written(text).names]


def test_the_names_of_a_mail_are_read_and_its_other_lines_told() -> None:
    written = read_written(MAIL)
    site = "https://web9.example.org"
    assert [name.value for name in written.names] == [
        f"{site}/12/page-1769/",
        f"{site}/12/page-1770",
        f"{site}/a_(b)",
        f"{site}/c",
        f"{site}/d",
        "web9.example.org/e",
        ID,
    ]
    assert [name.kind for name in written.names] == ["url"] * 6 + ["doc"]
    assert written.names[0].written == f"{site}/12/page-1769/,", "as it stands in the mail"
    assert written.without == (
        "Dear Sir or Madam,",
        "please take down:",
        "Kind regards,",
        "J. Smith",
        "legal@web9.example.org",
    )


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[here](https://a.example.org/x)", ["https://a.example.org/x"]),
        ("**https://a.example.org/x**", ["https://a.example.org/x"]),
        ("https://a.example.org/x,https://a.example.org/y", ["https://a.example.org/x", "https://a.example.org/y"]),
        ("https://a.example.org/x\r\nhttps://a.example.org/x", ["https://a.example.org/x"]),
        (
            "https://web.archive.org/web/2020/https://a.example.org/x",
            ["https://web.archive.org/web/2020/https://a.example.org/x"],
        ),
        ("https://a.example.org/?a=1,2;b=(3)", ["https://a.example.org/?a=1,2;b=(3)"]),
        (f"https://a.example.org/{ID}", [f"https://a.example.org/{ID}"]),
        (f"{ID}0", []),
        (f"ids: {ID},{ID[::-1]}", [ID, ID[::-1]]),
        ("1) www.example.org/x", ["www.example.org/x"]),
        ("«example.org/x»", ["example.org/x"]),
        ("urn:uuid:8", ["urn:uuid:8"]),
        ("see example.org/x please", []),
        ("a.pdf", []),
        ("-", []),
        ("", []),
    ],
)  # fmt: skip
def test_what_stands_around_a_name_is_left_out(text: str, wanted: list[str]) -> None:
    assert values(text) == wanted


def test_a_url_that_ends_with_a_full_stop_can_be_meant_as_it_stands() -> None:
    (name,) = read_written("- https://a.example.org/wiki/Apple_Inc.").names
    assert name.value == "https://a.example.org/wiki/Apple_Inc"
    assert name.longer == ("https://a.example.org/wiki/Apple_Inc.",)
    (name,) = read_written("> https://a.example.org/x y").names
    assert name.value == "https://a.example.org/x" and name.longer == ("https://a.example.org/x y",)
    (name,) = read_written("b.example.org# is https://a.example.org/x").names
    assert name.longer == (), "a line that begins otherwise is another page's name"


def test_a_bracket_that_encloses_a_url_is_not_what_was_written() -> None:
    written = "(https://a.example.org/), [https://b.example.org/x_(y)]. see (or https://c.example.org/z)"
    names = read_written(written).names
    shown = [(name.value, name.written) for name in names]
    assert shown == [
        ("https://a.example.org/", "https://a.example.org/"),
        ("https://b.example.org/x_(y)", "https://b.example.org/x_(y)"),
        ("https://c.example.org/z", "https://c.example.org/z)"),
    ]


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (f"https://a.example.org/x {ID}", ["https://a.example.org/x", ID]),
        ("> a.example.org/x, > https://b.example.org/y", ["a.example.org/x", "https://b.example.org/y"]),
        ("look at https://a.example.org/x and example.org", None),
        ("example.org example.com", None),
        ("and/or a.b", None),
    ],
)  # fmt: skip
def test_several_names_are_looked_for_at_once(wanted: str, names: list[str] | None) -> None:
    several = several_names(wanted)
    assert (several and [name.value for name in several.names]) == names
