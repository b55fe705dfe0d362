"""Credentials in URLs are told from references to them."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from lineage.secrets import holds_secrets, without_secrets

NAMES = st.from_regex(r"[A-Z][A-Z0-9_]{0,8}", fullmatch=True).map(
    lambda name: "${SLUICE_SECRET_" + name + "}"
)
WORDS = st.from_regex(r"[a-z0-9]{1,6}", fullmatch=True)
PLAIN = st.builds("page={}".format, WORDS)
REFERRING = st.one_of(NAMES, st.builds("token={}".format, NAMES))
LITERAL = st.one_of(st.builds("token={}".format, WORDS), st.builds("X-Amz-Signature={}".format, WORDS))
USERS = st.one_of(st.just(""), st.builds("{}@".format, NAMES), st.builds("{}:{}@".format, WORDS, NAMES))


def url(user: str, parameters: list[str]) -> str:
    return f"https://{user}host/a.gz" + ("?" + "&".join(parameters) if parameters else "")


@given(USERS, st.lists(st.one_of(PLAIN, REFERRING), max_size=3))
def test_references_and_plain_parameters_are_no_credentials(user: str, parameters: list[str]) -> None:
    assert not holds_secrets(url(user, parameters))


@given(USERS, st.lists(st.one_of(PLAIN, REFERRING), max_size=2), LITERAL)
def test_one_literal_parameter_among_references_is_seen(
    user: str, parameters: list[str], literal: str
) -> None:
    assert holds_secrets(url(user, [*parameters, literal]))


@given(st.one_of(WORDS, st.builds("{}:{}".format, WORDS, WORDS), st.builds("{}{}".format, NAMES, WORDS)))
@example("me:p/w")
def test_a_literal_user_part_is_seen(user: str) -> None:
    assert holds_secrets(url(f"{user}@", []))


@given(st.text(max_size=30))
def test_what_holds_no_credentials_is_recorded_as_it_is_but_for_references(text: str) -> None:
    if not holds_secrets(text) and "${" not in text:
        assert without_secrets(text) == text


def test_empty_marks_of_a_url_without_credentials_are_left() -> None:
    for url in ("s3://bucket/a?", "s3://bucket/a?#b", "https://host/a#", "https://host/a?b#"):
        assert without_secrets(url) == url
        assert not holds_secrets(url)
