"""The columnar index of own WARC files, beside what warcio finds in them, and read again as an input."""

from __future__ import annotations

import base64
import bz2
import gzip
import hashlib
import shutil
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest
from warcio.archiveiterator import ArchiveIterator

from lineage.ids import content_hash
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.store.delta import read_table
from pipeline.cli.main import main
from pipeline.inspect.columnar_index import SCHEMA, write_index
from tests.support.inputs.cc_index import SEGMENT, SmallCrawl, make_crawl
from tests.support.inputs.make_warc import good, member, record
from tests.support.outputs.runs import recipe, run
from tests.support.stores.range_server import Ranges, range_server


@pytest.fixture(scope="module")
def crawl(tmp_path_factory: pytest.TempPathFactory) -> SmallCrawl:
    return make_crawl(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def out(crawl: SmallCrawl, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over the whole crawl."""
    folder = tmp_path_factory.mktemp("run")
    run(folder, recipe(str(folder / "out"), {"web": (crawl.paths_list,)}, dedup={"near": False}))
    return folder / "out"


def rows(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(folder).to_pylist()
    return found


def hashes(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): content_hash(path.read_bytes()) for path in files}


def test_each_page_has_the_place_and_the_digest_that_warcio_finds(crawl: SmallCrawl, tmp_path: Path) -> None:
    expected = []
    for name in crawl.paths:
        with open(crawl.folder / name, "rb") as file:
            records = ArchiveIterator(file)
            for found in records:
                if found.rec_type == "response" and found.http_headers.get_statuscode() == "200":
                    payload = found.content_stream().read()
                    expected.append((
                        name.rpartition("/")[2], records.get_record_offset(), records.get_record_length(),
                        found.rec_headers.get_header("WARC-Target-URI"),
                        base64.b32encode(hashlib.sha1(payload).digest()).decode(),
                    ))  # fmt: skip
    written = write_index([crawl.paths_list], Folder(str(tmp_path)), "own")
    columns = ("warc_filename", "warc_record_offset", "warc_record_length", "url", "content_digest")
    assert sorted(tuple(row[name] for name in columns) for row in rows(tmp_path)) == sorted(expected)
    assert (written.num_records, written.num_files) == (len(expected), len(crawl.paths))
    for row in rows(tmp_path):
        host = urlsplit(row["url"]).netloc
        assert (row["url_host_name"], row["url_host_registered_domain"]) == (host, host)
        assert row["url_host_name_reversed"] == ".".join(reversed(host.split(".")))
        assert (row["fetch_status"], row["content_mime_type"]) == (200, "text/html")
        assert (row["crawl"], row["subset"], row["warc_segment"]) == ("own", "warc", SEGMENT)
    keys = [row["url_surtkey"] for row in rows(tmp_path)]
    assert keys == sorted(keys)


def test_the_index_of_an_output_reads_its_documents_again(
    crawl: SmallCrawl, out: Path, tmp_path: Path
) -> None:
    written = write_index([str(out)], Folder(str(tmp_path / "index")), "own")
    languages = {row["content_languages"] for row in rows(tmp_path / "index")}
    assert {"eng", "ita", "deu"} & languages and None in languages | {None}
    made = recipe(str(tmp_path / "out"), {"web": ()}, dedup={"near": False})
    del made["source"][0]["inputs"]
    made["source"][0] |= {"index": written.index, "root": written.root, "where": "content_languages = 'eng'"}
    run(tmp_path, made)
    whole = {row["doc_id"]: row for row in read_table(Folder(str(out)), "documents").to_pylist()}
    found = {row["doc_id"]: row for row in read_table(Folder(str(tmp_path / "out")), "documents").to_pylist()}
    assert found.keys() == {key for key, row in whole.items() if row["language"] == "en"} != set()
    for key, row in found.items():
        columns = ("warc_offset", "warc_length", "url", "text_hash", "clean_hash", "num_chars")
        assert {name: row[name] for name in columns} == {name: whole[key][name] for name in columns}


def test_the_languages_of_files_are_told_where_a_query_follows_their_names(
    crawl: SmallCrawl, out: Path, tmp_path: Path
) -> None:
    def told(place: Path) -> set[tuple[str, str | None]]:
        write_index([str(place)], Folder(str(tmp_path / f"index-of-{place.parent.name}")), "own")
        found = rows(tmp_path / f"index-of-{place.parent.name}")
        return {(row["url"], row["content_languages"]) for row in found}

    with range_server(crawl.folder, Ranges()) as url:
        files = [f"{url}/{path}?version=1" for path in crawl.paths]
        run(
            tmp_path / "asked",
            recipe(str(tmp_path / "asked/out"), {"web": tuple(files)}, dedup={"near": False}),
        )
        assert told(tmp_path / "asked/out") == told(out)


def test_the_same_call_writes_the_same_files_and_one_with_fewer_leaves_none_behind(
    crawl: SmallCrawl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.inspect.columnar_index._PART_ROWS", 5)
    to = Folder(str(tmp_path / "index"))
    write_index([crawl.paths_list], to, "own")
    first = hashes(tmp_path / "index")
    assert len(first) == len(crawl.paths)
    write_index([crawl.paths_list], to, "own")
    assert hashes(tmp_path / "index") == first
    write_index([str(crawl.folder / crawl.paths[0])], to, "own")
    assert len(hashes(tmp_path / "index")) == 1


def test_files_whose_records_no_range_gives_are_passed_over_with_the_reason(
    crawl: SmallCrawl, tmp_path: Path
) -> None:
    place = tmp_path / "files"
    place.mkdir()
    shutil.copy(crawl.folder / crawl.paths[0], place / "a.warc.gz")
    (place / "b.warc.bz2").write_bytes(bz2.compress(good("b")))
    (place / "c.jsonl").write_text('{"text": "a"}\n')
    (place / "d.warc.gz").write_bytes(gzip.compress(good("d") + good("e")) + member(good("f")))
    written = write_index([f"{place}/*"], Folder(str(tmp_path / "index")), "own")
    told = " ".join(written.passed_over)
    assert "b.warc.bz2 is passed over: its records lie anywhere in a bzip2" in told
    assert "c.jsonl is passed over: it holds no WARC records" in told
    assert (written.num_files, written.num_inside) == (2, 2)
    names = [row["url"] for row in rows(tmp_path / "index") if row["warc_filename"] == "d.warc.gz"]
    assert names == ["https://example.org/f"]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "https://a.b.example.co.uk:8080/x/Y?q=1",
            {
                "url_surtkey": "uk,co,example,b,a)/x/y?q=1", "url_host_name": "a.b.example.co.uk", "url_host_tld": "uk",
                "url_host_2nd_last_part": "co", "url_host_5th_last_part": "a", "url_host_registry_suffix": "co.uk",
                "url_host_registered_domain": "example.co.uk", "url_protocol": "https", "url_port": 8080,
                "url_path": "/x/Y", "url_query": "q=1",
            },
        ),
        (
            "http://me.github.io/",
            {
                "url_host_registry_suffix": "io", "url_host_registered_domain": "github.io",
                "url_host_private_suffix": "github.io", "url_host_private_domain": "me.github.io", "url_query": None,
            },
        ),
        ("http://[::1]/a", {"url_host_registered_domain": None, "url_path": "/a"}),
        ("http://192.0.2.7/a", {"url_host_registered_domain": None, "url_host_tld": None}),
        ("urn:isbn:1", {"url_surtkey": "urn:isbn:1", "url_host_name": None}),
    ],
)  # fmt: skip
def test_the_columns_of_a_url(tmp_path: Path, url: str, expected: dict[str, Any]) -> None:
    block = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>a</p>"
    (tmp_path / "a.warc.gz").write_bytes(member(record(block, "a", **{"WARC-Target-URI": url})))
    write_index([str(tmp_path / "a.warc.gz")], Folder(str(tmp_path / "index")), "own")
    (row,) = rows(tmp_path / "index")
    assert {name: row[name] for name in expected} == expected
    assert set(SCHEMA.names) <= row.keys()


def test_the_command_prints_the_source_that_reads_it(
    crawl: SmallCrawl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["index", crawl.paths_list, "--to", str(tmp_path / "index"), "--crawl", "SPRING"]) == 0
    said = capsys.readouterr().out
    table = tomllib.loads(said[said.index("[[source]]") :])["source"][0]
    made = recipe(str(tmp_path / "out"), {"web": ()}, dedup={"near": False})
    made["source"] = [table]
    assert run(tmp_path, made)["num_documents"] == sum(row["fetch_status"] == 200 for row in crawl.rows)


def test_wrong_calls_are_named(crawl: SmallCrawl, tmp_path: Path) -> None:
    to = Folder(str(tmp_path / "index"))
    with pytest.raises(RecipeError, match=r"OUT\|WARC: there is no file"):
        write_index([str(tmp_path / "absent.warc.gz")], to, "own")
    with pytest.raises(RecipeError, match="--crawl 'a/b': expected letters"):
        write_index([crawl.paths_list], to, "a/b")
    (tmp_path / "c.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(RecipeError, match=r"nothing to index: .*c\.jsonl is passed over"):
        write_index([str(tmp_path / "c.jsonl")], to, "own")
    to.publish("notes.txt", b"")
    with pytest.raises(RecipeError, match=r"holds 'notes\.txt', which is no part of the index"):
        write_index([crawl.paths_list], to, "own")
