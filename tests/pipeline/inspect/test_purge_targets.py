"""A purge by what people have: lists of ids or URLs, conditions, sources, input files."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import zstandard

from lineage.pages import normalise_url
from lineage.purge.plan import PurgeMatch, plan_purge
from lineage.purge.purge_filter import read_purged_sets
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.trace.tracer import UnknownError
from pipeline.inspect.purge_targets import (
    PurgeTargets,
    is_scan_evidence,
    listed_targets,
    targets_of_file,
    targets_of_source,
    targets_where,
)
from tests.support.outputs.lineage_query import query
from tests.support.outputs.purging import purge
from tests.support.outputs.small_out.hooks import plan_hooks
from tests.support.outputs.small_out.output import SmallOut, make_small_out

UNKNOWN = "f" * 32
SHARED = "web-00000.warc.gz"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SmallOut:
    return make_small_out(str(tmp_path_factory.mktemp("small") / "out"))


def ids_where(made: SmallOut, condition: str) -> list[str]:
    rows = query(made.folder, f"SELECT DISTINCT doc_id FROM documents WHERE {condition} ORDER BY 1").rows
    return [str(row[0]) for row in rows]


def as_text(names: list[str]) -> bytes:
    return ("# a takedown\n\n" + "\n".join(names) + "\n").encode()


def as_csv(names: list[str], *header: str) -> bytes:
    file = io.StringIO()
    rows = csv.writer(file)
    if header:
        rows.writerow(header)
    rows.writerows([name, *["x"] * (len(header) - 1)] for name in names)
    return file.getvalue().encode("utf-8-sig")


@pytest.fixture(scope="module")
def of_one_name(tmp_path_factory: pytest.TempPathFactory) -> SmallOut:
    """An output whose sources read /data/web/… and /data/books/…, one file of each under the name SHARED."""

    def tamper(table: str, rows: pa.Table) -> pa.Table:
        column = {"documents": "warc_file", "inputs": "file"}.get(table)
        if column is None:
            return rows
        named = pc.if_else(pc.equal(rows["source"], "books"), SHARED, rows[column])
        if table == "inputs":
            named = pc.binary_join_element_wise("/data", rows["source"], named, "/")
        return rows.set_column(rows.schema.get_field_index(column), rows.schema.field(column), named)

    return make_small_out(str(tmp_path_factory.mktemp("one_name") / "out"), tamper=tamper)


def as_parquet(names: list[str]) -> bytes:
    file = io.BytesIO()
    pq.write_table(
        pa.table({"note": ["x"] * len(names), "doc_id": [bytes.fromhex(name) for name in names]}), file
    )
    return file.getvalue()


def unknown_names(found: PurgeTargets) -> list[str]:
    """The listed names that the output has not got."""
    return [one.name for one in found.unknown]


@pytest.mark.parametrize(("name", "written"), [
    ("list.txt", as_text),
    ("list.csv", lambda names: as_csv(names, "doc_id", "why")),
    ("plain.csv", as_csv),
    ("list.parquet", as_parquet),
])  # fmt: skip
def test_a_list_of_ids_names_those_that_are_there(
    made: SmallOut, tmp_path: Path, name: str, written: Callable[[list[str]], bytes]
) -> None:
    ids = ids_where(made, "status = 'kept'")[:3]
    (tmp_path / name).write_bytes(written([*ids, UNKNOWN, ids[0]]))
    found = listed_targets(made.folder, str(tmp_path / name))
    assert (found.match.kind, list(found.match.values), unknown_names(found)) == ("doc", ids, [UNKNOWN])
    targets = {row.doc_id.hex() for row in plan_purge(made.folder, found.match, plan_hooks()).rows}
    assert targets >= set(ids)


def test_a_list_of_urls_names_the_documents_of_each_in_any_spelling(made: SmallOut, tmp_path: Path) -> None:
    url, doc_id = query(
        made.folder,
        "SELECT url, doc_id FROM documents WHERE status = 'kept' AND url IS NOT NULL AND cluster_id IS NULL"
        " LIMIT 1",
    ).rows[0]
    listed = [str(url).replace("https://", "HTTPS://"), "https://nowhere.example/"]
    (tmp_path / "urls.csv").write_bytes(as_csv(listed, "url"))
    hooks = plan_hooks()
    found = listed_targets(made.folder, str(tmp_path / "urls.csv"))
    assert (found.match.kind, found.match.values, unknown_names(found)) == ("url", (listed[0],), [listed[1]])
    assert str(doc_id) in {row.doc_id.hex() for row in plan_purge(made.folder, found.match, hooks).rows}


URL_OF_ONE = (
    "SELECT url FROM documents WHERE status = 'kept' AND url IS NOT NULL AND cluster_id IS NULL LIMIT 1"
)


@pytest.mark.parametrize(("name", "data"), [
    ("a.jsonl", '{"url": "<URL>"}\n\n{"URL": " <URL> "}\n'),
    ("a.ndjson", '"<URL>"\n'),
    ("a.json", '["<URL>", {"doc_id": null, "url": "<URL>"}]'),
    ("a.tsv", "url\treason\n<URL>\ta, b\n"),
    ("a.csv", "\ufeffURL,reason\n <URL> ,x\n"),
    ("a.txt", "\ufeffurl\r\n  <URL> \r\n"),
    ("takedown", "<URL>\n"),
    ("a.jsonl.gz", '{"url": "<URL>"}'),
    ("a.txt.zst", "<URL>"),
    ("a.csv.bz2", "url\n<URL>\n"),
])  # fmt: skip
def test_each_ending_is_read_as_what_it_is(made: SmallOut, tmp_path: Path, name: str, data: str) -> None:
    url = str(query(made.folder, URL_OF_ONE).rows[0][0])
    pack = {"gz": gzip.compress, "zst": zstandard.compress, "bz2": bz2.compress}
    written = data.replace("<URL>", url).encode()
    (tmp_path / name).write_bytes(pack.get(name.rpartition(".")[2], bytes)(written))
    found = listed_targets(made.folder, str(tmp_path / name))
    assert (found.match.kind, found.match.values, found.unknown) == ("url", (url,), ())


@pytest.mark.parametrize(("name", "data", "says"), [
    ("a.xlsx", b"PK", "a file that ends in .xlsx is no list that is read"),
    ("a.html", b"https://a.example/", "ends in .html is no list"),
    ("a.txt", b"https://a.example/\nhello world\n", "a.txt, line 2: 'hello world' is neither an id"),
    ("a.txt", b'{"url": "https://a.example/"}\n', "a.txt, line 1: .* is neither an id"),
    ("a.csv", b"url\nhttps://a.example/\nsee mail\n", "a.csv, line 3: 'see mail' is neither"),
    ("a.jsonl", b'{"url": "https://a.example/"}\n{"uri": 1}\n', "line 2: expected a column .*; it has uri"),
    ("a.jsonl", b'{"url": 7}\n', "line 1: '7' is neither"),
    ("a.jsonl", b"https://a.example/\n", "a.jsonl line 1 is not JSON"),
    ("a.jsonl", b"[1]\n", "line 1: expected an id, a URL, or an object"),
    ("a.json", b'["nothing of that"]', "a.json, entry 1: 'nothing of that' is neither"),
    ("a.json", b'"x"', "expected a JSON list"),
    ("a.json", b'{"url": "a"}\n{"url": "b"}', "end in .jsonl"),
    ("a.txt.gz", b"not packed", "cannot be read"),
    ("a.parquet.gz", b"", "cannot be read"),
])  # fmt: skip
def test_what_is_neither_id_nor_url_is_told_with_its_line(
    made: SmallOut, tmp_path: Path, name: str, data: bytes, says: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(RecipeError, match=says):
        listed_targets(made.folder, str(tmp_path / name))


@pytest.mark.parametrize(("name", "data", "is_one"), [
    ("scan.json", b' {"documents": []}', True), ("a.json", b"\xef\xbb\xbf[]", False), ("a.jsonl", b"{}", False),
])  # fmt: skip
def test_what_a_scan_wrote_is_told_from_a_list(tmp_path: Path, name: str, data: bytes, is_one: bool) -> None:
    (tmp_path / name).write_bytes(data)
    assert is_scan_evidence(str(tmp_path / name)) is is_one


@pytest.mark.parametrize(("name", "data", "words"), [
    ("a.txt", as_text([UNKNOWN, "https://a.example/"]), "in two lists"),
    ("a.txt", b"# nothing\n", "lists nothing"),
    ("a.csv", as_csv([UNKNOWN], "name", "why"), "expected a column doc_id, id, url; it has name, why"),
    ("a.csv", as_csv(["https://a.example/"], "link"), "expected a column doc_id, id, url; it has link"),
    ("a.parquet", b"not Parquet", "cannot be read"),
    ("a.txt", b"\xff\xfe\x00", "is UTF-16: save it as UTF-8"),
    ("a.csv", as_csv(["www.example.org"]), None),
])  # fmt: skip
def test_a_list_that_cannot_be_used_says_why(
    made: SmallOut, tmp_path: Path, name: str, data: bytes, words: str | None
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(RecipeError if words else UnknownError, match=words or "none of its 1 ids or URLs"):
        listed_targets(made.folder, str(tmp_path / name))


def test_a_missing_list_is_an_error_of_the_call(made: SmallOut, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="cannot be read"):
        listed_targets(made.folder, str(tmp_path / "none.txt"))


def test_a_condition_a_source_and_a_file_name_all_their_documents(made: SmallOut) -> None:
    condition = "source = 'web' AND num_chars > 300 -- long ones"
    found = targets_where(made.folder, condition).match
    assert list(found.values) == ids_where(made, "source = 'web' AND num_chars > 300")
    assert json.loads(found.as_json())["named_by"] == f"--where {condition}"
    assert list(targets_of_source(made.folder, "books").match.values) == ids_where(made, "source = 'books'")
    file = str(query(made.folder, "SELECT min(warc_file) FROM documents WHERE source = 'web'").rows[0][0])
    assert list(targets_of_file(made.folder, file).match.values) == ids_where(made, f"warc_file = '{file}'")


def test_what_names_nothing_is_an_error_that_helps(made: SmallOut) -> None:
    with pytest.raises(RecipeError, match="expected a condition"):
        targets_where(made.folder, "hots = 'a'")
    with pytest.raises(UnknownError, match="holds for no document"):
        targets_where(made.folder, "host = 'nowhere.example'")
    with pytest.raises(RecipeError, match="has 'books', 'web'"):
        targets_of_source(made.folder, "wbe")
    with pytest.raises(RecipeError, match="names no input file"):
        targets_of_file(made.folder, "nowhere.warc.gz")


def test_a_path_takes_that_input_and_not_the_file_of_the_same_name_of_another_source(
    of_one_name: SmallOut,
) -> None:
    for source in ("books", "web"):
        found = targets_of_file(of_one_name.folder, f"/data/{source}/../{source}/{SHARED}").match
        assert list(found.values) == ids_where(of_one_name, f"source = '{source}' AND warc_file = '{SHARED}'")
        assert found.named_by == f"--warc /data/{source}/{SHARED}"


def test_a_path_that_was_no_input_takes_nothing_and_names_the_inputs_of_that_name(
    of_one_name: SmallOut,
) -> None:
    with pytest.raises(RecipeError, match=f"such as /data/books/{SHARED}, /data/web/{SHARED}$"):
        targets_of_file(of_one_name.folder, f"/elsewhere/{SHARED}")


def test_a_name_that_inputs_of_two_sources_share_is_refused_with_their_paths(of_one_name: SmallOut) -> None:
    with pytest.raises(RecipeError, match="2 input files") as refused:
        targets_of_file(of_one_name.folder, SHARED)
    assert f"give its path: /data/books/{SHARED} (source books); /data/web/{SHARED} (source web)" in str(
        refused.value
    )
    other = "web-00001.warc.gz"
    assert list(targets_of_file(of_one_name.folder, other).match.values) == ids_where(
        of_one_name, f"warc_file = '{other}'"
    )


def test_a_file_that_two_sources_read_goes_from_both(tmp_path: Path) -> None:
    def tamper(table: str, rows: pa.Table) -> pa.Table:
        column = {"documents": "warc_file", "inputs": "file"}.get(table)
        if column is None:
            return rows
        file = SHARED if table == "documents" else f"/data/{SHARED}"
        named = pc.if_else(
            pc.is_in(rows[column], pa.array([SHARED, "books-00000.warc.gz"])), file, rows[column]
        )
        return rows.set_column(rows.schema.get_field_index(column), rows.schema.field(column), named)

    made = make_small_out(str(tmp_path / "out"), tamper=tamper)
    of_file = ids_where(made, f"warc_file = '{SHARED}'")
    assert {
        row[0]
        for row in query(made.folder, f"SELECT source FROM documents WHERE warc_file = '{SHARED}'").rows
    } == {
        "books",
        "web",
    }
    assert list(targets_of_file(made.folder, f"/data/{SHARED}").match.values) == of_file
    assert list(targets_of_file(made.folder, SHARED).match.values) == of_file


def test_a_file_of_which_no_document_came_does_not_take_those_of_one_whose_name_ends_its_path(
    tmp_path: Path,
) -> None:
    """Of the inputs /data/web-00000.warc.gz and /data/a/*.warc.gz, the second match has no document."""

    def tamper(table: str, rows: pa.Table) -> pa.Table:
        if table != "inputs":
            return rows
        empty = {
            **rows.slice(0, 1).to_pylist()[0],
            "source": "web",
            "file": f"/data/a/{SHARED}",
            "num_documents": 0,
        }
        return pa.concat_tables([rows, pa.Table.from_pylist([empty], schema=rows.schema)])

    made = make_small_out(str(tmp_path / "out"), tamper=tamper)
    with pytest.raises(RecipeError, match="names no input file with documents"):
        targets_of_file(made.folder, f"/data/a/{SHARED}")


def test_an_input_that_may_have_either_of_two_names_is_not_guessed(tmp_path: Path) -> None:
    """As with the inputs /data/*/web-00000.warc.gz and /more/web-00000.warc.gz of one source."""

    def tamper(table: str, rows: pa.Table) -> pa.Table:
        if table not in ("documents", "inputs"):
            return rows
        column, longer = (
            ("warc_file", f"a/{SHARED}") if table == "documents" else ("file", f"/data/a/{SHARED}")
        )
        named = pc.if_else(pc.equal(rows[column], "web-00001.warc.gz"), longer, rows[column])
        return rows.set_column(rows.schema.get_field_index(column), rows.schema.field(column), named)

    made = make_small_out(str(tmp_path / "out"), tamper=tamper)
    with pytest.raises(RecipeError, match="one of 2 names") as refused:
        targets_of_file(made.folder, f"/data/a/{SHARED}")
    assert f"--where \"source = 'web' AND warc_file = 'a/{SHARED}'\"" in str(refused.value)


@pytest.mark.parametrize("written", ["csv", "parquet"])
def test_a_row_without_id_is_named_by_its_url(made: SmallOut, tmp_path: Path, written: str) -> None:
    first, second = query(
        made.folder,
        "SELECT doc_id, url FROM documents WHERE status = 'kept' AND url IS NOT NULL AND cluster_id IS NULL"
        " LIMIT 2",
    ).rows
    rows = [
        (str(first[0]), "https://other.example/", "x"),
        (None, str(second[1]), "y"),
        ("", "https://nowhere.example/", ""),
    ]
    path = tmp_path / f"list.{written}"
    if written == "parquet":
        names = ("doc_id", "url", "reason")
        pq.write_table(pa.table({name: [row[at] for row in rows] for at, name in enumerate(names)}), path)
    else:
        path.write_text(
            "doc_id,url,reason\n" + "".join(",".join(cell or "" for cell in row) + "\n" for row in rows)
        )
    found = listed_targets(made.folder, str(path))
    assert set(found.match.values) == {first[0], second[0]} and unknown_names(found) == [
        "https://nowhere.example/"
    ]
    targets = {row.doc_id.hex() for row in plan_purge(made.folder, found.match, plan_hooks()).rows}
    assert targets == {first[0], second[0]}


def test_the_urls_of_a_list_that_names_documents_by_id_and_by_url_stay_out(
    made: SmallOut, tmp_path: Path
) -> None:
    first, second = query(
        made.folder,
        "SELECT doc_id, url FROM documents WHERE status = 'kept' AND url IS NOT NULL AND cluster_id IS NULL"
        " LIMIT 2",
    ).rows
    shutil.copytree(made.folder.url, tmp_path / "out")
    (tmp_path / "list.csv").write_text(f"doc_id,url\n{first[0]},\n,{second[1]}\n")
    out = Folder(str(tmp_path / "out"))
    purge(out, listed_targets(out, str(tmp_path / "list.csv")).match)
    sets = read_purged_sets([out.url])
    assert sets.urls == {normalise_url(str(first[1])), normalise_url(str(second[1]))}


@pytest.mark.parametrize(("text", "words"), [
    (f"doc_id,url,why\n{UNKNOWN},https://a.example/,x\n\n,,z\n", "line 4: it names nothing, as doc_id and url are"),
    (f"doc_id,why\n{UNKNOWN},x\n,y\n", "line 3: it names nothing, as doc_id is empty"),
    ("url,why\n,y\n", "line 2: it names nothing"),
    ("https://a.example/\nhttps://a.example/2,3\n", "line 2: it has 2 cells and the first row 1: put"),
    ("url\nhttps://a.example/2,3\n", "line 2: it has 2 cells and the first row 1: put"),
    ("url,why\nhttps://a.example/2,3,x\n", "line 2: it has 3 cells and the first row 2: put"),
    ("https://a.example/2,3\nhttps://a.example/4\n", "expected a column doc_id, id, url; .* a comma in quotes only"),
    ("url\nhttps://a.example/\rhttps://b.example/\n", "line 2: it is no CSV from here: expected lines that end"),
    ('url,why\n"https://a.example/,x\nhttps://b.example/,y\n', "line 2: it is no CSV from here: .* quotes that close"),
])  # fmt: skip
def test_a_row_that_names_nothing_or_cannot_be_told_is_refused_with_its_line(
    made: SmallOut, tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "a.csv").write_bytes(text.encode())
    with pytest.raises(RecipeError, match=words):
        listed_targets(made.folder, str(tmp_path / "a.csv"))


def test_a_quoted_comma_and_a_line_break_in_a_cell_are_read_as_they_stand(
    made: SmallOut, tmp_path: Path
) -> None:
    text = f'url,why\r\n"https://a.example/2,3","two\r\nlines"\r\n\r\n{ids_where(made, "true")[0]}\r\n,\r\n'
    (tmp_path / "a.csv").write_bytes(text.encode())
    with pytest.raises(RecipeError, match="line 6: it names nothing"):
        listed_targets(made.folder, str(tmp_path / "a.csv"))


def test_a_row_of_a_table_that_names_nothing_is_refused_with_its_number(
    made: SmallOut, tmp_path: Path
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [UNKNOWN, None], "url": [None, " "]}), path)
    with pytest.raises(RecipeError, match="row 2: it names nothing, as id and url are"):
        listed_targets(made.folder, str(path))


@pytest.mark.parametrize("way", ["source", "where", "file"])
def test_what_a_condition_a_source_or_a_file_names_does_not_stay_out_by_url(
    of_one_name: SmallOut, tmp_path: Path, way: str
) -> None:
    """A page of another source with that URL and another text is another document."""
    shutil.copytree(of_one_name.folder.url, tmp_path / "out")
    out = Folder(str(tmp_path / "out"))
    if way == "source":
        found = targets_of_source(out, "web")
    elif way == "where":
        found = targets_where(out, "source = 'web'")
    else:
        found = targets_of_file(out, f"/data/web/{SHARED}")
    purge(out, found.match)
    sets = read_purged_sets([out.url])
    assert sets.urls == frozenset()
    assert {bytes.fromhex(value) for value in found.match.values} <= sets.doc_ids and sets.hashes


def test_a_condition_that_an_earlier_version_recorded_as_ids_is_honoured_by_url_as_ever(
    made: SmallOut, tmp_path: Path
) -> None:
    shutil.copytree(made.folder.url, tmp_path / "out")
    out = Folder(str(tmp_path / "out"))
    ids = ids_where(made, "source = 'web' AND status = 'kept' AND cluster_id IS NULL")
    purge(out, PurgeMatch(kind="doc", values=tuple(ids), named_by="--source web"))
    assert len(read_purged_sets([out.url]).urls) == len(ids)


def test_a_name_that_is_not_there_comes_with_the_nearest_that_is(made: SmallOut, tmp_path: Path) -> None:
    rows = query(
        made.folder, "SELECT doc_id, url FROM documents WHERE status = 'kept' AND url IS NOT NULL"
    ).rows
    doc_id, url = map(str, rows[0])
    wrong = doc_id[:-1] + ("0" if doc_id[-1] != "0" else "1")
    (tmp_path / "ids.txt").write_bytes(as_text([str(rows[1][0]), wrong, UNKNOWN]))
    found = listed_targets(made.folder, str(tmp_path / "ids.txt"))
    assert [(one.name, one.nearest) for one in found.unknown] == [(wrong, (doc_id,)), (UNKNOWN, ())]
    (tmp_path / "urls.txt").write_bytes(as_text([str(rows[1][1]), url + "x"]))
    (unknown,) = listed_targets(made.folder, str(tmp_path / "urls.txt")).unknown
    assert unknown.name == url + "x" and unknown.nearest[0] == url
    (tmp_path / "urls.txt").write_bytes(as_text([url + "x"]))
    with pytest.raises(UnknownError, match=f"nearest to .*: {url}"):
        listed_targets(made.folder, str(tmp_path / "urls.txt"))
