"""Input files: what is listed under which names, and streams that outlive bad connections."""

from __future__ import annotations

import errno
import gzip
import io
import logging
import os
import re
import socket
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from lineage.recipe import RecipeError
from lineage.storage import clients as storage
from pipeline.inputs.files import COMMON_CRAWL, Input, list_inputs, open_input
from pipeline.inputs.http_file import http_size, open_http
from pipeline.inputs.retries import Retries
from pipeline.recipe.tables import SourceTable
from stages.document import Document
from stages.reading.reader import ReadOptions, read_documents
from tests.support.inputs.make_warc import good, member, wacz
from tests.support.stores.loopback import Handler, serving

FAST = Retries(attempts=4, backoff_seconds=0.01)
DATA = bytes(range(256)) * 2000


def source(*inputs: object, limit: int | None = None) -> SourceTable:
    return SourceTable(name="web", inputs=tuple(map(str, inputs)), limit=limit)


def names(*inputs: object, limit: int | None = None) -> list[str]:
    return [found.name for found in list_inputs(source(*inputs, limit=limit))]


@pytest.fixture
def crawl(tmp_path: Path) -> Path:
    """crawl/{a,b}/{1,2}.warc.gz of 1 to 4 bytes, and a hidden file."""
    for size, name in enumerate(("a/1", "a/2", "b/1", "b/2"), 1):
        path = tmp_path / "crawl" / f"{name}.warc.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
    (tmp_path / "crawl" / "a" / ".tmp-3.warc.gz").write_bytes(b"half")
    return tmp_path / "crawl"


def test_a_glob_names_files_below_its_fixed_part_sorted_with_their_sizes(crawl: Path) -> None:
    found = list_inputs(source(crawl / "*" / "*.warc.gz"))
    assert [(f.index, f.name, f.size) for f in found] == [
        (0, "a/1.warc.gz", 1),
        (1, "a/2.warc.gz", 2),
        (2, "b/1.warc.gz", 3),
        (3, "b/2.warc.gz", 4),
    ]
    assert open_input(found[3]).read() == bytes(4)


def test_globs_reach_down_whole_trees(crawl: Path) -> None:
    assert names(crawl.parent / "**" / "*.warc.gz") == [
        f"crawl/{n}.warc.gz" for n in ("a/1", "a/2", "b/1", "b/2")
    ]


def test_a_link_to_a_file_is_that_file(crawl: Path) -> None:
    (crawl / "b" / "3.warc.gz").symlink_to("../a/2.warc.gz")
    (crawl / "b" / "folder.warc.gz").symlink_to(crawl / "a", target_is_directory=True)
    found = list_inputs(source(crawl / "b" / "*.warc.gz"))
    assert [(f.name, f.size) for f in found] == [("1.warc.gz", 3), ("2.warc.gz", 4), ("3.warc.gz", 2)]
    assert open_input(found[2]).read() == bytes(2)


def test_what_lies_below_a_link_to_a_folder_is_listed_as_a_shell_lists_it(crawl: Path) -> None:
    """A disk is often bound in so. A file that is reached with and without the link counts once, without
    it."""
    more = crawl.parent / "other disk" / "c"
    (more / "deep").mkdir(parents=True)
    (more / "1.warc.gz").write_bytes(b"12345")
    (more / "deep" / "2.warc.gz").write_bytes(b"123456")
    (crawl / "c").symlink_to(more, target_is_directory=True)
    (crawl / "a-is-latest").symlink_to("a", target_is_directory=True)
    plain = ["a/1.warc.gz", "a/2.warc.gz", "b/1.warc.gz", "b/2.warc.gz", "c/1.warc.gz"]
    assert names(crawl / "*" / "*.warc.gz") == plain
    assert names(crawl / "**" / "*.warc.gz") == [*plain, "c/deep/2.warc.gz"]
    assert names(crawl / "a-is-*" / "*.warc.gz") == ["a-is-latest/1.warc.gz", "a-is-latest/2.warc.gz"]


def test_a_link_to_a_folder_that_holds_it_ends_no_pattern_in_an_endless_walk(crawl: Path) -> None:
    (crawl / "b" / "up").symlink_to(crawl, target_is_directory=True)
    assert names(crawl / "b" / "*" / "*" / "1.warc.gz") == ["up/a/1.warc.gz", "up/b/1.warc.gz"]
    with pytest.raises(RecipeError, match=r"crawl/b/up is a link to .*/crawl, a folder that holds it"):
        names(crawl / "**" / "*.warc.gz")


def test_a_link_to_nothing_is_an_error_that_names_it(crawl: Path) -> None:
    (crawl / "b" / ".tmp-3.warc.gz").symlink_to("gone")
    assert len(names(crawl / "*" / "*.warc.gz")) == 4
    (crawl / "b" / "3.warc.gz").symlink_to("../objects/3")
    with pytest.raises(
        RecipeError, match=r"crawl/b/3\.warc\.gz is a link to \.\./objects/3, which is not there"
    ):
        names(crawl / "*" / "*.warc.gz")


def test_a_folder_that_cannot_be_listed_is_an_error_that_names_it(
    crawl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it holds might be inputs; a folder without them is not looked into."""
    listed = os.scandir

    def scandir(path: str) -> Any:
        if str(path).rstrip("/").endswith("/b"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(RecipeError, match=r"\*\.warc\.gz' cannot be listed: .*Input/output error: '.*/b/?'"):
        names(crawl / "*" / "*.warc.gz")
    assert names(crawl / "a" / "*.warc.gz")


@pytest.mark.parametrize(
    ("base", "pattern"),
    [
        ("", "*/*"),
        ("", "**"),
        ("", "**/*.gz"),
        ("a/", "**"),
        ("", "[ab]/?.warc.gz"),
        ("", "*/1*"),
        ("c/", "*/*"),
        ("c/d/", "*"),
    ],
)
def test_a_pattern_matches_what_it_matches_in_fsspec(base: str, pattern: str, crawl: Path) -> None:
    (crawl / "c" / "d").mkdir(parents=True)
    (crawl / "c" / "d" / "e.gz").write_bytes(b"x")
    matched = map(Path, LocalFileSystem().glob(f"{crawl}/{base}{pattern}"))
    files = {path for path in matched if path.is_file() and not path.name.startswith(".")}
    assert {crawl / base / name for name in names(f"{crawl}/{base}{pattern}")} == files != set()


def test_hidden_names_are_listed_only_where_the_pattern_asks_for_them(tmp_path: Path) -> None:
    for name in (".cache/c/a", ".cache/c/.part", ".cache/.c/b", ".cache/.c/.part", ".cache/.d/e"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert names(tmp_path / ".cache" / "*" / "*") == ["c/a"]
    assert names(tmp_path / ".cache" / "**") == ["c/a"]
    assert names(tmp_path / ".c*" / "c" / ".p*") == [".cache/c/.part"]
    assert names(tmp_path / ".cac*" / ".c" / "*") == [".cache/.c/b"]
    assert names(tmp_path / ".cache" / "*" / ".p*") == ["c/.part"]


def test_a_file_named_outright_goes_by_its_own_name(crawl: Path) -> None:
    assert names(crawl / "a" / "2.warc.gz") == ["2.warc.gz"]
    assert names(f"file://{crawl}/a/2.warc.gz") == ["2.warc.gz"]


def test_a_file_whose_name_looks_like_a_glob_is_itself(tmp_path: Path) -> None:
    (tmp_path / "page[1].warc").write_bytes(b"x")
    (tmp_path / "page1.warc").write_bytes(b"x")
    assert names(tmp_path / "page[1].warc") == ["page[1].warc"]


def test_the_order_of_inputs_does_not_matter(crawl: Path) -> None:
    globs = [crawl / "[a]*/*.gz", crawl / "[b]*/*.gz"]
    assert list_inputs(source(*globs)) == list_inputs(source(*reversed(globs)))


def test_a_file_listed_twice_counts_once_with_a_warning(
    crawl: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert len(names(crawl / "*" / "*.gz", crawl / "a" / ".." / "a" / "1.warc.gz")) == 4
    assert "1.warc.gz is listed twice; it counts once" in caplog.text


def test_two_files_of_one_name_are_refused(crawl: Path) -> None:
    with pytest.raises(RecipeError, match=r"would both be called '1\.warc\.gz'"):
        names(crawl / "a" / "*.gz", crawl / "b" / "*.gz")


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("a/9.warc.gz", "there is no file '.*9.warc.gz'"),
        ("*/*.wet.gz", "matches no file"),
        ("a", r"is a folder: name its files, for example '.*a/\*\.warc\.gz'"),
        ("none.paths.gz", "there is no file '.*none.paths.gz'"),
    ],
)
def test_what_is_not_there_is_an_error_that_names_it(crawl: Path, entry: str, says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        names(crawl / entry)


def test_a_limit_takes_the_first_by_name(crawl: Path) -> None:
    assert names(crawl / "b" / "2.warc.gz", crawl / "*" / "1.warc.gz", limit=2) == [
        "2.warc.gz",
        "a/1.warc.gz",
    ]


def write_list(path: Path, *lines: str) -> Path:
    path.write_bytes(gzip.compress("\n".join([*lines, "", ""]).encode()))
    return path


def test_paths_are_relative_to_what_stands_before_their_first_part_in_the_lists_own_name(crawl: Path) -> None:
    paths = write_list(crawl / "warc.paths.gz", "crawl/b/1.warc.gz", "crawl/a/1.warc.gz")
    found = list_inputs(source(paths))
    assert [f.name for f in found] == ["crawl/a/1.warc.gz", "crawl/b/1.warc.gz"]
    assert [f.url for f in found] == [str(crawl / "a/1.warc.gz"), str(crawl / "b/1.warc.gz")]


def test_paths_of_a_copied_list_lie_in_its_own_folder(crawl: Path) -> None:
    assert names(write_list(crawl / "warc.paths.gz", "b/1.warc.gz")) == ["b/1.warc.gz"]


def test_a_file_that_a_list_names_in_two_spellings_counts_once(crawl: Path) -> None:
    lines = ("\ufeffb/1.warc.gz", "./b/1.warc.gz", "b/./1.warc.gz", "././b/2.warc.gz")
    assert names(write_list(crawl / "warc.paths.gz", *lines)) == ["b/1.warc.gz", "b/2.warc.gz"]


def test_paths_of_a_copied_common_crawl_list_lie_on_its_server(
    crawl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.inputs.http_file.http_size", lambda url, shown: len(url))
    entry = "crawl-data/CC-MAIN-2026-01/segments/1/warc/x.warc.gz"
    (found,) = list_inputs(source(write_list(crawl / "warc.paths.gz", entry)))
    assert (found.name, found.url) == (entry, f"{COMMON_CRAWL}/{entry}")


@pytest.mark.parametrize("line", ["/etc/passwd", "a/../../secret.warc.gz"])
def test_a_list_that_reaches_out_of_its_base_is_refused(crawl: Path, line: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(line)):
        names(write_list(crawl / "warc.paths.gz", line))


def test_a_list_that_names_a_folder_is_refused(crawl: Path) -> None:
    with pytest.raises(RecipeError, match=r"inputs of 'web': .*/crawl/a cannot be read: it is a folder"):
        names(write_list(crawl / "warc.paths.gz", "a"))


def test_a_damaged_or_empty_list_is_refused(crawl: Path) -> None:
    (crawl / "cut.paths.gz").write_bytes(gzip.compress(b"a/1.warc.gz\n" * 50)[:-12])
    with pytest.raises(RecipeError, match=r"cut\.paths\.gz' cannot be listed"):
        names(crawl / "cut.paths.gz")
    with pytest.raises(RecipeError, match="the list is empty"):
        names(write_list(crawl / "warc.paths.gz"))


# A web server that misbehaves as told.


@dataclass
class Web:
    """Files by path, and what happens to requests, in order: "503", "drop" (after a third), "nothing",
    "change", "no size", "cut" (after a third, and no size), "piece" (a third, as the answer's range says)."""

    files: dict[str, bytes]
    mishaps: list[str] = field(default_factory=list)
    ranges: bool = True
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""


class WebHandler(Handler):
    web: Web

    def answer(self) -> None:
        web, wanted = self.web, self.headers["Range"]
        web.requests.append((self.command, wanted))
        mishap = web.mishaps.pop(0) if web.mishaps else ""
        data = web.files.get(self.path)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and web.ranges else 0
        if mishap.isdigit() or data is None or start > len(data):
            self.send_response(int(mishap or (404 if data is None else 416)))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        third = (len(data) - start) // 3
        self.send_response(206 if wanted and web.ranges else 200)
        if mishap == "piece":
            self.send_header("Content-Range", f"bytes {start}-{start + third - 1}/{len(data)}")
        if mishap != "cut":
            size = third if mishap == "piece" else len(data) - start
            self.send_header("Content-Length", "²" if mishap == "no size" else str(size))
        self.send_header("ETag", '"new"' if mishap == "change" else '"old"')
        self.end_headers()
        if self.sends_body:
            part = {"drop": third, "cut": third, "piece": third, "nothing": 0}.get(mishap, len(data))
            self.wfile.write(data[start : start + part])
        self.close_connection = mishap in ("drop", "cut", "nothing", "no size")


@pytest.fixture
def web() -> Iterator[Web]:
    served = Web(files={"/cc/a.warc.gz": DATA})
    with serving(WebHandler, web=served) as served.url:
        yield served


def at(web: Web, path: str = "/cc/a.warc.gz") -> Input:
    return Input(source="web", index=0, name="a.warc.gz", url=web.url + path, size=len(web.files[path]))


def test_a_file_on_a_web_server_is_listed_with_its_size(web: Web) -> None:
    (found,) = list_inputs(source(f"{web.url}/cc/a.warc.gz?download=1".partition("?")[0]))
    assert (found.name, found.size) == ("a.warc.gz", len(DATA))


def test_a_missing_file_on_a_web_server_is_an_error_that_names_it(web: Web) -> None:
    with pytest.raises(RecipeError, match=r"there is no file http://.*/cc/b\.warc\.gz"):
        list_inputs(source(f"{web.url}/cc/b.warc.gz"))


def test_a_size_of_other_digits_than_0_to_9_is_none_that_a_server_states(web: Web) -> None:
    web.mishaps = ["no size"]
    with pytest.raises(OSError, match=r"does not state the file's length \(Content-Length is '²'\)"):
        http_size(f"{web.url}/cc/a.warc.gz", FAST)


def test_a_file_whose_size_a_server_does_not_state_is_read(web: Web) -> None:
    web.mishaps = ["no size"]
    with open_input(at(web), FAST) as stream:
        assert stream.read() == DATA


def test_a_paths_list_on_a_web_server_names_files_relative_to_its_base(web: Web) -> None:
    web.files["/cc/CC-1/warc.paths.gz"] = gzip.compress(b"cc/a.warc.gz\n")
    (found,) = list_inputs(source(f"{web.url}/cc/CC-1/warc.paths.gz"))
    assert (found.name, found.url) == ("cc/a.warc.gz", f"{web.url}/cc/a.warc.gz")


def test_reading_goes_on_after_dropped_connections_and_busy_answers(web: Web) -> None:
    web.mishaps = ["503", "drop", "drop", "503", "429", "drop"]
    with open_input(at(web), FAST) as stream:
        assert stream.read() == DATA
    resumed = [wanted for _, wanted in web.requests]
    assert resumed[:2] == ["bytes=0-", "bytes=0-"]
    assert len(set(resumed)) == 4


def test_reading_goes_on_where_the_server_knows_no_ranges(web: Web) -> None:
    web.ranges, web.mishaps = False, ["drop", "drop"]
    with open_input(at(web), FAST) as stream:
        assert stream.read() == DATA


def test_any_place_of_the_file_can_be_sought(web: Web) -> None:
    with open_input(at(web), FAST) as stream:
        assert stream.read(10) == DATA[:10]
        stream.seek(400_001)
        assert stream.read(10) == DATA[400_001:400_011]
        stream.seek(3)
        assert stream.read(10) == DATA[3:13]
        stream.seek(-5, 2)
        assert stream.read() == DATA[-5:]
        assert stream.read() == b""


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("ranges", [True, False])
def test_a_wacz_on_a_web_server_is_read_as_on_disk(web: Web, ranges: bool, method: int) -> None:
    archive = b"".join(member(good(name)) for name in "abc")
    data = wacz({"archive/1.warc.gz": archive, "archive/2.warc.gz": archive}, method)
    web.files["/crawl.wacz"], web.ranges, web.mishaps = data, ranges, ["503", "drop"]
    options = ReadOptions(source="s", file="crawl.wacz", size=len(data))
    on_disk = list(read_documents(io.BytesIO(data), options))
    assert [item.url[-1] for item in on_disk if isinstance(item, Document)] == list("abcabc")
    with open_input(at(web, "/crawl.wacz"), FAST) as stream:
        assert list(read_documents(stream, options)) == on_disk


def test_an_empty_file_on_a_web_server_is_empty(web: Web) -> None:
    web.files["/empty"] = b""
    with open_input(at(web, "/empty"), FAST) as stream:
        assert stream.read() == b""


def test_a_file_that_changes_while_it_is_read_is_an_error(web: Web) -> None:
    web.mishaps = ["drop", "change"]
    with open_input(at(web), FAST) as stream, pytest.raises(OSError, match="changed while it was read"):
        stream.read()


def test_a_server_that_stays_busy_is_an_error_that_says_so(web: Web) -> None:
    web.mishaps = ["503"] * 50
    with pytest.raises(OSError, match="after 5 attempts: too many 503"):
        open_input(at(web), FAST)
    assert len(web.requests) == 5


def test_a_connection_that_gives_nothing_more_is_an_error_in_the_end(web: Web) -> None:
    web.mishaps = ["drop"] + ["nothing"] * 5
    with (
        open_input(at(web), FAST) as stream,
        pytest.raises(OSError, match="reading broke off at byte 170666"),
    ):
        stream.read()


def test_a_file_that_has_become_shorter_is_an_error(web: Web) -> None:
    web.mishaps = ["drop"]
    with open_input(at(web), FAST) as stream:
        stream.read(100)
        web.files["/cc/a.warc.gz"] = DATA[:1]
        with pytest.raises(OSError, match=r"broke off at byte 170666"):
            stream.read()


@pytest.mark.parametrize(("mishap", "ranges"), [("cut", True), ("cut", False), ("piece", True)])
def test_what_a_file_of_known_size_lacks_is_asked_for_again(web: Web, mishap: str, ranges: bool) -> None:
    web.ranges, web.mishaps = ranges, [mishap, mishap]
    with open_http(f"{web.url}/cc/a.warc.gz", FAST, size=len(DATA)) as stream:
        assert stream.read() == DATA


@pytest.mark.parametrize("ranges", [True, False])
def test_a_file_that_ends_before_its_known_size_is_an_error(web: Web, ranges: bool) -> None:
    web.ranges, web.mishaps = ranges, ["cut"] + ["nothing"] * 50 if ranges else ["cut"] * 50
    with (
        open_http(f"{web.url}/cc/a.warc.gz", FAST, size=len(DATA)) as stream,
        pytest.raises(OSError, match="reading broke off at byte 170666"),
    ):
        stream.read()


@pytest.mark.parametrize("size", [len(DATA) - 1, len(DATA) + 1])
def test_a_file_of_another_size_than_was_planned_is_an_error_that_tells_both(web: Web, size: int) -> None:
    says = rf"a\.warc\.gz changed after this run was planned: it had {size:,} bytes and has {len(DATA):,}\. Put back"
    with pytest.raises(OSError, match=says):
        open_http(f"{web.url}/cc/a.warc.gz", FAST, size=size)


def test_a_file_that_goes_on_behind_its_known_size_is_an_error(web: Web) -> None:
    web.mishaps = ["no size"]
    with (
        open_http(f"{web.url}/cc/a.warc.gz", FAST, size=len(DATA) - 1) as stream,
        pytest.raises(OSError, match=r"it had 511,999 bytes and has more\."),
    ):
        stream.read()


def test_a_server_that_cannot_be_reached_is_an_error_that_says_so() -> None:
    with pytest.raises(OSError, match=r"cannot be reached, after 2 attempts"):
        http_size("http://127.0.0.1:9/x", Retries(attempts=1, backoff_seconds=0.01))


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts, noted instead of waited for."""
    noted: list[float] = []
    monkeypatch.setattr("urllib3.util.retry.time.sleep", noted.append)
    return noted


def free_port() -> int:
    """A port of loopback at which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_server_that_refuses_connections_is_given_up_within_seconds_while_a_run_is_planned(
    pauses: list[float],
) -> None:
    with pytest.raises(RecipeError, match=r"127\.0\.0\.1.*cannot be reached, after 5 attempts: .*refused"):
        list_inputs(source(f"http://127.0.0.1:{free_port()}/a.jsonl"))
    assert 1 <= sum(pauses) < 10


def test_reading_a_planned_file_waits_for_a_server_that_is_away_for_a_while(pauses: list[float]) -> None:
    there = Input(source="web", index=0, name="a", url=f"http://127.0.0.1:{free_port()}/a", size=4)
    with pytest.raises(OSError, match=r"after 9 attempts: .*refused"):
        open_input(there).read()
    assert sum(pauses) > 100


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    moto_server = pytest.importorskip("moto.server")
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    storage._filesystem.cache_clear()
    storage.filesystem("s3://").makedirs("crawl-inputs", exist_ok=True)
    yield "s3://crawl-inputs"
    server.stop()
    storage._filesystem.cache_clear()


def test_s3_lists_and_reads_as_disk_does(bucket: str, crawl: Path) -> None:
    for path in crawl.glob("*/*.gz"):
        storage.filesystem(bucket).pipe_file(f"{bucket}/crawl/{path.relative_to(crawl)}", path.read_bytes())
    on_disk = list_inputs(source(crawl / "*" / "*.gz"))
    in_s3 = list_inputs(source(f"{bucket}/crawl/*/*.gz"))
    assert [(f.index, f.name, f.size) for f in in_s3] == [(f.index, f.name, f.size) for f in on_disk]
    assert [open_input(f).read() for f in in_s3] == [open_input(f).read() for f in on_disk]
    assert names(f"{bucket}/crawl/a/1.warc.gz") == ["1.warc.gz"]
    with pytest.raises(RecipeError, match="there is no file"):
        names(f"{bucket}/crawl/a/9.warc.gz")
    with pytest.raises(RecipeError, match="matches no file"):
        names(f"{bucket}/crawl/*/*.wet.gz")
    with pytest.raises(RecipeError, match="is a folder"):
        names(f"{bucket}/crawl/a")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_wacz_in_s3_is_read_as_on_disk(bucket: str, method: int) -> None:
    data = wacz({"archive/1.warc.gz": member(good("a")), "archive/2.warc.gz": member(good("b"))}, method)
    storage.filesystem(bucket).pipe_file(f"{bucket}/crawl.wacz", data)
    (found,) = list_inputs(source(f"{bucket}/crawl.wacz"))
    options = ReadOptions(source="s", file=found.name, size=found.size)
    with open_input(found) as stream:
        items = list(read_documents(stream, options))
    assert items == list(read_documents(io.BytesIO(data), options))
    assert len(items) == 2


def test_a_bucket_that_does_not_exist_is_an_error_that_names_it(bucket: str) -> None:
    with pytest.raises(RecipeError, match="s3://no-such-bucket"):
        names("s3://no-such-bucket/*.gz")
