"""What is cut inside the documents of a corpus is what brute force and the references cut, and stays where it is said
to."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.support.texts import extracted
from pipeline.dedup.exchange import Exchange, InPhases, InProcess
from pipeline.dedup.inside.flow import look_inside
from pipeline.results.dedup_result import DedupCounts
from stages.dedup.inside.options import InsideTable
from stages.dedup.options import DedupTable
from tests.support.inputs.dedup_corpus import Corpus, Doc
from tests.support.inputs.inside_corpus import (
    Looked,
    beside_googles_tool,
    bff_paragraphs,
    brute_force,
    ccnet_lines,
    check_twins,
    in_order,
    inside_job,
    look,
    read_found,
)
from tests.support.outputs.runs import run_in

SUBSTRING = InsideTable(method="substring", min_bytes=48, min_chars=60)
LINE = InsideTable(method="line", min_chars=60)
PARAGRAPH = InsideTable(method="paragraph", ngram=5, min_ngram=3, min_chars=1)
METHODS = {"substring": SUBSTRING, "line": LINE, "paragraph": PARAGRAPH}
_TABLE = DedupTable(url=False, exact=True, near=False)


def prose(chosen: random.Random, num_words: int) -> str:
    """Words of several scripts, some with marks of their own."""
    letters = chosen.choice(["abcdefgh", "abcdefgh", "aeé\u0301ñø", "日本語文字列", "абвгд"])
    return " ".join(
        "".join(chosen.choice(letters) for _ in range(chosen.randrange(1, 8))) for _ in range(num_words)
    )


def corpus_of(seed: int, num_docs: int = 60, num_files: int = 5) -> Corpus:
    """Documents that share passages, among themselves and with themselves; some stand twice."""
    chosen = random.Random(seed)
    shared = [prose(chosen, chosen.randrange(4, 40)) for _ in range(8)]
    docs = []
    for number in range(num_docs):
        parts = [prose(chosen, chosen.randrange(1, 40)) for _ in range(chosen.randrange(4))]
        parts += [chosen.choice(shared) for _ in range(chosen.choice([0, 1, 1, 2, 5]))]
        chosen.shuffle(parts)
        text = chosen.choice([" ", "\n", "", "\n\n"]).join(parts)
        docs.append(Doc(text=text, name=f"{number}"))
        if number % 9 == 0:
            docs.append(Doc(text=text, name=f"copy of {number}"))
    per_file = -(-len(docs) // num_files)
    files = {(n // 3, n): docs[n * per_file : (n + 1) * per_file] for n in range(num_files)}
    return Corpus(files=files, table=_TABLE, group_files=2)


def compared(corpus: Corpus) -> list[Doc]:
    """The documents that are compared: of equal texts the first."""
    seen: dict[str, Doc] = {}
    for doc in in_order(doc for docs in corpus.files.values() for doc in docs):
        seen.setdefault(doc.text, doc)
    return list(seen.values())


@pytest.mark.parametrize("seed", range(6))
def test_every_run_that_stands_before_is_cut_and_nothing_else(seed: int, tmp_path: Path) -> None:
    corpus = corpus_of(seed)
    looked = look(corpus, tmp_path, SUBSTRING, chars_a_piece=700, chars_a_partition=2_000)
    stretches, rejected = brute_force(compared(corpus), SUBSTRING)
    assert looked.rejected == rejected and rejected
    assert looked.stretches == stretches and stretches
    assert check_twins(corpus, looked) >= len(stretches)
    beside = beside_googles_tool(corpus, looked, SUBSTRING.min_bytes)
    assert 0 < beside.num_cut < beside.num_both == beside.num_ours


@pytest.mark.slow
@pytest.mark.parametrize("min_bytes", [100, 500])
def test_on_real_pages_with_planted_copies_it_is_what_brute_force_cuts(
    min_bytes: int, real_data: Path, tmp_path: Path
) -> None:
    chosen = random.Random(min_bytes)
    texts = [text for text in extracted(real_data / "crawl", "resiliparse", 400) if text][:300]
    for _ in range(60):  # across documents, and inside one
        source, target = chosen.choice(texts), chosen.randrange(len(texts))
        begin = chosen.randrange(max(1, len(source) - 700))
        place = chosen.randrange(len(texts[target]) + 1)
        copied = source[begin : begin + chosen.randrange(90, 700)]
        texts[target] = texts[target][:place] + copied + texts[target][place:]
        if chosen.random() < 0.3:
            texts[target] += "\n" + copied
    docs = [Doc(text=text, name=str(number)) for number, text in enumerate(texts)]
    corpus = Corpus(files={(0, 0): docs[:150], (0, 1): docs[150:]}, table=_TABLE)
    table = InsideTable(method="substring", min_bytes=min_bytes)
    looked = look(corpus, tmp_path, table, chars_a_piece=200_000, chars_a_partition=200_000)
    stretches, rejected = brute_force(compared(corpus), table)
    assert looked.rejected == rejected
    assert looked.stretches == stretches and len(stretches) >= 20
    assert check_twins(corpus, looked) >= len(stretches)
    # But for what is left at the ends, to keep words whole, it is what Google's tool names, and nothing else.
    beside = beside_googles_tool(corpus, looked, min_bytes)
    assert beside.num_both == beside.num_ours
    assert beside.num_both > 0.99 * beside.num_named


@pytest.mark.parametrize("seed", range(2))
def test_text_between_cuts_goes_with_them_unless_a_cut_relies_on_it(seed: int, tmp_path: Path) -> None:
    corpus = corpus_of(seed + 50)
    table = replace(SUBSTRING, max_gap=40)
    looked = look(corpus, tmp_path, table, chars_a_piece=700)
    gaps = [cut for cuts in looked.cuts.values() for cut in cuts if cut.twin is None]
    assert gaps and all(cut.end - cut.start <= 40 for cut in gaps)
    assert check_twins(corpus, looked)
    narrow = look(corpus, tmp_path / "without", SUBSTRING)
    for doc_id, cuts in narrow.cuts.items():
        if doc_id not in looked.rejected and narrow.rejected == looked.rejected:
            assert all(cut in _covered(looked, doc_id) for cut in _places(cuts))


@pytest.mark.parametrize("period", [".", "哈", "- ", "一\n"])
def test_a_short_text_repeated_back_to_back_stays_once_and_takes_few_rounds(
    period: str, tmp_path: Path
) -> None:
    text = f"Contents {period * 400} and what follows on it goes on for some sixty characters more."
    corpus = Corpus(files={(0, 0): [Doc(text=text)]}, table=_TABLE)
    job = inside_job(corpus, tmp_path, SUBSTRING)
    heard: list[str] = []
    looked = read_found(corpus, job, look_inside(job, InProcess(), heard.append))
    (left,) = looked.left.values()
    assert left.count(period) < 4 and len(left) > 60
    assert check_twins(corpus, looked)
    # One twin is one period before its cut: without doubling the way, there are as many rounds as periods in min_bytes.
    assert sum(name.startswith("twins-") for name in heard) <= 8


def test_a_document_of_which_no_whole_line_is_repeated_keeps_its_text(tmp_path: Path) -> None:
    passage = "the end of a line that others have too\nand the begin of the next"
    docs = [Doc(text=f"{name} {passage} {name}", name=name) for name in ("a", "bb")]
    table = replace(SUBSTRING, border="line", min_chars=10_000)
    looked = look(Corpus(files={(0, 0): docs}, table=_TABLE), tmp_path, table)
    assert not looked.cuts and not looked.rejected


def _places(cuts: list[Any]) -> set[int]:
    return {place for cut in cuts for place in range(cut.start, cut.end)}


def _covered(looked: Looked, doc_id: bytes) -> set[int]:
    return _places(looked.cuts.get(doc_id, []))


def test_lines_are_cut_as_ccnet_cuts_them(tmp_path: Path) -> None:
    chosen = random.Random(7)
    lines = ["", "Menu", "menu ", "Tel. 12–34", "tel. 56–78", "Über uns…", "日本。"] + [
        prose(chosen, 4) for _ in range(40)
    ]
    docs = [
        Doc(text="\n".join(chosen.choice(lines) for _ in range(chosen.randrange(1, 14))), name=str(number))
        for number in range(80)
    ]
    corpus = Corpus(files={(0, 0): docs[:50], (0, 1): docs[50:]}, table=replace(_TABLE, exact=False))
    table = replace(LINE, min_chars=1, share=0.5)
    looked = look(corpus, tmp_path, table, chars_a_piece=300, chars_a_partition=500)
    # A document without a line left keeps nothing, and does without the second round in this reference.
    found = ccnet_lines([doc for doc in docs if doc.doc_id not in looked.rejected], num_shares=2)
    num_cut = 0
    for doc in docs:
        if doc.doc_id in looked.rejected:
            continue
        gone = set(found[doc.doc_id])
        left = "\n".join(line for n, line in enumerate(doc.text.split("\n")) if n not in gone)
        assert looked.left[doc.doc_id] == left
        num_cut += len(gone)
    assert num_cut > 50 and looked.rejected


def test_paragraphs_are_cut_as_bff_cuts_them(tmp_path: Path) -> None:
    chosen = random.Random(8)
    known = [[prose(chosen, 1) for _ in range(chosen.randrange(1, 30))] for _ in range(20)]

    def paragraph() -> str:
        words = list(chosen.choice(known))
        for _ in range(chosen.randrange(3)):
            words[chosen.randrange(len(words))] = prose(chosen, 1)
        return " ".join(words + [prose(chosen, 1)] * chosen.randrange(2))

    docs = [
        Doc(text="\n".join(paragraph() for _ in range(chosen.randrange(1, 9))), name=str(number))
        for number in range(150)
    ]
    corpus = Corpus(files={(0, 0): docs[:70], (1, 0): docs[70:]}, table=replace(_TABLE, exact=False))
    looked = look(corpus, tmp_path, PARAGRAPH, chars_a_piece=2_000, chars_a_partition=3_000)
    assert (tmp_path / "work/dedup/inside/states-1").is_dir(), "chains of decisions need more than one round"
    gone, emptied = bff_paragraphs(docs, PARAGRAPH)
    assert {doc_id for doc_id, rule in looked.rejected.items() if rule.endswith("whole_document")} == emptied
    assert emptied
    num_cut = 0
    for doc in docs:
        if doc.doc_id not in looked.rejected:
            left = [line for n, line in enumerate(doc.text.split("\n")) if n not in gone[doc.doc_id]]
            assert looked.left[doc.doc_id] == "\n".join(left)
            num_cut += len(gone[doc.doc_id])
    assert num_cut > 30


@pytest.mark.parametrize("keep", ["earliest", "newest"])
def test_the_copy_that_stays_is_that_of_the_document_that_dedup_keep_prefers(
    keep: Any, tmp_path: Path
) -> None:
    passage = prose(random.Random(1), 40)
    docs = [
        Doc(text=f"{name}. {passage} {prose(random.Random(name), 30)}", name=name, captured_at=time)
        for name, time in (("a", None), ("b", "2024-05-01T00:00:00Z"), ("c", "2025-05-01T00:00:00Z"))
    ]
    corpus = Corpus(files={(0, 0): docs}, table=replace(_TABLE, keep=keep))
    looked = look(corpus, tmp_path, SUBSTRING)
    kept = docs[1] if keep == "earliest" else docs[2]
    assert looked.left[kept.doc_id] == kept.text
    others = [doc for doc in docs if doc is not kept]
    assert all(passage not in looked.left[doc.doc_id] for doc in others)
    assert all(cut.twin == kept.doc_id for doc in others for cut in looked.cuts[doc.doc_id])


def published(root: Path) -> dict[str, bytes]:
    """The files of what was found, by name."""
    folder = root / "work/dedup/inside"
    return {
        f"{kind}/{file.name}": file.read_bytes()
        for kind in ("found", "verdicts")
        for file in sorted((folder / kind).glob("*.parquet"))
    }


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("options", [{"chars_a_piece": 400}, {"chars_a_partition": 100}])
def test_however_the_work_is_cut_the_result_is_the_same(
    method: str, options: dict[str, int], tmp_path: Path
) -> None:
    corpus = corpus_of(3)
    whole = look(corpus, tmp_path / "whole", METHODS[method])
    cut = look(corpus, tmp_path / "cut", METHODS[method], **options)
    assert (cut.cuts, cut.rejected) == (whole.cuts, whole.rejected) and whole.cuts


class ShufflingEngine(InProcess):
    """Gives a reducer the rows of its partition in an order that nothing promises."""

    def run(self, exchange: Exchange) -> dict[int, DedupCounts]:
        def reduce(number: int, rows: Any) -> DedupCounts:
            order = random.Random(number).sample(range(len(rows)), len(rows))
            return exchange.reduce(number, rows.take(order))

        return super().run(replace(exchange, reduce=reduce))


@pytest.mark.parametrize("method", METHODS)
def test_in_whatever_order_rows_meet_the_bytes_are_the_same(method: str, tmp_path: Path) -> None:
    corpus, options = corpus_of(3), {"chars_a_piece": 900, "chars_a_partition": 2_000}
    look(corpus, tmp_path / "in order", METHODS[method], **options)
    look(corpus, tmp_path / "shuffled", METHODS[method], ShufflingEngine(), **options)
    assert published(tmp_path / "in order") == published(tmp_path / "shuffled")
    assert len(published(tmp_path / "in order")) > 3


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_tasks_on_ray_publish_the_same_bytes(method: str, tmp_path: Path, small_ray: None) -> None:
    corpus, options = corpus_of(4), {"chars_a_piece": 900, "chars_a_partition": 2_000}
    look(corpus, tmp_path / "here", METHODS[method], **options)
    look(corpus, tmp_path / "ray", METHODS[method], InPhases(run_in(tmp_path / "ray")), **options)
    assert published(tmp_path / "here") == published(tmp_path / "ray")
    assert len(published(tmp_path / "here")) > 3


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


def num_phases(looking: Callable[[Callable[[str], None]], Any]) -> int:
    heard: list[str] = []
    looking(heard.append)
    return len(heard)


@pytest.mark.parametrize("method", METHODS)
def test_killed_in_any_phase_it_repeats_no_finished_one(method: str, tmp_path: Path) -> None:
    corpus, table = corpus_of(5), METHODS[method]
    options = {"chars_a_piece": 900}
    whole = inside_job(corpus, tmp_path / "whole", table, **options)
    total = num_phases(lambda notify: look_inside(whole, InProcess(), notify))
    expected = published(tmp_path / "whole")
    assert total > 5 and len(expected) > 2
    for last in range(0, total, 2 if method == "substring" else 4):
        root = tmp_path / f"{last}"
        job = inside_job(corpus, root, table, **options)
        with pytest.raises(KilledError):
            look_inside(job, DyingEngine(last))
        assert num_phases(lambda notify, job=job: look_inside(job, InProcess(), notify)) == total - last
        assert published(root) == expected


def test_a_corpus_without_documents_has_no_cuts(tmp_path: Path) -> None:
    looked = look(Corpus(files={(0, 0): []}, table=_TABLE), tmp_path, SUBSTRING)
    assert not looked.cuts and not looked.rejected


def test_documents_too_short_for_a_window_are_left_alone(tmp_path: Path) -> None:
    docs = [Doc(text="x" * number, name=str(number)) for number in range(48)]
    looked = look(Corpus(files={(0, 0): docs}, table=_TABLE), tmp_path, SUBSTRING)
    assert not looked.cuts and not looked.rejected


def test_what_was_found_is_read_again_without_work(tmp_path: Path) -> None:
    corpus = corpus_of(6)
    job = inside_job(corpus, tmp_path, SUBSTRING)
    first = look_inside(job, InProcess())
    heard: list[str] = []
    again = look_inside(job, InProcess(), heard.append)
    assert not heard
    assert read_found(corpus, job, first).cuts == read_found(corpus, job, again).cuts
