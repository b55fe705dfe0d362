"""Which variants of a real page each way of `dedup.normalise` finds again, beside datatrove, and what it
costs.

usage: python -m benchmarks.near_duplicates CRAWL_DIR [--each 24] [--schemes] (--help for all)

Variants are planted: of each kind, of as many English pages, none of which is used twice. A pair is found
where both texts share one of 14 bands of 8 values and, in the columns of a threshold, their Jaccard reaches
it. datatrove signs with its own normalisation and spaCy's words, and cuts by bands alone.

Then all pairs of whole pages, and of paragraphs of at least 25 words, are compared by brute force: at or
above .8 by each way, and what comes or goes beside `none`. `--show` prints the pairs that come or go, to be
read. The last lines are processor time a page: signing and normalising.

With --schemes only the schemes of the named recipes are compared: the chance that a pair shares a band by
theory, and what each finds of the pairs that stand in the crawl's paragraphs by nature."""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, get_args

from resiliparse.extract.html2text import extract_plain_text

from benchmarks.support.texts import english, extracted, pages_of
from lineage.recipe import parse_table
from pipeline.recipe_help.named import template
from stages.dedup.bands import bands_of
from stages.dedup.minhash import Signer
from stages.dedup.normalise import normalised
from stages.dedup.options import DedupTable, Normalise
from stages.dedup.shingles import jaccard, shingles

LEAST_WORDS: Final = 120
PARAGRAPH_WORDS: Final = 25
THRESHOLD: Final = 0.8
COMMON_IN: Final = 80
"""A shingle of more texts than this proposes no pair to the brute force: boilerplate of one site in every
page."""
WAYS: Final[tuple[Normalise, ...]] = get_args(Normalise)


def _other_quotes(text: str) -> str:
    """Straight quotes and dashes where there are typographic ones, and the other way round."""
    if any(char in text for char in "\u2018\u2019\u201c\u201d\u2013\u2014"):
        return text.translate(str.maketrans("\u2018\u2019\u201c\u201d\u2013\u2014", "''\"\"--"))
    text = re.sub(r'"([^"]*)"', "\u201c\\1\u201d", text)
    return text.replace("'", "\u2019").replace(" - ", " \u2013 ")


def _other_digits(text: str) -> str:
    return re.sub(r"[0-9]", lambda digit: str((int(digit[0]) + 3) % 10), text)


def _appended(text: str) -> str:
    words = text.split()
    return text + "\n" + " ".join(f"{word}x" for word in words[: max(1, len(words) * 8 // 100)])


KINDS: Final[dict[str, Callable[[str], str]]] = {
    "lower case": str.lower,
    "upper case": str.upper,
    "commas and colons gone": lambda text: re.sub("[,:]", "", text),
    "other quotes and dashes": _other_quotes,
    "other digits": _other_digits,
    "bullets before lines": lambda text: re.sub(r"(?m)^(?=.)", "- ", text),
    "8% appended": _appended,
}


def planted(texts: Sequence[str], each: int) -> dict[str, list[tuple[str, str]]]:
    """Pairs of a text and its variant, by kind; texts that a kind leaves as they are are passed over."""
    left = list(texts)
    pairs: dict[str, list[tuple[str, str]]] = {}
    for kind, change in KINDS.items():
        chosen = [text for text in left if change(text) != text][:each]
        pairs[kind] = [(text, change(text)) for text in chosen]
        left = [text for text in left if text not in chosen]
    return pairs


def by_datatrove() -> Callable[[str, str], bool]:
    """Whether datatrove's MinHash stages put two texts into one bucket."""
    from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature
    from datatrove.utils.hashing import HashConfig

    hashes = HashConfig(precision=64, hash_fc="sha1")  # its xxhash call needs an older xxhash
    config = MinhashConfig(n_grams=5, num_buckets=14, hashes_per_bucket=8, hash_config=hashes)
    signer: Any = MinhashDedupSignature("unused", config)

    def found(left: str, right: str) -> bool:
        signatures = [signer.get_signature(signer.get_shingles(text)) for text in (left, right)]
        return any(list(one) == list(other) for one, other in zip(*signatures, strict=True))

    return found


def by_us(way: Normalise, threshold: float | None) -> Callable[[str, str], bool]:
    """Whether two texts are near as a run decides it; without a threshold by their bands alone."""
    table = DedupTable(num_perm=112, bands=14, rows=8, normalise=way)
    signer = Signer(table)

    def found(left: str, right: str) -> bool:
        signatures = [signer.signature(text) for text in (left, right)]
        bands = [bands_of(signature, table) for signature in signatures if signature is not None]
        share_band = len(bands) == 2 and any(one == other for one, other in zip(*bands, strict=True))
        return share_band and (
            threshold is None or jaccard(shingles(left, table), shingles(right, table)) >= threshold
        )

    return found


def resembling(texts: Sequence[str], table: DedupTable) -> dict[tuple[int, int], float]:
    """Every pair of Jaccard .3 and more, by brute force over an index of shingles."""
    sets = [shingles(text, table) for text in texts]
    holders: dict[int, list[int]] = defaultdict(list)
    for number, own in enumerate(sets):
        for shingle in own.tolist():
            holders[shingle].append(number)
    shared: Counter[tuple[int, int]] = Counter()
    for numbers in holders.values():
        if len(numbers) <= COMMON_IN:
            shared.update((one, other) for at, one in enumerate(numbers) for other in numbers[at + 1 :])
    likely = (
        pair for pair, num in shared.items() if num >= 0.2 * max(len(sets[pair[0]]), len(sets[pair[1]]))
    )
    return {pair: found for pair in likely if (found := jaccard(sets[pair[0]], sets[pair[1]])) >= 0.3}


def print_natural_pairs(what: str, texts: Sequence[str], show: bool) -> None:
    """How many pairs each way takes for near-duplicates, and what comes and goes beside `none`."""
    print(f"{len(texts):,} {what}, all pairs, Jaccard of {THRESHOLD} and more:")
    plain: dict[tuple[int, int], float] = {}
    for way in WAYS:
        found = resembling(texts, DedupTable(normalise=way))
        plain = plain or found
        near, near_plain = ({p for p, value in of.items() if value >= THRESHOLD} for of in (found, plain))
        table, come = DedupTable(normalise=way), near - near_plain
        spelled = [[shingles(_spelled(texts[number]), table) for number in pair] for pair in sorted(come)]
        by_numbers = sum(jaccard(*sets) < THRESHOLD for sets in spelled)
        print(
            f"  {way:12}{len(near):6} pairs, {len(come)} come, {by_numbers} of them for numbers are alike;",
            end="",
        )
        print(f" {len(near_plain - near)} go")
        for one, other in sorted(near ^ near_plain) if show else ():
            change = f"{plain.get((one, other), 0):.3f} -> {found.get((one, other), 0):.3f}"
            print(f"    {change}\n      {texts[one][:300]!r}\n      {texts[other][:300]!r}")


def _spelled(text: str) -> str:
    """Digits as letters, which no way makes alike."""
    return re.sub(r"[0-9]", lambda digit: "abcdefghij"[int(digit[0])], text)


def print_variants(pairs: dict[str, list[tuple[str, str]]]) -> None:
    """The planted pairs that each way finds."""
    ways: dict[str, Callable[[str, str], bool]] = {}
    for way in WAYS:
        ways |= {f"{way} .75": by_us(way, 0.75), f"{way} bands": by_us(way, None)}
    ways["datatrove"] = by_datatrove()
    print(f"{'variants found':28}{'planted':>10}" + "".join(f"{name:>18}" for name in ways))
    rows = {
        kind: [sum(way(*pair) for pair in of_kind) for way in ways.values()]
        for kind, of_kind in pairs.items()
    }
    rows["together"] = [sum(column) for column in zip(*rows.values(), strict=True)]
    for kind, counts in rows.items():
        planned = len(pairs[kind]) if kind in pairs else sum(map(len, pairs.values()))
        print(f"{kind:28}{planned:10}" + "".join(f"{count:18}" for count in counts))


AT: Final = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
"""The similarities that the curve of a scheme is given at."""


def named_schemes() -> dict[str, DedupTable]:
    """[dedup] of each named recipe that compares texts, and of Nemotron-CC, whose keys a recipe gives."""
    tables = {
        name: parse_table(DedupTable, template(name).tables["dedup"])
        for name in ("fineweb", "fineweb2", "dclm", "dolma3", "code", "text")
    }
    return tables | {
        "nemotron-cc": DedupTable(
            shingle_unit="character", shingle=24, num_perm=260, bands=20, rows=13, verify=False
        )
    }


def found_by_theory(similarity: float, table: DedupTable) -> float:
    """The chance that a pair of this similarity shares a band: 1 - (1 - s^rows)^bands (Leskovec, Rajaraman
    and Ullman, Mining of Massive Datasets, section 3.4.2)."""
    return float(1 - (1 - similarity**table.rows) ** table.bands)


def print_schemes(texts: Sequence[str]) -> None:
    """What each scheme finds of the pairs that stand in the texts by nature, beside what theory expects of
    just these pairs; the curve of each."""
    heads = "".join(f"{similarity:>7}" for similarity in AT)
    print(f"{'scheme':13}{'bands':>6}{'rows':>5}{'shingle':>14}{'normalise':>11}{'verify':>7}{heads}")
    schemes = named_schemes()
    for name, table in schemes.items():
        curve = "".join(f"{found_by_theory(similarity, table):7.3f}" for similarity in AT)
        shingle = f"{table.shingle} {table.shingle_unit}"
        verify = table.threshold if table.verify else "-"
        print(f"{name:13}{table.bands:6}{table.rows:5}{shingle:>14}{table.normalise:>11}{verify:>7}{curve}")
    print(f"{len(texts):,} texts, all pairs of Jaccard .3 and more by brute force:")
    for name, table in schemes.items():
        pairs = resembling(texts, table)
        signer = Signer(table)
        bands = {
            number: _bands(signer, texts[number], table) for number in {n for pair in pairs for n in pair}
        }
        found = {pair for pair in pairs if bands[pair[0]] & bands[pair[1]]}
        expected = sum(found_by_theory(value, table) for value in pairs.values())
        spread = sum(p * (1 - p) for p in (found_by_theory(value, table) for value in pairs.values())) ** 0.5
        near = {pair for pair, value in pairs.items() if value >= THRESHOLD}
        print(
            f"  {name:13}{len(pairs):5} pairs, {len(found)} share a band, {expected:.1f} ± {spread:.1f} expected;"
            f" {len(near)} of {THRESHOLD} and more, {len(near & found)} of them share a band"
        )


def _bands(signer: Signer, text: str, table: DedupTable) -> frozenset[tuple[int, bytes]]:
    """Each band with its number."""
    signature = signer.signature(text)
    if signature is None:
        return frozenset()
    return frozenset((number, repr(band).encode()) for number, band in enumerate(bands_of(signature, table)))


def print_costs(texts: Sequence[str]) -> None:
    """Milliseconds of processor time a page."""
    signer = Signer(DedupTable(normalise="none"))
    work: dict[str, Callable[[str], object]] = {"signing, none": signer.signature}
    for way in WAYS[1:]:
        work[f"normalising, {way}"] = lambda text, way=way: normalised(text, way)  # type: ignore[misc]
    for name, act in work.items():
        spent = min(_seconds(act, texts) for _ in range(3))
        mean = sum(map(len, texts)) // len(texts)
        print(f"  {name:24}{1000 * spent / len(texts):8.3f} ms a page of {mean:,} characters")


def _seconds(act: Callable[[str], object], texts: Iterable[str]) -> float:
    begun = time.process_time()
    for text in texts:
        act(text)
    return time.process_time() - begun


def _paragraphs(pages: Iterable[str]) -> list[str]:
    """The different lines of pages that have as many words as a paragraph has."""
    lines = (
        line.strip()
        for html in pages
        for line in str(extract_plain_text(html, main_content=False)).split("\n")
    )
    return list(dict.fromkeys(line for line in lines if len(line.split()) >= PARAGRAPH_WORDS))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("crawl", type=Path)
    parser.add_argument("--each", type=int, default=24, help="pages of each kind of variant")
    parser.add_argument("--pages", type=int, default=10_000)
    parser.add_argument("--schemes", action="store_true", help="the named recipes' schemes and nothing else")
    parser.add_argument("--show", action="store_true", help="print the natural pairs that come and go")
    options = parser.parse_args()
    pages = [html for path in sorted(options.crawl.glob("*.warc.gz")) for html in pages_of(path)][
        : options.pages
    ]
    if options.schemes:
        print_schemes(_paragraphs(pages))
        return
    texts = [text for text in extracted(options.crawl, "trafilatura", options.pages) if text]
    print_variants(
        planted([text for text in english(texts) if len(text.split()) >= LEAST_WORDS], options.each)
    )
    print_natural_pairs("whole pages", texts, options.show)
    print_natural_pairs(f"paragraphs of {PARAGRAPH_WORDS} words and more", _paragraphs(pages), options.show)
    print_costs(texts)


if __name__ == "__main__":
    main()
