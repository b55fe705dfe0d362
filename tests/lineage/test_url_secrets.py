"""What of a URL may be written down."""

from __future__ import annotations

import pytest

from lineage.recipe import RecipeError
from lineage.secrets import recordable, redacted, without_secrets
from lineage.storage.folder import with_environment

SIGNED = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIA%2F2026&X-Amz-Date=20260101T000000Z&X-Amz-Expires=60"


@pytest.mark.parametrize(
    ("url", "recorded"),
    [
        ("https://user:pass@host.example/a.warc.gz", "https://host.example/a.warc.gz"),
        ("https://user:p@ss@host.example/a", "https://host.example/a"),
        ("https://user:pa/ss@host.example/a", "https://host.example/a"),
        ("https://token@host.example:8443/a", "https://host.example:8443/a"),
        (f"https://host.example/a?{SIGNED}&X-Amz-SignedHeaders=host&X-Amz-Signature=ab12", "https://host.example/a"),
        ("https://h.example/a?AWSAccessKeyId=AK&Signature=x%3D&Expires=17", "https://h.example/a"),
        ("https://h.example/a?Policy=p&Key-Pair-Id=K&Signature=s&part=2", "https://h.example/a?part=2"),
        ("https://b.example/c/a?sv=2022&ss=b&se=2026-01-01&sr=b&sp=r&sig=abc%3D", "https://b.example/c/a"),
        ("https://h.example/a?X-Goog-Algorithm=G&X-Goog-Signature=s", "https://h.example/a"),
        ("https://h.example/a?file=1&access_token=t&lang=en", "https://h.example/a?file=1&lang=en"),
        ("https://h.example/a?API%5Fkey=k", "https://h.example/a"),
        ("https://h.example/a?my_secret=k&client_secret=x#access_token=y", "https://h.example/a"),
        ("https://${USER}:${PASS}@h.example/a?${QUERY}&t=${T}&page=3", "https://h.example/a?page=3"),
        ("s3://key:secret@bucket/a", "s3://bucket/a"),
    ],
)  # fmt: skip
def test_credentials_are_taken_out_of_a_url(url: str, recorded: str) -> None:
    assert without_secrets(url) == recorded
    assert without_secrets(recorded) == recorded
    assert redacted(f"GET {url}: it failed") == f"GET {recorded}: it failed"


@pytest.mark.parametrize(
    "text",
    [
        "/data/crawl/*.warc.gz", "s3://bucket/a?b*/[cd].gz", "https://h.example:8080/a?page=2&se=1&expires=9#top",
        "https://h.example/@user/a", "https://[::1]:80/a@b", "trafilatura", "no url: token=5", "module:function",
        "https://h.example/get?monkey=1&tokens=3&keyword=x",
    ],
)  # fmt: skip
def test_all_else_stays_as_it_is(text: str) -> None:
    assert without_secrets(text) == text
    assert redacted(text) == text


def test_a_query_that_stands_without_its_host_is_redacted_too() -> None:
    told = "Max retries exceeded with url: /a?X-Amz-Signature=ab12&part=2&token=xyz (Caused by …)"
    assert (
        redacted(told) == "Max retries exceeded with url: /a?X-Amz-Signature=…&part=2&token=… (Caused by …)"
    )


def test_plain_values_are_recorded_without_credentials() -> None:
    plain = {
        "source": [{"inputs": ["https://u:p@h.example/a", "/b"], "limit": 3}],
        "x": {"https://u:p@h.example": 1.5},
    }
    assert recordable(plain) == {
        "source": [{"inputs": ["https://h.example/a", "/b"], "limit": 3}],
        "x": {"https://h.example": 1.5},
    }


def test_credentials_may_come_from_the_environment() -> None:
    environment = {"SLUICE_SECRET_A": "user:p%40ss", "SLUICE_SECRET_B": "X-Amz-Signature=1&a=b", "T": "t"}
    assert with_environment("https://${SLUICE_SECRET_A}@h.example/a?${SLUICE_SECRET_B}", environment) == (
        "https://user:p%40ss@h.example/a?X-Amz-Signature=1&a=b"
    )
    assert with_environment("https://h.example/a?page=2&key=${SLUICE_SECRET_A}", environment) == (
        "https://h.example/a?page=2&key=user:p%40ss"
    )
    assert with_environment("/data/${T}/*.gz", environment) == "/data/${T}/*.gz"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://${SLUICE_SECRET_X}@h.example/a", "the variable SLUICE_SECRET_X is not set"),
        ("https://h.example/a?send=${T}", "'T': expected a variable whose name begins with SLUICE_SECRET_"),
        ("https://h.example/${T}/a", "can stand for credentials only"),
        ("https://${T}/a", "can stand for credentials only"),
    ],
)
def test_a_variable_that_cannot_be_filled_in_is_refused(url: str, why: str) -> None:
    with pytest.raises(RecipeError, match=why):
        with_environment(url, {"T": "t"})
