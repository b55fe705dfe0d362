"""Shingles and signatures: equal to datasketch where promised, and estimating Jaccard without bias."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from datasketch import MinHash
from fastwarc.warc import ArchiveIterator, WarcRecordType
from hypothesis import given
from hypothesis import strategies as st
from resiliparse.extract.html2text import extract_plain_text

from lineage.recipe import RecipeError, parse_table
from stages.dedup.bands import unpack_signatures
from stages.dedup.minhash import Signer, estimate_floor, scheme_name
from stages.dedup.options import DedupTable
from stages.dedup.shingles import jaccard, mix, shingle_hashes, shingle_strings, shingles, words

SCHEMES = ("fast", "datasketch")


def by_datasketch(text: str, table: DedupTable) -> bytes:
    """The signature that datasketch's default makes of our shingles."""
    peer = MinHash(table.num_perm)
    peer.update_batch(shingle_strings(text, table))
    return peer.hashvalues.astype("<u4").tobytes()


def made_text(seed: int, num_words: int) -> str:
    chosen = random.Random(seed)
    return " ".join(
        chosen.choice(("alpha", "Beta.", "γάμμα", "δ", "e-f")) + str(chosen.randrange(99))
        for _ in range(num_words)
    )


@pytest.mark.parametrize("num_words", [1, 4, 5, 6, 511, 516, 517, 1100])
@pytest.mark.parametrize(("num_perm", "shingle"), [(128, 5), (112, 13), (1, 1)])
def test_the_datasketch_scheme_equals_datasketch(num_words: int, num_perm: int, shingle: int) -> None:
    table = DedupTable(
        normalise="none", scheme="datasketch", num_perm=num_perm, bands=1, rows=1, shingle=shingle
    )
    text = made_text(num_words, num_words)
    assert Signer(table).signature(text) == by_datasketch(text, table)


@pytest.mark.parametrize(
    "text", ["a", "我们在这里吃饭 and drink", "lone \ud800 surrogate of a text", "\u00a0nbsp\u2003em\x1cfs"]
)
def test_the_datasketch_scheme_equals_datasketch_on_odd_texts(text: str) -> None:
    table = DedupTable(normalise="none", scheme="datasketch")
    assert Signer(table).signature(text) == by_datasketch(text, table)


@pytest.mark.slow
def test_the_datasketch_scheme_equals_datasketch_on_a_thousand_real_texts(real_data: Path) -> None:
    table, num_equal = DedupTable(normalise="none", scheme="datasketch"), 0
    signer = Signer(table)
    for file in sorted((real_data / "crawl").glob("*.warc.gz")):
        for record in ArchiveIterator(file.open("rb"), record_types=WarcRecordType.response, parse_http=True):
            text = extract_plain_text(record.reader.read().decode("utf-8", "replace"), main_content=True)
            if text.split():
                assert signer.signature(text) == by_datasketch(text, table)
                num_equal += 1
    assert num_equal >= 1000


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_text_without_words_has_no_signature(scheme: str) -> None:
    signer = Signer(DedupTable(normalise="none", scheme=scheme))  # type: ignore[arg-type]
    assert signer.signature("") is None
    assert signer.signature(" \n\t\u3000") is None


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_signer_remembers_nothing_and_can_be_pickled(scheme: str) -> None:
    signer = Signer(DedupTable(normalise="none", scheme=scheme))  # type: ignore[arg-type]
    first = signer.signature("one two three four five six")
    signer.signature(made_text(1, 3000))
    assert signer.signature("one two three four five six") == first
    assert pickle.loads(pickle.dumps(signer)).signature("one two three four five six") == first
    assert first is not None and len(first) == 4 * 128


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("similarity", [0.2, 0.5, 0.8])
def test_the_estimate_is_without_bias(scheme: str, similarity: float) -> None:
    """Over 40 independent pairs of about 600 shingles the mean error stays within 4.5 of its standard
    errors."""
    signer = Signer(DedupTable(normalise="none", scheme=scheme))  # type: ignore[arg-type]
    errors = []
    for seed in range(40):
        chosen = random.Random(f"{seed} {similarity}")
        shared = [f"{chosen.randrange(10**9)}" for _ in range(round(1200 * similarity / (1 + similarity)))]
        sides = [
            " ".join(shared + [f"{chosen.randrange(10**9)}" for _ in range(604 - len(shared))]) for _ in "ab"
        ]
        left, right = (signer.signature(side) for side in sides)
        assert left is not None and right is not None
        values = unpack_signatures(pa.array([left, right]), signer.table)
        exact = jaccard(shingles(sides[0], signer.table), shingles(sides[1], signer.table))
        errors.append(float(np.mean(values[0] == values[1])) - exact)
    standard_error = (similarity * (1 - similarity) / 128 / len(errors)) ** 0.5
    assert abs(float(np.mean(errors))) < 4.5 * standard_error


def test_case_and_punctuation_belong_to_words_and_every_white_space_parts_them() -> None:
    assert words("The  end.\tthe\u00a0END\u3000x") == [b"The", b"end.", b"the", b"END", b"x"]


def test_each_character_of_a_script_without_spaces_is_a_word() -> None:
    assert words("東京タワー ok") == [*(c.encode() for c in "東京タワ"), "ー".encode(), b"ok"]
    assert len(words("สวัสดี")) == 6
    assert words("한국어 글") == ["한국어".encode(), "글".encode()]


def test_a_short_text_is_one_shingle_of_all_its_words() -> None:
    table = DedupTable(normalise="none")
    assert shingle_strings("a b c", table) == [b"a b c"]
    assert len(shingles("a b c", table)) == 1
    assert shingle_strings("a b c d e f", table) == [b"a b c d e", b"b c d e f"]
    assert len(shingles("", table)) == 0


@given(st.lists(st.sampled_from("abcd"), max_size=40), st.integers(1, 7), st.integers(0, 2**64 - 1))
def test_hashed_shingles_are_equal_exactly_where_shingles_are(
    letters: list[str], size: int, key: int
) -> None:
    text, table = " ".join(letters), DedupTable(normalise="none", shingle=size)
    hashed, plain = shingle_hashes(text, table, key).tolist(), shingle_strings(text, table)
    assert [hashed.index(h) for h in hashed] == [plain.index(p) for p in plain]


@given(st.text("ab \n漢🙂\ud800", max_size=40), st.integers(1, 7), st.integers(0, 2**64 - 1))
def test_shingles_of_characters_are_all_runs_of_so_many(text: str, size: int, key: int) -> None:
    table = DedupTable(normalise="none", shingle=size, shingle_unit="character")
    runs = (
        [text[start : start + size] for start in range(max(1, len(text) - size + 1))] if text.strip() else []
    )
    plain = shingle_strings(text, table)
    assert plain == [run.encode("utf-8", "surrogatepass") for run in runs]
    hashed = shingle_hashes(text, table, key).tolist()
    assert [hashed.index(h) for h in hashed] == [plain.index(p) for p in plain]


def test_characters_are_compared_as_normalised() -> None:
    table = DedupTable(shingle=4, shingle_unit="character", normalise="slimpajama")
    assert shingle_strings("A.b\n c!d", table) == [b"ab c", b"b cd"]
    with_few = DedupTable(shingle=24, shingle_unit="character", normalise="fineweb")
    assert len(shingle_hashes("too short", with_few)) == 0


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)))
def test_jaccard_is_that_of_sets(left: set[int], right: set[int]) -> None:
    expected = len(left & right) / len(left | right) if left | right else 0.0
    found = jaccard(np.array(sorted(left), np.uint64), np.array(sorted(right), np.uint64))
    assert found == expected


@given(st.lists(st.integers(0, 2**64 - 1), unique=True, max_size=50))
def test_mixing_keeps_distinct_values_distinct(values: list[int]) -> None:
    assert len(np.unique(mix(np.array(values, np.uint64)))) == len(values)


def test_the_estimate_floor_lies_four_standard_errors_below_the_threshold() -> None:
    assert estimate_floor(DedupTable(normalise="none", threshold=0.8)) == pytest.approx(
        0.8 - 4 * (0.8 * 0.2 / 128) ** 0.5
    )
    assert estimate_floor(DedupTable(normalise="none", threshold=0.8, verify=False)) == 0


def test_scheme_names_tell_incomparable_signatures_apart() -> None:
    tables = [
        DedupTable(normalise="none"),
        DedupTable(normalise="none", scheme="datasketch"),
        DedupTable(normalise="none", shingle=6),
        DedupTable(normalise="none", num_perm=256),
    ]
    tables += [DedupTable(normalise="fineweb"), DedupTable(normalise="slimpajama")]
    tables += [DedupTable(normalise="none", shingle_unit="character")]
    assert len({scheme_name(table) for table in tables}) == 7
    assert scheme_name(DedupTable(normalise="none", verify=False, threshold=0.5)) == scheme_name(
        DedupTable(normalise="none")
    )


def test_bands_and_rows_must_fit_the_signature() -> None:
    with pytest.raises(RecipeError, match=r"20 and dedup.rows = 8 need 160 values of a signature, .* = 128"):
        parse_table(DedupTable, {"bands": 20}, "dedup")
    assert parse_table(DedupTable, {"bands": 14, "rows": 8, "num_perm": 112}, "dedup").bands == 14


@pytest.mark.parametrize(
    "wrong", [{"threshold": 0.0}, {"threshold": 1.1}, {"bands": 0}, {"rows": 0}, {"shingle": 0}, {"keep": "first"},
              {"scheme": "sha1"}, {"num_perm": 0}, {"normalise": "lower"}, {"verify": "no"}]
)  # fmt: skip
def test_values_out_of_range_are_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(RecipeError, match=f"dedup.{next(iter(wrong))}"):
        parse_table(DedupTable, wrong, "dedup")
