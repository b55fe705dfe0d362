"""Recall and false finds on 300 labelled lines; and that the lines are what they claim to be."""

from __future__ import annotations

import pytest

from benchmarks.pii import LABELLED, Judged, judge, read_lines
from stages.pii.options import KINDS

NUM_LINES = 150
MOST_FALSE = 3
LEAST_RECALL = {
    "email": 1.0,
    "phone": 0.96,
    "ip": 0.95,
    "credit_card": 0.9,
    "iban": 1.0,
    "us_ssn": 1.0,
    "secret": 0.975,
}


@pytest.fixture(scope="module")
def judged() -> Judged:
    return judge(read_lines(LABELLED))


def test_half_of_the_lines_hold_personal_data_of_every_kind(judged: Judged) -> None:
    lines = judged.num_lines
    assert sum(num for (_, is_personal), num in lines.items() if is_personal) == NUM_LINES
    assert sum(num for (_, is_personal), num in lines.items() if not is_personal) == NUM_LINES
    assert {kind for kind, _ in lines} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_lines_of_a_kind_are_found(judged: Judged, kind: str) -> None:
    missed = [(line.about, left) for line, left in judged.wrong if line.is_personal and line.kind == kind]
    assert judged.recall(kind) >= LEAST_RECALL[kind], missed


def test_hardly_a_line_without_personal_data_is_taken_for_one_that_has_some(judged: Judged) -> None:
    assert judged.num_false <= MOST_FALSE, [
        (line.text, left) for line, left in judged.wrong if not line.is_personal
    ]
