"""A run from the texts that an earlier one kept gives the bytes of a run from the inputs, and reads none of
these."""

from __future__ import annotations

import io
import os
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lineage.ids import content_hash
from lineage.index.checksums import DamagedFileError
from lineage.index.output_index import read_index
from lineage.index.parsed_texts import publish_texts, read_parsed_texts
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.verify.output import verify
from pipeline.inspect.hooks import verify_hooks
from pipeline.results.rows import read_rows
from pipeline.units.files import MEASURED_FILE, ROW
from stages.chain import attempt
from stages.document import Document, Outcome
from stages.tokens.tokenizer import Tokenizer
from tests.pipeline.refilter.conftest import make_earlier, write_crawl
from tests.support.checkout import ROOT
from tests.support.outputs.lineage_query import query
from tests.support.outputs.parsed_texts import CUTTING, EDITING, RULES, Tables, recipe
from tests.support.outputs.runs import fingerprint, run


@pytest.fixture(scope="module")
def crawl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of this module alone: `out_of_reach` takes it away, and other files' tests run at the same time."""
    folder = tmp_path_factory.mktemp("crawl-to-move")
    write_crawl(folder)
    return folder


@pytest.fixture(scope="module")
def earlier(crawl: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return make_earlier(crawl, tmp_path_factory.mktemp("earlier"))


@contextmanager
def out_of_reach(crawl: Path) -> Iterator[None]:
    """Without the input files: nothing may read them."""
    away = crawl.with_name("away")
    shutil.move(crawl, away)
    try:
        yield
    finally:
        shutil.move(away, crawl)


def kept(out: str) -> dict[str, str]:
    """The hash of every file of parsed texts, and of the rows of their facts."""
    folder, texts = Folder(out), read_parsed_texts(Folder(out))
    assert texts is not None and texts.num_rows
    return {part.file: content_hash(folder.read(part.file)).hex() for part in texts.parts}


def _more(tables: Tables, **quality: Any) -> Tables:
    return {**tables, "quality": {**tables["quality"], **quality}}


CHANGES: dict[str, tuple[str, Tables]] = {
    "a threshold of quality": ("plain", {"quality": {"min_words": 120}}),
    "a threshold that keeps more": ("plain", {"quality": {"min_words": 2, "min_stop_words": 0}}),
    "several thresholds, looser and stricter": (
        "plain",
        {"quality": {"min_words": 70, "max_words": 150, "min_stop_words": 1, "max_duplicate_lines": 0.1}},
    ),
    "a threshold of one language": ("plain", {"quality": {"language": {"de": {"min_words": 150}}}}),
    "a rule that is switched off": ("plain", {"quality": {"rules": ["gopher_quality"]}}),
    "a threshold before an edit": ("cutting", _more(CUTTING, min_words=120)),
    "a threshold behind an edit": (
        "cutting",
        _more(CUTTING, fineweb_max_short_lines=0.3, c4_min_sentences=9),
    ),
    "what an edit takes": ("cutting", _more(CUTTING, c4_min_words_per_line=8)),
    "the score of a language": ("plain", {"language": {"min_score": 0.99}}),
    "a language more": ("plain", {"language": {"keep": ["en", "de", "fr", "es", "it"]}}),
    "only how personal data is treated": ("plain", {"pii": {"action": "drop"}}),
    "only what counts as a duplicate": ("plain", {"dedup": {"threshold": 0.95}}),
    "only the tokenizer's shards": ("plain", {"tokenize": {"shard_tokens": 3_000}, "run": {"seed": 5}}),
    "rules that edit texts": ("plain", {"quality": {"rules": RULES}}),
    "without a ledger": ("editing", {**EDITING, "quality": {**EDITING["quality"], "ledger": "first"}}),
    "a rule that edits": (
        "editing",
        {**EDITING, "quality": {**EDITING["quality"], "c4_min_words_per_line": 8}},
    ),
    "what comes behind an edit": ("editing", {**EDITING, "pii": {"kinds": ["email"]}}),
    "duplicates of edited texts": ("editing", {**EDITING, "dedup": {"near": False}}),
    "the last step is off": ("plain", {"pii": {"kinds": []}}),
    "the last step is off, behind an edit": ("editing", {**EDITING, "pii": {"kinds": []}}),
}


FAST = (
    "a threshold of quality",
    "several thresholds, looser and stricter",
    "a threshold behind an edit",
    "only what counts as a duplicate",
    "a rule that edits",
    "what comes behind an edit",
    "the last step is off, behind an edit",
)


@pytest.mark.parametrize(
    "change", [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in CHANGES]
)
def test_a_changed_recipe_gives_the_bytes_of_a_run_from_the_inputs(
    change: str, crawl: Path, earlier: dict[str, str], tmp_path: Path
) -> None:
    base, tables = CHANGES[change]
    there, here = str(tmp_path / "there"), str(tmp_path / "here")
    run(tmp_path / "a", recipe(crawl, there, tables))
    with out_of_reach(crawl):
        run(tmp_path / "b", recipe(crawl, here, tables), earlier[base])
    assert fingerprint(here) == fingerprint(there)
    assert kept(here) == kept(there)
    assert verify(Folder(here), verify_hooks(Folder(here))).problems == ()


def test_a_run_that_kept_nothing_serves_one_that_keeps_more(crawl: Path, tmp_path: Path) -> None:
    nothing, here, there = (str(tmp_path / name) for name in ("nothing", "here", "there"))
    assert run(tmp_path / "a", recipe(crawl, nothing, {"quality": {"min_words": 5000}}))["num_kept"] == 0
    run(tmp_path / "b", recipe(crawl, here), nothing)
    run(tmp_path / "c", recipe(crawl, there))
    assert fingerprint(here) == fingerprint(there)


STRICTER: dict[str, tuple[str, Tables]] = {
    "plain": ("plain", {"quality": {"min_words": 120}}),
    "behind an edit": ("cutting", _more(CUTTING, min_words=120)),
}


@pytest.mark.parametrize("what", STRICTER)
def test_a_stricter_threshold_is_judged_by_what_was_measured(
    what: str, crawl: Path, earlier: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No text is measured again, and no step behind quality is asked about a text that survived."""
    base, tables = STRICTER[what]
    asked: list[str] = []

    def watch(step: Any, document: Document) -> Outcome:
        asked.append(step.stage)
        return attempt(step, document)

    monkeypatch.setattr("stages.chain.attempt", watch)
    rows = query(Folder(earlier[base]), "SELECT count(*) FROM documents WHERE status <> 'rejected'").rows
    summary = run(tmp_path, recipe(crawl, str(tmp_path / "out"), tables), earlier[base])
    assert 0 < summary["num_kept"] < rows[0][0]
    assert asked == []


def tokens_only(texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text that is given to a tokenizer goes into `texts`."""
    encode = Tokenizer.encode_batch

    def watch(self: Tokenizer, given: Sequence[str]) -> Any:
        texts.extend(given)
        return encode(self, given)

    monkeypatch.setattr(Tokenizer, "encode_batch", watch)


@pytest.mark.parametrize("change", ["a threshold of quality", "rules that edit texts"])
def test_only_a_text_that_is_new_is_tokenized(
    change: str, crawl: Path, earlier: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, tables = CHANGES[change]
    texts: list[str] = []
    tokens_only(texts, monkeypatch)
    run(tmp_path, recipe(crawl, str(tmp_path / "out"), tables), earlier[base])
    had, has = clean_texts(earlier[base]), clean_texts(str(tmp_path / "out"))
    assert sorted(texts) == sorted(text for doc_id, text in has.items() if had.get(doc_id) != text)
    assert bool(texts) == (change == "rules that edit texts")


def clean_texts(out: str) -> dict[bytes, str]:
    """The text of each kept document."""
    found = Folder(out)
    kept = {row[0] for row in query(found, "SELECT doc_id FROM documents WHERE status = 'kept'").rows}
    rows = [row for part in read_index(found).documents for row in read_rows(found, part.file).to_pylist()]
    return {row["doc_id"]: row["text"] for row in rows if row["doc_id"].hex() in kept}


@pytest.mark.parametrize("tokenize", [{"end_of_text": "<|fim_suffix|>"}, {"encoding": "o200k_base"}])
def test_another_tokenizer_copies_no_tokens(
    tokenize: dict[str, str],
    crawl: Path,
    earlier: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts: list[str] = []
    tokens_only(texts, monkeypatch)
    here = str(tmp_path / "out")
    run(tmp_path, recipe(crawl, here, {"tokenize": tokenize}), earlier["plain"])
    assert sorted(texts) == sorted(clean_texts(here).values())


def test_tokens_that_are_not_those_of_the_index_are_not_copied(
    crawl: Path, earlier: dict[str, str], tmp_path: Path
) -> None:
    damaged = tmp_path / "earlier"
    shutil.copytree(earlier["plain"], damaged)
    shard = damaged / read_index(Folder(str(damaged))).shards[0].file
    data = bytearray(shard.read_bytes())
    data[::4] = bytes(byte ^ 1 for byte in data[::4])
    shard.write_bytes(data)
    changed: Tables = {"quality": {"min_words": 120}}
    with pytest.raises(DamagedFileError, match=r"\.bin does not hold the tokens of .* run sluice verify"):
        run(tmp_path / "a", recipe(crawl, str(tmp_path / "out"), changed), str(damaged))


def test_without_what_later_builds_add_texts_are_measured_again(
    crawl: Path, earlier: dict[str, str], tmp_path: Path
) -> None:
    older, here, there = (tmp_path / name for name in ("older", "here", "there"))
    shutil.copytree(earlier["plain"], older)
    found = read_parsed_texts(Folder(str(older)))
    assert found is not None
    parts = []
    for part in found.parts:
        data = io.BytesIO()
        with zipfile.ZipFile(older / part.facts) as packed, zipfile.ZipFile(data, "w") as without:
            for name in packed.namelist():
                if name != MEASURED_FILE:
                    without.writestr(name, _without_rows(packed.read(name)))
        (older / part.facts).write_bytes(data.getvalue())
        parts.append(replace(part, facts_hash=content_hash(data.getvalue()).hex()))
    publish_texts(Folder(str(older)), parts, kept=True)
    changed: Tables = {"quality": {"min_words": 120}}
    run(tmp_path / "a", recipe(crawl, str(here), changed), str(older))
    run(tmp_path / "b", recipe(crawl, str(there), changed), earlier["plain"])
    assert fingerprint(str(here)) == fingerprint(str(there))


def _without_rows(data: bytes) -> bytes:
    """A table without the numbers that tell records of one id apart."""
    if not data.startswith(b"PAR1"):
        return data
    table, written = pq.read_table(io.BytesIO(data)), io.BytesIO()
    pq.write_table(table.drop_columns([ROW]) if ROW in table.column_names else table, written)
    return written.getvalue()


def test_a_run_from_parsed_texts_serves_another(crawl: Path, earlier: dict[str, str], tmp_path: Path) -> None:
    middle, last, there = (str(tmp_path / name) for name in ("middle", "last", "there"))
    first, second = {"quality": {"min_words": 120}}, {"quality": {"min_words": 60}, "pii": {"action": "drop"}}
    with out_of_reach(crawl):
        run(tmp_path / "a", recipe(crawl, middle, first), earlier["plain"])
        run(tmp_path / "b", recipe(crawl, last, second), middle)
    run(tmp_path / "c", recipe(crawl, there, second))
    assert fingerprint(last) == fingerprint(there)
    sql = 'SELECT DISTINCT "out" FROM reused_steps'
    assert query(Folder(last), sql).rows == [(earlier["plain"],)], (
        "the steps ran in the first of the three runs"
    )


def named(crawl: Path, out: str, language: str, *tables: Tables) -> dict[str, Any]:
    """A recipe that names the language of all posts, and asks no model for it."""
    plain = recipe(crawl, out, *tables)
    plain["source"][1] |= {
        "language": language,
        "steps": ["parse", "quality", "pii", "identity", "dedup.exact"],
    }
    return plain


def test_the_language_that_a_source_names_is_that_of_its_texts(crawl: Path, tmp_path: Path) -> None:
    """In lineage and in the clean texts; for the rules, which judge German texts named so by German words;
    and in a run from the texts."""
    first, there, here, same = (str(tmp_path / name) for name in ("first", "there", "here", "same"))
    stricter: Tables = {"quality": {"min_words": 120}}
    run(tmp_path / "a", named(crawl, first, "en"))
    run(tmp_path / "b", named(crawl, there, "en", stricter))
    with out_of_reach(crawl):
        run(tmp_path / "c", named(crawl, here, "en", stricter), first)
        run(tmp_path / "d", named(crawl, same, "en", {"dedup": {"threshold": 0.95}}), first)
    assert fingerprint(here) == fingerprint(there)
    for out in (first, here, same):
        rows = query(
            Folder(out), "SELECT DISTINCT language, language_score FROM documents WHERE source = 'posts'"
        ).rows
        assert rows == [("en", None)]
        texts = query(
            Folder(out), "SELECT count(*) FROM documents WHERE source = 'posts' AND status = 'kept'"
        ).rows
        assert texts[0][0]
    wrong = str(tmp_path / "wrong")
    run(tmp_path / "e", named(crawl, wrong, "de"))
    rules = query(
        Folder(wrong), "SELECT rule FROM documents WHERE source = 'posts' GROUP BY 1 ORDER BY count(*) DESC"
    )
    assert rules.rows[0] == ("gopher_quality.too_few_stop_words",)
    with pytest.raises(
        RecipeError, match=r"the reading of source 'posts' .*source\.language is 'de' now and was 'en'"
    ):
        run(tmp_path / "f", named(crawl, str(tmp_path / "other"), "de"), first)


def test_lineage_names_the_run_that_ran_each_step_and_joins_it(
    crawl: Path, earlier: dict[str, str], tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    summary = run(tmp_path, recipe(crawl, out, {"quality": {"min_words": 120}}), earlier["plain"])
    assert summary["from_output"] == earlier["plain"]
    rows = query(
        Folder(out), "SELECT source, stage, position, run, version FROM reused_steps ORDER BY 1, 3"
    ).rows
    stages = ("url", "parse", "language")
    assert rows == [
        (name, stage, at, "test", 1) for name in ("posts", "web") for at, stage in enumerate(stages)
    ]
    before = query(Folder(earlier["plain"]), "SELECT doc_id, url, text_hash FROM documents ORDER BY ALL").rows
    assert query(Folder(out), "SELECT doc_id, url, text_hash FROM documents ORDER BY ALL").rows == before


def test_what_steps_raised_is_told_again(
    crawl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One before parse, one behind it that does not run again; both turn the same records down as in the
    first run."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    step = "tests.support.steps.failing_steps:fail_on_seven"

    def made(out: str, least: float) -> dict[str, Any]:
        plain = recipe(crawl, out, {"dedup": {"threshold": least}, "limits": {"max_bad_records": 1.0}})
        for source, place in zip(plain["source"], (1, 2), strict=True):
            source["steps"] = ["url", "parse", "language", "pii", "identity", "dedup.near"]
            source["steps"].insert(place, step)
        return plain

    first, here, there = (str(tmp_path / name) for name in ("first", "here", "there"))
    run(tmp_path / "a", made(first, 0.8))
    found = run(tmp_path / "b", made(here, 0.9), first)
    assert found["faults"] == run(tmp_path / "c", made(there, 0.9))["faults"] != []
    assert fingerprint(here) == fingerprint(there)


def test_what_a_step_raised_that_is_gone_is_not_told(
    crawl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    first, here = str(tmp_path / "first"), str(tmp_path / "here")
    steps = ["url", "parse", "language", "pii", "identity", "dedup.near"]
    failing = [*steps[:4], "tests.support.steps.failing_steps:fail_on_seven", *steps[4:]]

    def made(out: str, of_source: list[str]) -> dict[str, Any]:
        plain = recipe(crawl, out, {"limits": {"max_bad_records": 1.0}})
        return {**plain, "source": [{**source, "steps": of_source} for source in plain["source"]]}

    assert run(tmp_path / "a", made(first, failing))["faults"]
    assert run(tmp_path / "b", made(here, steps), first)["faults"] == []
    sql = "SELECT count(*) FROM documents WHERE rule LIKE '%error'"
    assert query(Folder(first), sql).rows != query(Folder(here), sql).rows == [(0,)]
