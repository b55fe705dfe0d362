"""From a sample to the whole: ratio estimates with intervals by the jackknife, and the curve of repetitions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from scipy import special  # scipy.stats takes a second to import

from pipeline.results.estimates import Estimate

_TAIL: Final = 0.05
_REACH: Final = (10.0, 2.0, 100.0)
"""Of the value and of the upper and lower end of the share that stays."""


def with_interval(
    figure: Callable[[Sequence[int]], float], num_replicates: int, is_all: bool, error: float = 0.0
) -> Estimate:
    """A figure of all replicates, with its interval by the delete-one jackknife on its logarithm and Student's t
    (Wolter 2007, sections 4.2 and 2.5). `figure` takes the numbers of the replicates to use. `is_all`: nothing was
    left unread. `error` is a standard error of the logarithm that no sample shows."""
    # Without a correction for the share that was read: a few long documents make the spread of a small sample too
    # small by about as much (`benchmarks.pricing`).
    everything = range(num_replicates)
    value = figure(everything)
    if value <= 0:
        return Estimate(value=value, low=value, high=value)
    variance = 0.0
    if num_replicates > 1 and not is_all:
        without = [figure([one for one in everything if one != left_out]) for left_out in everything]
        logs = [math.log(max(each, value * 1e-3)) for each in without]
        mean = sum(logs) / num_replicates
        variance = (num_replicates - 1) / num_replicates * sum((log - mean) ** 2 for log in logs)
    spread = float(special.stdtrit(max(num_replicates - 1, 1), 1 - _TAIL)) * math.sqrt(variance)
    spread = math.hypot(spread, float(special.ndtri(1 - _TAIL)) * error)
    return Estimate(value=value, low=value * math.exp(-spread), high=value * math.exp(spread))


def as_share(found: Estimate, num_documents: int) -> Estimate:
    """A share of a sample of so many documents, within 0 and 1. Where all or none of them were in it there is no
    spread, and the bound is that of a binomial count (Clopper and Pearson 1934)."""
    least = _TAIL ** (1 / num_documents)
    return Estimate(
        value=found.value,
        low=min(found.low, least) if found.value >= 1 else found.low,
        high=1 - least if found.value <= 0 else min(found.high, 1.0),
    )


def product(first: Estimate, second: Estimate) -> Estimate:
    """The product of two figures whose errors are independent."""
    if min(first.value, second.value) <= 0:
        return Estimate(value=0.0, low=0.0, high=first.high * second.high)
    value = first.value * second.value

    def bound(name: str, sign: int) -> float:
        logs = [math.log(max(getattr(each, name), 1e-300) / each.value) for each in (first, second)]
        return value * math.exp(sign * math.hypot(*logs))

    return Estimate(value=value, low=bound("low", -1), high=bound("high", 1))


def total(parts: Sequence[Estimate]) -> Estimate:
    """The sum of figures whose errors go together, as those of one sample do."""
    return Estimate(
        value=sum(each.value for each in parts),
        low=sum(each.low for each in parts),
        high=sum(each.high for each in parts),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """What comparing a sample found: of `num_documents` in `num_cells` cells, the texts that stand in one cell, and
    in two (`num_once`, `num_twice`); `num_texts` are all that are distinct."""

    num_documents: int
    num_cells: int
    num_texts: int
    num_once: int
    num_twice: int


def kept_share(seen: Repetition, num_cells: int) -> Estimate:
    """The share of documents that stays when all `num_cells` cells are compared.

    Up to a multiple of the sample by the incidences in one and in two cells (Chao and Jost 2012, "Coverage-based
    rarefaction and extrapolation", equation 9, with the estimator Chao2), from there on by Heaps' law with the slope
    that the curve has there. The first foresees texts that stand twice, and sees no more new ones too soon; how far it
    holds is not known. So the value switches at ten times the sample, the interval's ends at twice and at a hundred
    times; they have the bounds of the number of texts in two cells, a Poisson count: with none, three are possible."""
    if not seen.num_documents:
        return Estimate(value=1.0, low=1.0, high=1.0)
    if num_cells <= seen.num_cells:
        value = seen.num_texts / seen.num_documents
        return Estimate(value=value, low=value, high=value)
    # The exact bounds of a Poisson mean (Garwood 1936).
    low_twice = float(special.gammaincinv(seen.num_twice, _TAIL)) if seen.num_twice else 0.0
    high_twice = float(special.gammaincinv(seen.num_twice + 1, 1 - _TAIL))
    value, high, low = (
        _share(seen, num_cells, twice, reach)
        for twice, reach in zip((seen.num_twice, low_twice, high_twice), _REACH, strict=True)
    )
    in_pairs = _share_in_pairs(seen, num_cells, high_twice)
    return Estimate(value=value, low=min(low, value, in_pairs), high=max(high, value))


def _share_in_pairs(seen: Repetition, num_cells: int, num_twice: float) -> float:
    """The share if no text stands more than twice: exact then, and below every other law; 1 where it would be
    nothing."""
    times = num_cells / seen.num_cells
    texts = seen.num_texts * times - num_twice * times * (times - 1)
    return texts / (seen.num_documents * times) if texts > 0 and times <= _REACH[0] else 1.0


def _share(seen: Repetition, num_cells: int, num_twice: float, most_times: float) -> float:
    """The share with so many texts in two cells, and Heaps' law from so many times the sample on."""
    times = num_cells / seen.num_cells
    alone = seen.num_texts / seen.num_documents
    if not num_twice or seen.num_cells < 2 or not seen.num_once:
        return alone
    # Texts that were not seen (Chao2), and how many of them the cells up to twice as many show.
    num_unseen = (seen.num_cells - 1) / seen.num_cells * seen.num_once**2 / (2 * num_twice)
    rate = min(seen.num_once / (seen.num_cells * num_unseen + seen.num_once), 1 - 1e-9)

    def texts(more_cells: float) -> float:
        return seen.num_texts + num_unseen * -math.expm1(more_cells * math.log1p(-rate))

    reach = min(times, most_times)
    found = texts((reach - 1) * seen.num_cells)
    share = found / (seen.num_documents * reach)
    if times > reach:
        left = num_unseen * math.exp((reach - 1) * seen.num_cells * math.log1p(-rate))
        slope = left * -math.log1p(-rate) * reach * seen.num_cells / found
        share *= (times / reach) ** (slope - 1)
    return min(share, alone)
