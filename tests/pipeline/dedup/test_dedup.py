"""Deduplication of whole corpora, from keys and texts to verdicts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lineage.storage.folder import Folder
from lineage.store.tables import VERDICTS
from pipeline.dedup import near
from pipeline.dedup.corpus import deduplicate, runs_in_one_process
from pipeline.dedup.exchange import Exchange, InPhases, InProcess
from pipeline.dedup.near import bucket_rows
from pipeline.dedup.rows import Context, FileSlice
from pipeline.inspect.hooks import Similarity
from pipeline.results.dedup_result import DedupCounts
from stages.dedup.options import DedupTable
from stages.dedup.shingles import jaccard, shingles
from tests.support.inputs.dedup_corpus import (
    Corpus,
    Doc,
    Verdict,
    one_file,
    pair_at,
    random_words,
    read_verdicts,
    write_earlier,
)
from tests.support.outputs.runs import run_in, s3_server


def similar(left: str, right: str) -> float:
    return jaccard(
        shingles(left, DedupTable(normalise="none")), shingles(right, DedupTable(normalise="none"))
    )


def chain(num_windows: int, *, step: int = 8) -> list[str]:
    """Windows of 100 shingles, each `step` shingles after the last: neighbours have a Jaccard of .85."""
    stream = random_words("chain", step * num_windows + 104)
    return [" ".join(stream[start * step : start * step + 104]) for start in range(num_windows)]


def outcome(verdicts: Sequence[Verdict]) -> dict[bytes, tuple[Any, ...]]:
    """What was said of each document, wherever its file lies."""
    names = ("status", "stage", "rule", "value", "threshold", "cluster_id", "duplicate_of", "similarity")
    return {
        row["doc_id"]: tuple(row[name] for name in names) for row in verdicts if row["stage"] != "identity"
    }


def dropped(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return [row for row in verdicts if row["status"] == "duplicate"]


def by_row(verdicts: Sequence[Verdict]) -> dict[int, Verdict]:
    return {row["part_row"]: row for row in verdicts}


def test_texts_of_one_page_that_are_unlike_are_counted_by_source(tmp_path: Path) -> None:
    table = DedupTable(normalise="none")
    left, right = pair_at(0.9, "page")
    posts = [
        Doc(text=" ".join(random_words(f"post {number}", 60 + number)), url="thread") for number in range(4)
    ]
    states = [
        Doc(text=left + " and some more", url="page"),
        Doc(text=right, url="page"),
        Doc(text="", url="page"),
    ]
    (tmp_path / "earlier").mkdir()
    known = write_earlier(
        tmp_path / "earlier", [Doc(text=" ".join(random_words("known", 60)), url="old")], table
    )
    other = [Doc(text=" ".join(random_words("new", 60)), url="old")]
    corpus = Corpus(files={(0, 0): states, (1, 0): posts, (2, 0): other}, earlier=(known,))
    counts = deduplicate(corpus.job(tmp_path / "one")).counts
    assert (counts.dropped["dedup.url"], counts.compared_pages) == (6, 5)
    assert counts.unlike_pages == {"1": 3, "2": 1}
    many = deduplicate(corpus.job(tmp_path / "many", rows_per_partition=1)).counts
    assert (many.compared_pages, many.unlike_pages) == (counts.compared_pages, counts.unlike_pages)
    off = Corpus(files=corpus.files, table=DedupTable(normalise="none", near=False))
    assert deduplicate(off.job(tmp_path / "off")).counts.compared_pages == 0


def test_each_kind_of_repetition_is_named_by_its_stage(tmp_path: Path) -> None:
    left, right = pair_at(0.9, "pair")
    docs = [
        Doc(text=left + " and some more", url="a"),
        Doc(text="short " * 9, url="a"),
        Doc(text=left, url="b"),
        Doc(text=left, url="c"),
        Doc(text=right, url="d"),
        Doc(text="alone " * 7, url="e"),
    ]
    rows = by_row(one_file(docs).verdicts(tmp_path))
    kept, by_url, near, again, other = (rows[number] for number in range(5))
    assert set(rows) == {0, 1, 2, 3, 4}
    assert (kept["status"], kept["stage"], kept["duplicate_of"]) == ("kept", None, None)
    assert {row["cluster_id"] for row in rows.values()} == {min(row["doc_id"] for row in rows.values())}
    assert {row["duplicate_of"] for row in (by_url, near, again, other)} == {docs[0].doc_id}
    assert (by_url["stage"], by_url["rule"], by_url["value"], by_url["threshold"]) == ("dedup.url",) * 2 + (
        None,
    ) * 2
    for row in (near, again, other):
        similarity = similar(docs[0].text, docs[row["part_row"]].text)
        assert (row["stage"], row["rule"], row["threshold"]) == ("dedup.near", "dedup.near", 0.8)
        assert row["similarity"] == row["value"] == similarity


def test_exact_copies_are_named_exact(tmp_path: Path) -> None:
    rows = by_row(one_file([Doc(text="the same words", url=url) for url in "abc"]).verdicts(tmp_path))
    dropped = [row for row in rows.values() if row["status"] == "duplicate"]
    assert len(dropped) == 2
    assert {(r["stage"], r["similarity"], r["threshold"], r["duplicate_of"]) for r in dropped} == {
        ("dedup.exact", 1.0, 1.0, min(row["doc_id"] for row in rows.values()))
    }


def test_a_second_record_of_an_id_is_a_duplicate_of_that_id_and_takes_no_part(tmp_path: Path) -> None:
    """The first place stays: the other texts under the same id are not compared with anything."""
    docs = {
        (0, 1): [Doc(text="first text", name="x")],
        (1, 0): [Doc(text="other text", name="x")],
        (1, 2): [Doc(text="other text", name="y"), Doc(text="first text", name="x")],
    }
    rows = Corpus(files=docs).verdicts(tmp_path)
    places = [(row["source_index"], row["file_index"], row["part_row"]) for row in rows]
    assert places == [(1, 0, 0), (1, 2, 1)]
    for row in rows:
        assert (row["status"], row["stage"], row["rule"]) == ("duplicate", "identity", "identity")
        assert row["duplicate_of"] == row["doc_id"]
        assert row["cluster_id"] is None and row["similarity"] is None and row["value"] is None


def test_a_chain_of_shifted_windows_does_not_collapse(tmp_path: Path) -> None:
    texts = chain(60)
    assert similar(texts[0], texts[1]) == pytest.approx(0.852, abs=0.001)
    assert similar(texts[0], texts[10]) == pytest.approx(0.111, abs=0.001)
    rows = by_row(one_file([Doc(text=text) for text in texts]).verdicts(tmp_path))
    kept = [number for number, row in rows.items() if row["status"] == "kept"]
    assert len({row["cluster_id"] for row in rows.values()}) == 1, "one component, whole or it shows nothing"
    assert len(rows) == 60
    assert 20 <= len(kept) <= 40


@pytest.mark.parametrize("scheme", ["fast", "datasketch"])
@pytest.mark.parametrize("threshold", [0.5, 0.8, 0.9])
def test_whatever_is_dropped_as_near_resembles_what_it_repeats(
    tmp_path: Path, scheme: str, threshold: float
) -> None:
    table = DedupTable(normalise="none", scheme=scheme, threshold=threshold)  # type: ignore[arg-type]
    levels = [0.4, 0.5, 0.6, 0.7, 0.78, 0.8, 0.82, 0.88, 0.9, 0.92, 0.97]
    docs = [
        Doc(text=text) for level in levels for seed in range(6) for text in pair_at(level, (seed, level), 150)
    ]
    corpus = one_file(docs, table=table)
    texts, rows = corpus.texts(), corpus.verdicts(tmp_path)
    kept = {doc.doc_id for doc in docs} - {row["doc_id"] for row in rows if row["status"] == "duplicate"}
    dropped = [row for row in rows if row["status"] == "duplicate"]
    assert dropped
    for row in dropped:
        assert row["duplicate_of"] in kept
        assert row["similarity"] == similar(texts[row["doc_id"]], texts[row["duplicate_of"]])
        assert row["similarity"] >= threshold


def test_chinese_pages_that_differ_in_a_sentence_are_near_duplicates(tmp_path: Path) -> None:
    chosen = random.Random(5)
    page = "".join(chr(chosen.randrange(0x4E00, 0x9F00)) for _ in range(400))
    docs = [Doc(text=page), Doc(text=page[:380] + "另外一个完全不同的句子" + page[380:])]
    stages = [row["stage"] for row in one_file(docs).verdicts(tmp_path) if row["stage"]]
    assert stages == ["dedup.near"]


def test_what_is_turned_off_is_not_looked_for(tmp_path: Path) -> None:
    docs = [Doc(text="same text", url="a"), Doc(text="same text", url="b"), Doc(text="more text", url="a")]
    for number, (options, stages) in enumerate(
        [
            ({"url": False}, ["dedup.exact"]),
            ({"exact": False}, ["dedup.near", "dedup.url"]),
            ({"exact": False, "near": False}, ["dedup.url"]),
            ({"url": False, "exact": False, "near": False}, []),
        ]
    ):
        rows = one_file(docs, table=DedupTable(normalise="none", keep="longest", **options)).verdicts(
            tmp_path / str(number)
        )  # type: ignore[arg-type]
        assert sorted(row["stage"] for row in rows if row["stage"]) == stages


def test_each_group_of_files_has_one_sorted_file_also_without_rows(tmp_path: Path) -> None:
    same = [Doc(text="same text", url=url) for url in "abcdefgh"]
    files = {
        (0, 0): same[:2],
        (0, 5): same[2:4],
        (1, 0): [Doc(text="other")],
        (1, 9): same[4:6],
        (1, 2): same[6:],
    }
    job = Corpus(files=files, group_files=3).job(tmp_path)
    result = deduplicate(job)
    assert [(group.source_index, group.group) for group in result.verdicts] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 3),
    ]
    found = []
    for group in result.verdicts:
        table = pq.read_table(job.work.at(group.name))
        assert table.schema.equals(VERDICTS)
        rows = [(row["source_index"], row["file_index"], row["part_row"]) for row in table.to_pylist()]
        assert rows == sorted(rows)
        assert all((source, file // 3) == (group.source_index, group.group) for source, file, _ in rows)
        found.append(len(rows))
    assert found == [2, 2, 2, 2]
    assert result.counts.dropped["dedup.exact"] == 7


def test_files_without_documents_are_no_trouble(tmp_path: Path) -> None:
    assert Corpus(files={(0, 0): [], (0, 1): []}).verdicts(tmp_path / "empty") == []
    rows = Corpus(files={(0, 0): [], (0, 1): [Doc(text="a b"), Doc(text="a b", url="u")]}).verdicts(
        tmp_path / "one"
    )
    assert [row["status"] for row in rows].count("kept") == 1
    assert Corpus(files={}).verdicts(tmp_path / "none") == []


def test_only_files_whose_texts_share_a_bucket_are_asked_for_candidates(tmp_path: Path) -> None:
    """Most texts resemble none: their bands are not moved, and a file of such texts is not read again."""
    left, right = pair_at(0.95, "shared")
    alone = [Doc(text=" ".join(random_words(number, 60))) for number in range(12)]
    files = {(0, 0): [*alone[:3], Doc(text=left)], (0, 1): alone[3:6], (0, 2): [Doc(text=right), *alone[6:9]]}
    files |= {(0, 3): alone[9:], (0, 4): [Doc(text="word " * 70), Doc(text="word " * 80)]}
    job = Corpus(files=files).job(tmp_path, rows_per_partition=1)
    result = deduplicate(job)
    assert (result.counts.candidate_pairs, result.counts.verified_pairs) == (2, 2)
    asked = {name for name in job.work.folder("dedup").names("buckets-by-slice") if name.endswith(".parquet")}
    assert asked == {f"buckets-by-slice/0000{number}.parquet" for number in (0, 2, 4)}
    rows = [task for name in asked for task in pq.read_table(job.work.at(f"dedup/{name}"))["key"].to_pylist()]
    assert 3 <= len(rows) <= 16 * 3 and len(set(rows)) < len(rows)


def test_a_bucket_of_many_texts_of_one_file_is_moved_as_two_rows(tmp_path: Path) -> None:
    docs = [Doc(text=boilerplate(number)) for number in range(300)]
    job = one_file(docs).job(tmp_path)
    deduplicate(job)
    context = Context(
        table=job.table,
        folder=job.work.folder("dedup"),
        num_partitions=1,
        slice_starts=(0,),
        group_starts=(0,),
    )
    keys = bucket_rows(context, FileSlice(0, None))["key"].to_pylist()
    assert max(Counter(keys).values()) == 2
    assert len(keys) < 300 * job.table.bands / 2


# Earlier outputs.


def test_a_repetition_of_an_earlier_output_names_its_document(tmp_path: Path) -> None:
    left, right = pair_at(0.9, "against")
    earlier = [
        Doc(text=left, name="old near"),
        Doc(text="old text", name="old exact"),
        Doc(text="x", url="u", name="old"),
    ]
    table = DedupTable(normalise="none")
    longer = " ".join([right, *random_words("longer", 600)])
    docs = [Doc(text=longer), Doc(text=right), Doc(text="old text"), Doc(text="y z", url="u")]
    corpus = one_file(docs, earlier=(write_earlier(tmp_path / "before", earlier, table),))
    rows = by_row(corpus.verdicts(tmp_path / "now"))
    named = {number: (row["stage"], row["duplicate_of"]) for number, row in rows.items() if row["stage"]}
    assert named == {
        1: ("dedup.near", earlier[0].doc_id),
        2: ("dedup.exact", earlier[1].doc_id),
        3: ("dedup.url", earlier[2].doc_id),
    }
    assert rows[1]["similarity"] == similar(left, right)
    assert rows[1]["cluster_id"] == min(docs[1].doc_id, earlier[0].doc_id)


def test_a_record_that_an_earlier_output_kept_repeats_itself_there(tmp_path: Path) -> None:
    doc = Doc(text="one and the same record", url="u")
    corpus = one_file(
        [doc], earlier=(write_earlier(tmp_path / "before", [doc], DedupTable(normalise="none")),)
    )
    (row,) = corpus.verdicts(tmp_path / "now")
    assert (row["status"], row["stage"], row["duplicate_of"]) == ("duplicate", "dedup.url", doc.doc_id)


def test_what_only_earlier_documents_share_does_not_widen_a_cluster(tmp_path: Path) -> None:
    left, right = pair_at(0.9, "cluster")
    new, near = Doc(text=right), Doc(text=left, url="u", name="near")
    names = (f"far {number}" for number in range(100))
    far = next(
        doc
        for name in names
        if (doc := Doc(text="z", url="u", name=name)).doc_id < min(new.doc_id, near.doc_id)
    )
    earlier = tuple(
        write_earlier(tmp_path / doc.name, [doc], DedupTable(normalise="none"))
        for doc in (near, far)
        if doc.name
    )
    (row,) = one_file([new], earlier=earlier).verdicts(tmp_path / "now")
    assert (row["duplicate_of"], row["cluster_id"]) == (near.doc_id, min(new.doc_id, near.doc_id))


def boilerplate(number: int | None = None) -> str:
    """A page, or one of hundreds that resemble it: they differ from it in one word."""
    found = random_words("boilerplate", 104)
    if number is not None:
        found[10 + number % 85] = f"v{number}"
    return " ".join(found)


def test_what_resembles_an_earlier_text_goes_also_where_the_new_crawl_holds_that_text_again(
    tmp_path: Path,
) -> None:
    old = Doc(text=boilerplate(), name="old")
    docs = [Doc(text=boilerplate(number)) for number in range(400)]
    for name, new in (("without", docs), ("with", [*docs, replace(old, name="again")])):
        before = write_earlier(tmp_path / f"before-{name}", [old], DedupTable(normalise="none"))
        rows = one_file(new, earlier=(before,)).verdicts(tmp_path / name)
        assert {row["duplicate_of"] for row in rows} == {old.doc_id}, name
        assert len(rows) == len(new)


@pytest.mark.parametrize("keep", ["earliest", "newest"])
def test_the_kept_text_drops_all_that_resembles_it_however_many_copies_of_it_there_are(
    tmp_path: Path, keep: Any
) -> None:
    kept, others = ("2020", "2024") if keep == "earliest" else ("2024", "2020")
    docs = [
        Doc(text=boilerplate(number), captured_at=f"2021-01-01T00:00:{number % 60:02}Z")
        for number in range(400)
    ] + [
        Doc(text=boilerplate(), captured_at=f"{others}-01-01T00:00:00Z", name=f"copy {copy}")
        for copy in range(30)
    ]
    docs.append(Doc(text=boilerplate(), captured_at=f"{kept}-01-01T00:00:00Z", name="kept"))
    rows = one_file(docs, table=DedupTable(normalise="none", keep=keep)).verdicts(tmp_path)
    assert [row["doc_id"] for row in rows if row["status"] == "kept"] == [docs[-1].doc_id]
    assert {row["duplicate_of"] for row in rows[:-1]} == {docs[-1].doc_id}


@pytest.mark.parametrize("keep", ["earliest", "newest"])
def test_the_kept_text_drops_all_that_resembles_it_within_one_second_too(tmp_path: Path, keep: Any) -> None:
    first, last = "2021-01-01T00:00:00Z", "2021-01-01T00:00:00.999999Z"
    docs = [
        Doc(text=boilerplate(number), captured_at=f"2021-01-01T00:00:00.{number + 1:06}Z")
        for number in range(400)
    ]
    docs.append(Doc(text=boilerplate(), captured_at=first if keep == "earliest" else last))
    rows = one_file(docs, table=DedupTable(normalise="none", keep=keep)).verdicts(tmp_path)
    assert [row["doc_id"] for row in rows if row["status"] == "kept"] == [docs[-1].doc_id]
    assert {row["duplicate_of"] for row in rows[:-1]} == {docs[-1].doc_id}


def test_a_text_purged_since_drops_nothing_that_only_resembles_it(tmp_path: Path) -> None:
    left, right = pair_at(0.95, "purged")
    for purged, expected in (([], ["dedup.near"]), ([0], [])):
        before = write_earlier(
            tmp_path / f"before-{len(purged)}", [Doc(text=left)], DedupTable(normalise="none"), purged=purged
        )
        rows = one_file([Doc(text=right)], earlier=(before,)).verdicts(tmp_path / f"now-{len(purged)}")
        assert [row["stage"] for row in rows] == expected


def half_alike(num: int) -> list[Doc]:
    """Pairs of Jaccard .6."""
    return [Doc(text=text, url=None) for seed in range(num) for text in pair_at(0.6, f"half {seed}")]


def test_without_verification_a_shared_band_is_enough_and_the_jaccard_is_recorded(tmp_path: Path) -> None:
    docs, verified = half_alike(20), DedupTable(normalise="none", num_perm=128, bands=32, rows=4)
    texts = one_file(docs).texts()
    assert not dropped(one_file(docs, table=verified).verdicts(tmp_path / "verified"))
    by_bands = one_file(docs, table=replace(verified, verify=False)).verdicts(tmp_path / "by-bands")
    rows = dropped(by_bands)
    assert len(rows) >= 15  # 1 - (1 - .6^4)^32 is .99
    for row in rows:
        assert row["stage"] == row["rule"] == "dedup.near" and row["threshold"] is None
        assert row["similarity"] == similar(texts[row["doc_id"]], texts[row["duplicate_of"]]) < 0.8


def test_without_verification_too_nothing_is_dropped_without_a_band_in_common_with_a_kept_text(
    tmp_path: Path,
) -> None:
    # A chain of windows: each shares bands with its neighbours, the ends with nobody else.
    whole = random_words("chain", 4000)
    docs = [Doc(text=" ".join(whole[start : start + 600])) for start in range(0, 3400, 100)]
    table = DedupTable(normalise="none", num_perm=128, bands=32, rows=4, verify=False)
    rows = one_file(docs, table=table).verdicts(tmp_path)
    alike, texts = Similarity(table), one_file(docs).texts()
    kept = {row["doc_id"] for row in rows if row["status"] == "kept"}
    assert 1 < len(kept) < len(rows)
    for row in dropped(rows):
        assert row["duplicate_of"] in kept
        assert alike.share_band(texts[row["doc_id"]], texts[row["duplicate_of"]])


def test_a_text_purged_since_drops_nothing_by_its_bands_alone(tmp_path: Path) -> None:
    left, right = pair_at(0.95, "purged")
    table = DedupTable(normalise="none", verify=False)
    for purged, expected in (([], ["dedup.near"]), ([0], [])):
        before = write_earlier(tmp_path / f"before-{len(purged)}", [Doc(text=left)], table, purged=purged)
        rows = one_file([Doc(text=right)], table=table, earlier=(before,)).verdicts(
            tmp_path / f"now-{len(purged)}"
        )
        assert [row["stage"] for row in rows] == expected


@pytest.mark.parametrize("scheme", ["fast", "datasketch"])
def test_the_similarity_that_decides_is_that_of_the_normalised_texts(tmp_path: Path, scheme: Any) -> None:
    chosen = random.Random("page")
    names = ["".join(chosen.choices("aeiklmnoprst", k=6)) for _ in range(200)]
    text = f"\u201cThe keeper\u2019s boat,\u201d she said, {' '.join(names)}"
    docs = [Doc(text=text + " and more"), Doc(text=text.upper().replace("\u2019", "'"))]
    for way, expected in (("none", []), ("fineweb", ["dedup.near"])):
        table = DedupTable(normalise=way, scheme=scheme)  # type: ignore[arg-type]
        rows = dropped(one_file(docs, table=table).verdicts(tmp_path / way))
        assert [row["stage"] for row in rows] == expected
    assert rows[0]["similarity"] == Similarity(table)(docs[0].text, docs[1].text) > 0.95
    before = write_earlier(tmp_path / "before", docs[:1], table)
    rows = one_file(docs[1:], table=table, earlier=(before,)).verdicts(tmp_path / "against")
    assert [row["duplicate_of"] for row in dropped(rows)] == [docs[0].doc_id]


def test_signatures_of_another_shape_are_refused(tmp_path: Path) -> None:
    before = write_earlier(
        tmp_path / "before", [Doc(text="some text")], DedupTable(normalise="none", num_perm=256)
    )
    with pytest.raises(ValueError, match=r"256 values, but dedup\.num_perm = 128"):
        one_file([Doc(text="some other text")], earlier=(before,)).verdicts(tmp_path / "now")


# One result, whatever the order, the engine and the way the work is cut.

DOCS = st.lists(
    st.builds(
        Doc,
        text=st.integers(0, 11).map(lambda start: chain(12)[start]),
        url=st.sampled_from([None, "u", "v", "w", "x", "y"]),
        captured_at=st.sampled_from([None, "2020-01-01T00:00:00Z", "2021-01-01T00:00:00Z"]),
    ),
    min_size=2,
    max_size=14,
)
QUICK = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@QUICK
@given(DOCS, st.randoms(use_true_random=False), st.sampled_from(["longest", "earliest"]))
def test_arrival_order_never_matters(
    tmp_path_factory: pytest.TempPathFactory, docs: list[Doc], random: random.Random, keep: str
) -> None:
    table = DedupTable(normalise="none", keep=keep)  # type: ignore[arg-type]
    docs = list({doc.doc_id: doc for doc in docs}.values())
    expected = outcome(one_file(docs, table=table).verdicts(tmp_path_factory.mktemp("one")))
    files: dict[tuple[int, int], list[Doc]] = {(source, file): [] for source in range(2) for file in range(2)}
    random.shuffle(docs)
    for doc in docs:
        files[random.choice(list(files))].append(doc)
    shuffled = Corpus(files=files, table=table).verdicts(
        tmp_path_factory.mktemp("other"), rows_per_partition=3
    )
    assert outcome(shuffled) == expected


def varied_corpus() -> Corpus:
    """Documents of every kind in seven files of two sources."""
    docs = [Doc(text=text, url=f"w{number % 17}") for number, text in enumerate(chain(40))]
    docs += [
        Doc(text=text, url=f"p{seed}{seed % 3}") for seed in range(40) for text in pair_at(0.85, seed, 80)
    ]
    docs += [Doc(text="copied text", url=f"c{number}") for number in range(90)]
    docs += [Doc(text=" ".join(random_words(number, 20))) for number in range(40)] + docs[:7]
    random.Random(1).shuffle(docs)
    files = {(number % 2, number): docs[number::7] for number in range(7)}
    return Corpus(files=files, group_files=2)


def published(root: Path) -> dict[str, bytes]:
    folder = root / "work" / "dedup" / "verdicts"
    return {file.name: file.read_bytes() for file in sorted(folder.glob("*.parquet"))}


@pytest.mark.parametrize(
    "options", [{"rows_per_partition": 30}, {"rows_per_partition": 5}, {"in_process_rows": 10**6}]
)
def test_however_the_work_is_cut_the_bytes_are_the_same(tmp_path: Path, options: dict[str, int]) -> None:
    corpus = varied_corpus()
    corpus.verdicts(tmp_path / "whole")
    job = corpus.job(tmp_path / "cut", **options)
    deduplicate(replace(job, units=job.units[::-1]))
    assert published(tmp_path / "whole") == published(tmp_path / "cut")
    assert len(published(tmp_path / "whole")) == 7


def test_components_by_rounds_give_the_same_bytes(tmp_path: Path) -> None:
    corpus = varied_corpus()
    corpus.verdicts(tmp_path / "whole")
    corpus.verdicts(tmp_path / "rounds", InProcess(), in_process_rows=0, rows_per_partition=50)
    assert (tmp_path / "rounds" / "work" / "dedup" / "small-star-1").is_dir()
    assert published(tmp_path / "whole") == published(tmp_path / "rounds")


@pytest.mark.slow
@pytest.mark.parametrize("max_shares", [2, 512])
def test_ray_data_gives_the_same_bytes(tmp_path: Path, small_ray: None, max_shares: int) -> None:
    corpus = varied_corpus()
    corpus.verdicts(tmp_path / "whole")
    engine = InPhases(run_in(tmp_path / "ray"), max_shares)
    corpus.verdicts(tmp_path / "ray", engine, in_process_rows=0, rows_per_partition=100)
    assert (tmp_path / "ray" / "work" / "dedup" / "small-star-1").is_dir()
    assert published(tmp_path / "whole") == published(tmp_path / "ray")


@pytest.mark.parametrize(
    ("num_rows", "num_nodes", "memory", "local"),
    [
        (5_000_000, 1, 64 << 30, True),
        (5_000_001, 1, 64 << 30, False),
        (5_000_000, 1, 16 << 30, False),
        (1_000, 2, 64 << 30, False),
    ],
)
def test_one_process_compares_what_it_holds_where_there_is_one_node(
    num_rows: int, num_nodes: int, memory: int, local: bool, tmp_path: Path
) -> None:
    job = replace(one_file([Doc(text="a")]).job(tmp_path), num_rows=num_rows)
    assert runs_in_one_process(job, num_nodes, memory) is local


@pytest.mark.parametrize(
    ("num_rows", "num_partitions"),
    [(0, 1), (1 << 14, 1), ((1 << 14) + 1, 2), (5_000_000, 306), (5_000_001, 21), (10**12, 8192)],
)
def test_what_one_process_may_compare_is_cut_more_finely(
    num_rows: int, num_partitions: int, tmp_path: Path
) -> None:
    job = replace(one_file([Doc(text="a")]).job(tmp_path), num_rows=num_rows)
    assert job.num_partitions == num_partitions


def test_texts_are_compared_in_more_partitions_where_there_are_more_pairs(tmp_path: Path) -> None:
    docs = [Doc(text=text, name=str(number)) for number, text in enumerate(chain(40, step=1))]
    job = one_file(docs).job(tmp_path, rows_per_partition=len(docs))
    counts = deduplicate(job).counts
    assert counts.compared_pairs > len(docs) and job.num_partitions == 1
    assert len(job.work.names("dedup/near")) > 1 + job.num_partitions  # and the marker


class KilledError(Exception):
    """Stands for a death of the process."""


class DyingEngine(InProcess):
    """Dies in exchange `last` after the reducer of its first partition has published."""

    def __init__(self, last: int) -> None:
        self.left = last

    def run(self, exchange: Exchange) -> dict[int, DedupCounts]:
        self.left -= 1
        if self.left >= 0:
            return super().run(exchange)

        def reduce(number: int, rows: Any) -> DedupCounts:
            exchange.reduce(number, rows)
            raise KilledError

        return super().run(replace(exchange, reduce=reduce))


@pytest.mark.parametrize("last", [0, 2, 5, 8, 11])
def test_a_killed_job_repeats_no_finished_phase(tmp_path: Path, last: int) -> None:
    corpus, options = varied_corpus(), {"rows_per_partition": 60}
    corpus.verdicts(tmp_path / "whole", **options)
    job = corpus.job(tmp_path / "killed", **options)
    with pytest.raises(KilledError):
        deduplicate(job, DyingEngine(last))
    folder = tmp_path / "killed" / "work" / "dedup"
    finished = [file for marker in folder.glob("*/done.json") for file in marker.parent.iterdir()]
    before = {file: (file.stat().st_mtime_ns, file.stat().st_ino) for file in finished}
    heard: list[str] = []
    result = deduplicate(job, notify=heard.append)
    assert {file: (file.stat().st_mtime_ns, file.stat().st_ino) for file in finished} == before
    assert not set(heard) & {file.parent.name for file in finished}
    assert published(tmp_path / "whole") == published(tmp_path / "killed")
    assert result == deduplicate(job)


def test_a_finished_job_says_the_same_again_without_work(tmp_path: Path) -> None:
    job = varied_corpus().job(tmp_path)
    first = deduplicate(job)
    heard: list[str] = []
    assert deduplicate(job, notify=heard.append) == first
    assert heard == []


# Bounds.


class WeighingEngine(InProcess):
    """Keeps the most sets of shingles that a partition compares."""

    most_compared = 0

    def run(self, exchange: Exchange) -> dict[int, DedupCounts]:
        def reduce(number: int, rows: pa.Table) -> DedupCounts:
            self.most_compared = max(self.most_compared, pc.count(rows["value"]).as_py())
            return exchange.reduce(number, rows)

        return super().run(replace(exchange, reduce=reduce) if exchange.name == "near" else exchange)


def test_few_sets_of_shingles_are_held_at_a_time_and_the_verdicts_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = " ".join(random_words("held", 60))
    corpus = one_file([Doc(text=f"{start} {number}") for number in range(200)])
    corpus.verdicts(tmp_path / "whole")
    monkeypatch.setattr(near, "_TEXTS_AT_ONCE", 7)
    monkeypatch.setattr(near, "_FETCHED_BYTES", 5_000)
    job, engine = corpus.job(tmp_path / "pieces", rows_per_partition=100), WeighingEngine()
    result = deduplicate(job, engine)
    assert published(tmp_path / "whole") == published(tmp_path / "pieces")
    assert result.counts.verified_pairs > 199
    assert 0 < engine.most_compared < 50, "a set weighs more than a signature"
    groups = [
        pq.ParquetFile(file).metadata.row_group(0).num_rows
        for file in (tmp_path / "pieces/work/dedup/shingles").glob("*.parquet")
    ]
    # A set of these texts has at least 50 shingles of 8 bytes.
    assert groups and max(groups) <= 1 + 5_000 // 400


@pytest.mark.slow
def test_a_hundred_thousand_copies_cost_no_comparison(tmp_path: Path) -> None:
    text = " ".join(random_words("hot", 300))
    job = one_file([Doc(text=text, url=str(number)) for number in range(100_000)]).job(tmp_path)
    result = deduplicate(job)
    assert result.counts.candidate_pairs == result.counts.capped_buckets == 0
    assert result.counts.dropped["dedup.exact"] == 99_999
    rows = read_verdicts(job, result)
    kept = min(row["doc_id"] for row in rows)
    assert {row["duplicate_of"] for row in rows} == {None, kept}


@pytest.mark.slow
def test_five_thousand_near_equal_texts_cost_a_linear_number_of_comparisons(tmp_path: Path) -> None:
    """All differ from one text in their last word: any two have a Jaccard of 1198/1202 or so."""
    start = " ".join(random_words("near", 600))
    job = one_file([Doc(text=f"{start} {number}") for number in range(5_000)]).job(tmp_path)
    result = deduplicate(job)
    assert result.counts.capped_buckets == 16
    assert result.counts.candidate_pairs <= 16 * 2 * 5_000
    assert result.counts.dropped["dedup.near"] == 4_999


@pytest.mark.slow
def test_an_object_store_gives_the_same_bytes(tmp_path: Path) -> None:
    corpus, options = varied_corpus(), {"rows_per_partition": 200}
    corpus.verdicts(tmp_path / "disk", **options)
    job, local = corpus.job(tmp_path / "local", **options), Folder(str(tmp_path / "local"))
    with s3_server("dedup"):
        remote = Folder("s3://dedup/out")
        for name in local.names():
            remote.publish(name, local.read(name))
        job = replace(job, work=remote.folder("work"), out=remote)
        found = {
            group.name.rsplit("/", 1)[-1]: job.work.read(group.name) for group in deduplicate(job).verdicts
        }
    assert found == published(tmp_path / "disk")
