"""What the report says of first tokens, ends and unknown tokens, read from the shards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from pipeline.plan import versions
from pipeline.report import tokens as report_tokens
from pipeline.report.tokens import tokens_of_sources
from tests.support.outputs.purging import by_doc, purge
from tests.support.outputs.small_out.output import make_small_out

Tokens = npt.NDArray[np.uint32]


def test_first_tokens_and_ends_are_those_of_the_shards(tmp_path: Path) -> None:
    made = make_small_out(str(tmp_path / "out"))
    kept = [record for record in made.records if record.status == "kept" and record.source == "web"]
    purge(made.folder, by_doc(kept[3]))
    from lineage.index.output_index import read_index

    index = read_index(made.folder)
    rows = {row.source: row for row in tokens_of_sources(made.folder, index, {})}
    assert list(rows) == ["books", "web"]
    row = rows["web"]
    expected: dict[int, int] = {}
    left = [record for record in kept if record.doc_id != kept[3].doc_id]
    for record in left:
        first = int(made.tokenizer.encode(record.text)[0])
        expected[first] = expected.get(first, 0) + 1
    assert (row.num_documents, row.num_ended, row.is_sample, row.has_unknown) == (
        len(left),
        len(left),
        False,
        False,
    )
    assert row.num_tokens == sum(len(made.tokenizer.encode(record.text)) + 1 for record in left)
    assert len(row.first) == 5 and not row.begins_alike
    for token in row.first:
        assert expected[token.id] == round(token.share * len(left)) == max(1, expected[token.id])
        assert token.text == repr(made.tokenizer.decode(np.array([token.id], dtype=np.uint32)))
    assert [token.share for token in row.first] == sorted((token.share for token in row.first), reverse=True)


def test_a_beginning_of_text_token_and_missing_ends_are_seen(tmp_path: Path) -> None:
    def plant(doc_id: bytes, tokens: Tokens) -> Tokens:
        begun = np.insert(tokens, 0, np.uint32(100_276))
        return begun[:-1] if doc_id[0] % 2 else begun

    made = make_small_out(str(tmp_path / "out"), plant=plant)
    (row,) = [row for row in tokens_of_sources(made.folder, made.index, {}) if row.source == "web"]
    assert row.begins_alike
    assert (row.first[0].id, row.first[0].text, row.first[0].share) == (100_276, "'<|endofprompt|>'", 1.0)
    assert 0 < row.num_ended < row.num_documents


def test_where_the_libraries_are_those_of_the_run_no_tokenizer_is_loaded_and_the_rows_are_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_small_out(str(tmp_path / "out"))
    by_tokenizer = tokens_of_sources(made.folder, made.index, {})
    assert all(token.text not in ("", "''") for row in by_tokenizer for token in row.first)
    monkeypatch.setattr(report_tokens, "tokenizer_of", _missing)
    assert tokens_of_sources(made.folder, made.index, versions()) == by_tokenizer
    rows = tokens_of_sources(made.folder, made.index, versions() | {"quicktok-v1": "0.3.9"})
    assert {token.text for row in rows for token in row.first} == {""}


def test_a_special_token_has_its_text_where_the_libraries_are_those_of_the_run(tmp_path: Path) -> None:
    made = make_small_out(
        str(tmp_path / "out"), plant=lambda _, tokens: np.insert(tokens, 0, np.uint32(100_276))
    )
    (row,) = [row for row in tokens_of_sources(made.folder, made.index, versions()) if row.source == "web"]
    assert row.first[0].text == "'<|endofprompt|>'"


def test_unknown_tokens_are_counted_and_a_missing_tokenizer_leaves_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_small_out(str(tmp_path / "out"))
    monkeypatch.setattr(report_tokens, "tokenizer_of", lambda *_: _KnowsAll(made.tokenizer.encode(" ")[0]))
    counted = sum(row.num_unknown for row in tokens_of_sources(made.folder, made.index, {}))
    spaces = made.tokenizer.encode(" ")[0]
    assert counted == sum(
        int((np.fromfile(made.folder.at(shard.file), "<u4") == spaces).sum()) for shard in made.index.shards
    )
    assert all(row.has_unknown for row in tokens_of_sources(made.folder, made.index, {}))
    monkeypatch.setattr(report_tokens, "tokenizer_of", _missing)
    rows = tokens_of_sources(made.folder, made.index, {})
    assert not any(row.has_unknown for row in rows)
    assert {token.text for row in rows for token in row.first} == {""}


class _KnowsAll:
    def __init__(self, unknown_id: int) -> None:
        self.unknown_id = int(unknown_id)

    def decode(self, tokens: Tokens) -> str:
        return str(tokens[0])


def _missing(*_: object) -> None:
    from lineage.recipe import RecipeError

    raise RecipeError("no such file")


def test_of_a_large_source_the_beginnings_of_some_shards_are_a_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_small_out(str(tmp_path / "out"), per_file=40)
    monkeypatch.setattr(report_tokens, "BLOCK_TOKENS", 50)
    monkeypatch.setattr(report_tokens, "BLOCK_BYTES", 1200)
    (row,) = [row for row in tokens_of_sources(made.folder, made.index, {}) if row.source == "web"]
    assert row.is_sample
    assert 0 < row.num_documents == row.num_ended < sum(s.num_documents for s in made.index.shards)
    assert row.num_tokens <= 8 * 300
