"""The funnel as a picture: its bands are as wide as their documents are many."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pipeline.page.views.corpus import flows


def steps(*rejected: int, num: int = 1000) -> pa.Table:
    """The rows of `steps` of a source in which each stage rejects so many documents."""
    rows, left = [], num
    for position, lost in enumerate(rejected):
        row = {"source": "web", "position": position, "stage": f"stage{position}", "num_in": left}
        left -= lost
        rows.append(row | {"num_out": left, "num_rejected": lost})
    return pa.Table.from_pylist(rows)


def test_the_bands_of_rejected_documents_are_in_proportion_to_their_numbers() -> None:
    [flow] = flows(steps(20, 0, 196, 392))
    few, none, many, twice = (band.width_rejected for band in flow.bands)
    assert none == 0
    assert many / few == pytest.approx(196 / 20) and twice == pytest.approx(2 * many)
    outs = [band.height_out / band.num_out for band in flow.bands]
    assert outs == pytest.approx([outs[0]] * 4)


def test_a_band_of_very_few_documents_is_a_hairline_and_never_as_wide_as_one_of_many() -> None:
    [flow] = flows(steps(2, 196, num=100_000))
    few, many = (band.width_rejected for band in flow.bands)
    assert few == many > 0, "both are less than can be seen"
    [flow] = flows(steps(2, 196))
    few, many = (band.width_rejected for band in flow.bands)
    assert 0 < few < many / 10


def test_a_stage_that_rejects_everything_lets_out_no_band_and_stays_within_its_own_width() -> None:
    [flow] = flows(steps(0, 1000))
    last = flow.bands[-1]
    assert (last.height_out, last.num_out) == (0, 0)
    assert 0.2 * last.width + last.width_rejected < last.width
