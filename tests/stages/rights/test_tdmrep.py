"""The TDM Reservation Protocol: the report's own examples, protocol errors, and which technique supersedes which."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.rights.decide import meaning_of_kind
from stages.rights.page import header_signals, html_signals
from stages.rights.signal import Signal
from stages.rights.tdmrep import read_tdmrep, tdm_signal

# "Examples" of the section "TDM File on the Origin Server".
WHOLE_SITE = '[{"location": "/", "tdm-reservation": 1}]'
THREE_GROUPS = """[
  {"location": "/directory-a/", "tdm-reservation": 1},
  {"location": "/directory-b/html/", "tdm-reservation": 1, "tdm-policy":"https://provider.com/policies/policy.json"},
  {"location": "/directory-b/images/*.jpg", "tdm-reservation": 0}
]"""
HTML = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">
<meta name="tdm-reservation" content="1">
<meta name="tdm-policy" content="https://provider.com/policies/policy.json">
<title>Document title</title></head><body></body></html>"""


def of_file(text: str, path: str) -> Signal | None:
    rules = read_tdmrep(text)
    assert rules is not None
    return tdm_signal(rules, path)


def test_the_reports_example_of_a_file_for_a_whole_site() -> None:
    assert of_file(WHOLE_SITE, "/any/path?q") == Signal("tdmrep", "tdmrep.json", "1", "denied")


def test_the_reports_example_of_three_groups() -> None:
    found = [
        of_file(THREE_GROUPS, path)
        for path in (
            "/directory-a/x.pdf",
            "/directory-b/html/p",
            "/directory-b/images/i.jpg",
            "/directory-b/images/i.png",
        )
    ]
    assert [signal and (signal.value, signal.meaning) for signal in found] == [
        ("1", "denied"),
        ("1 https://provider.com/policies/policy.json", "denied"),
        ("0", "allowed"),
        None,
    ]


def test_the_reports_example_of_html() -> None:
    (signal,) = html_signals(HTML, ())
    assert signal == Signal("tdmrep", "html", "1 https://provider.com/policies/policy.json", "denied")


def test_the_reports_example_of_headers() -> None:
    headers = (("tdm-reservation", "1"), ("tdm-policy", "https://provider.com/policies/policy.json"))
    assert list(header_signals(headers, ())) == [
        Signal("tdmrep", "header", "1 https://provider.com/policies/policy.json", "denied")
    ]


def test_the_first_location_in_sequence_that_matches_counts_not_the_longest() -> None:
    text = '[{"location": "/", "tdm-reservation": 0}, {"location": "/private/", "tdm-reservation": 1}]'
    signal = of_file(text, "/private/x")
    assert signal is not None and signal.meaning == "allowed"


def test_matching_is_case_sensitive() -> None:
    assert of_file('[{"location": "/Private", "tdm-reservation": 1}]', "/private") is None


@pytest.mark.parametrize("value", ["2", "-1", "true", "null", '"yes"', '""', "1.0", "[1]", "{}", "11"])
def test_another_value_is_a_protocol_error(value: str) -> None:
    text = f'[{{"location": "/", "tdm-reservation": {value}}}]'
    signal = of_file(text, "/x")
    assert signal is None or signal.meaning == "malformed"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        '{"location": "/", "tdm-reservation": 1}',
        "[",
        "1",
        "<html>",
        "[" * 100_000,
        '"[]"',
        "[{}",
        "[1,]",
    ],
)
def test_a_file_that_is_no_json_array_is_none(text: str) -> None:
    assert read_tdmrep(text) is None


@pytest.mark.parametrize(
    "entry",
    [
        "1",
        "null",
        "[]",
        "{}",
        '{"location": "/"}',
        '{"tdm-reservation": 1}',
        '{"location": 1, "tdm-reservation": 1}',
    ],
)
def test_an_entry_without_location_or_reservation_is_left_out(entry: str) -> None:
    assert read_tdmrep(f"[{entry}]") == ()


def signals_of(file: str | None, header: str | None, meta: str | None) -> list[Signal]:
    found = []
    if file is not None:
        signal = of_file(json.dumps([{"location": "/", "tdm-reservation": file}]), "/")
        found += [] if signal is None else [signal]
    if header is not None:
        found += header_signals((("tdm-reservation", header),), ())
    if meta is not None:
        found += html_signals(f'<meta name="tdm-reservation" content="{meta}">', ())
    return found


_VALUE = st.sampled_from([None, "0", "1", "2", "x"])


@given(_VALUE, _VALUE, _VALUE)
def test_html_supersedes_the_header_and_that_the_file_and_what_is_unset_resets_nothing(
    file: str | None, header: str | None, meta: str | None
) -> None:
    value = next((value for value in (meta, header, file) if value in ("0", "1")), None)
    expected = {"0": "allowed", "1": "denied", None: "unknown"}[value]
    assert meaning_of_kind("tdmrep", signals_of(file, header, meta)) == expected
