"""Files larger than run.unit_bytes: the same output as one reader gives, told and resumed as every other."""

from __future__ import annotations

import bz2
import gzip
import json
import random
import signal
import struct
import subprocess
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import boto3
import pytest
import zstandard

from lineage.storage.folder import Folder
from pipeline.cli.main import main
from pipeline.phases import large_files, read
from pipeline.plan import Unit
from pipeline.results.unit_results import ReadResult
from stages.reading import give_up, jsonl, options, reader
from tests.stages.reading.test_spans import cut, seekable, table
from tests.support.inputs.make_warc import http, member, record
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import ON_RAY, fingerprint, recipe, run, s3_server, write_recipe
from tests.support.processes.killed_runs import Moment, command, wait_for
from tests.support.stores.failing_server import Faults, failing_server

WORDS = [
    "the",
    "harbour",
    "was",
    "quiet",
    "and",
    "boats",
    "came",
    "home",
    "before",
    "rain",
    "while",
    "a",
    "keeper",
    "of",
    "light",
    "wrote",
    "to",
    "his",
    "sister",
    "about",
    "that",
]


def text(n: int) -> str:
    chosen = random.Random(n)
    return "\n".join(
        f"{n} " + " ".join(chosen.choices(WORDS, k=chosen.randint(8, 30))) + "."
        for _ in range(chosen.randint(1, 12))
    )


def web_page(n: int) -> bytes:
    paragraphs = "".join(f"<p>{line}</p>" for line in text(n).split("\n"))
    return f"<html><body><article><h1>{n}</h1>{paragraphs}</article></body></html>".encode()


def crawl() -> bytes:
    """Members of pages, two of them twice, with damage between and within them."""
    members = [member(record(http(web_page(n % 58)), str(n))) for n in range(60)]
    broken = bytearray(members[31])
    broken[len(broken) // 2] ^= 255
    members[31] = bytes(broken)
    members[12:12] = [b"no member at all" * 20]
    return b"".join(members)


def lines() -> bytes:
    """Rows with and without an id, blank lines, and lines that are no rows."""
    rows = [json.dumps({"text": text(n), "id": f"r{n}"} if n % 3 else {"text": text(n)}) for n in range(60)]
    rows[20:20] = ["{broken", "", "[]"]
    rows[45:45] = [rows[3]]
    return "\n".join(rows).encode()


FILES: dict[str, bytes] = {
    "a.warc.gz": crawl(),
    "b.warc": b"".join(record(http(web_page(n)), f"plain {n}") for n in range(30)),
    "c.jsonl": lines(),
    "d.jsonl.zst": b"".join(map(seekable, cut(lines(), 3))),
    "e.jsonl.gz": b"".join(map(member, cut(lines(), 4))),
    "f.parquet": table(60, 5),
    "one.jsonl.gz": gzip.compress(lines()),
    "whole.txt": b"A text of its own.\n" * 500,
}


def made(
    folder: Path, out: str, unit_bytes: int, files: dict[str, bytes] = FILES, **tables: Any
) -> dict[str, Any]:
    """A recipe over these files that keeps all that a run can keep."""
    (folder / "in").mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / "in" / name).write_bytes(data)
    tables = {"run": {"keep_text": True, "unit_bytes": unit_bytes}, "quality": {"ledger": "all"}} | tables
    plain = recipe(
        str(folder / out), {"own": (str(folder / "in/*"),)}, limits={"max_bad_records": 1.0}, **tables
    )
    plain["language"]["keep"] = ["en"]
    return plain


def all_of(out: Path) -> dict[str, str]:
    """What law 1 speaks of, and the parsed texts."""
    folder = Folder(str(out))
    texts = {name: folder.read(name).hex() for name in folder.names("texts") if not name.endswith(".zip")}
    return fingerprint(str(out)) | texts


def test_an_output_has_the_same_bytes_whatever_is_read_in_parts(tmp_path: Path) -> None:
    run(tmp_path / "0", made(tmp_path, "whole", 0))
    expected = all_of(tmp_path / "whole")
    for unit_bytes in (700, 9_000):
        run(tmp_path / str(unit_bytes), made(tmp_path, f"parts{unit_bytes}", unit_bytes))
        assert all_of(tmp_path / f"parts{unit_bytes}") == expected
    shown = "SELECT file, bytes, num_records, num_documents FROM inputs ORDER BY file"
    rows = query(Folder(str(tmp_path / "parts700")), shown).rows
    assert [Path(row[0]).name for row in rows] == sorted(FILES)
    assert [row[1] for row in rows] == [len(FILES[name]) for name in sorted(FILES)]


SMALL = {name: FILES[name] for name in ("a.warc.gz", "d.jsonl.zst")}


def misleading() -> bytes:
    """Pages, and among them one whose body holds records in gzip members, stored as they are."""
    inner = b"".join(member(record(http(web_page(n)), f"false {n}")) for n in range(4))
    outer = gzip.compress(record(http(inner, "application/gzip"), "outer"), 0, mtime=0)
    pages = [member(record(http(web_page(n)), str(n))) for n in range(12)]
    return b"".join([*pages[:3], outer, *pages[3:]])


def test_a_part_that_begins_in_the_body_of_a_record_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"a.warc.gz": misleading()}
    run(tmp_path / "0", made(tmp_path, "whole", 0, files))
    read = watched(monkeypatch)
    run(tmp_path / "1", made(tmp_path, "parts", 1_500, files))
    assert [name for name in read if "gzip" in name], "spans that go on where the one before them ended"
    assert all_of(tmp_path / "parts") == all_of(tmp_path / "whole")


def watched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders of the units that are read from here on."""
    folders: list[str] = []
    read_unit = read.read_unit

    def seen(job: read.ReadJob, unit: Unit) -> ReadResult:
        folders.append(unit.folder)
        return read_unit(job, unit)

    monkeypatch.setattr(read, "read_unit", seen)
    return folders


PAGES = [member(record(http(web_page(n)), str(n))) for n in range(40)]
STARTS = [0, *accumulate(map(len, PAGES))][:-1]
FRAMES = [zstandard.compress(record(http(web_page(n)), str(n))) for n in range(40)]
ROWS = [zstandard.compress(piece) for piece in cut(lines(), 3) if piece]
ROWS_11 = "N b a m s k r M S V g"


def cdx(starts: Sequence[int], name: str = "a.warc.gz", columns: str = ROWS_11, head: bool = True) -> bytes:
    """Lines in the order of their keys, as a CDX file has them."""
    known = {"V": "{}", "g": f"crawl/{name}", "S": "99"}
    row = " ".join(known.get(column, "-") for column in columns.split())
    rows = sorted(row.format(start)[::-1] for start in starts)
    return "\n".join([f" CDX {columns}"] * head + [row[::-1] for row in rows]).encode() + b"\n"


def cdxj(starts: Sequence[int], name: str = "a.warc.gz") -> bytes:
    fields = [{"url": "https://example.org/{}", "offset": str(start), "filename": name} for start in starts]
    found = [f"org,example)/ 2024010100{n:04} {json.dumps(row)}\n" for n, row in enumerate(fields)]
    return "".join(["!OpenWayback-CDXJ 1.0\n", *found]).encode()


def with_table(
    frames: Sequence[bytes], *, has_checksums: bool = False, of: Sequence[bytes] | None = None
) -> bytes:
    """Frames with the seek table of these or of other ones."""
    entries = b""
    for frame in frames if of is None else of:
        content = len(zstandard.decompress(frame))
        entries += struct.pack("<II", len(frame), content) + (b"\0\0\0\0" if has_checksums else b"")
    number = len(frames if of is None else of)
    table = entries + struct.pack("<IBI", number, has_checksums << 7, 0x8F92EAB1)
    return b"".join(frames) + struct.pack("<II", 0x184D2A5E, len(table)) + table


def spans_of(folders: Sequence[str]) -> list[tuple[int, ...]]:
    """The bytes of the spans that were read, and where one was read from if not from its begin."""
    names = (folder.rpartition("/")[2].partition(".")[2] for folder in folders)
    return [tuple(int(word) for word in name.split(".")[0].split("-")) for name in names if name]


INDEXED: dict[str, tuple[dict[str, bytes], list[int]]] = {
    "CDX": ({"a.warc.gz": b"".join(PAGES), "a.warc.gz.cdx": cdx(STARTS)}, STARTS),
    "CDX of 9 columns without a head": (
        {"a.warc.gz": b"".join(PAGES), "a.cdx": cdx(STARTS, columns="N b a m s k r V g", head=False)}, STARTS,
    ),
    "CDX of half of the records": ({"a.warc.gz": b"".join(PAGES), "a.warc.cdx": cdx(STARTS[1::2])}, STARTS[1::2]),
    "CDX of several files": (
        {"a.warc.gz": b"".join(PAGES), "a.cdx": cdx(range(0, 9**9, 9**7), "b.warc.gz") + cdx(STARTS)}, STARTS,
    ),
    "CDXJ": ({"a.warc.gz": b"".join(PAGES), "a.cdxj": cdxj(STARTS)}, STARTS),
    "packed CDXJ": ({"a.warc.gz": b"".join(PAGES), "a.warc.gz.cdxj.gz": gzip.compress(cdxj(STARTS))}, STARTS),
    "records by a seek table": (
        {"a.warc.zst": with_table(FRAMES)}, [0, *accumulate(map(len, FRAMES))],
    ),
    "rows by a seek table with checksums": (
        {"a.jsonl.zst": with_table(ROWS, has_checksums=True)}, [0, *accumulate(map(len, ROWS))],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", INDEXED)
def test_parts_begin_where_an_index_says_that_a_member_does(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files, starts = INDEXED[kind]
    run(tmp_path / "0", made(tmp_path, "whole", 0, files))
    folders = watched(monkeypatch)
    unit_bytes = len(next(iter(files.values()))) // 6
    path = write_recipe(tmp_path / "r.toml", made(tmp_path, "parts", unit_bytes, files))
    assert main(["run", str(path)]) == 0
    assert all_of(tmp_path / "parts") == all_of(tmp_path / "whole")
    begins = [span[0] for span in spans_of(folders)]
    assert len(begins) == len(set(begins)) > 3 and set(begins) <= {0, *starts}
    assert "is not used" not in (said := capsys.readouterr().err) and "nothing begins" not in said


def test_a_run_goes_on_without_the_index_that_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that lies beside the file and is no input, so that a run does not depend on it."""
    files = {"a.warc.gz": b"".join(PAGES), "a.warc.gz.cdx": cdx(STARTS)}
    only = {"own": (str(tmp_path / "in/*.gz"),)}

    def plain(out: str, unit_bytes: int) -> dict[str, Any]:
        found = made(tmp_path, out, unit_bytes, files)
        found["source"][0]["inputs"] = list(only["own"])
        return found

    run(tmp_path / "0", plain("whole", 0))
    folders = watched(monkeypatch)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(large_files, "splice_unit", interrupted)
        run(tmp_path / "1", plain("parts", 3_000))
    assert {begin for begin, *_ in spans_of(folders)} <= set(STARTS)
    del folders[:]
    parts = plain("parts", 3_000)
    (tmp_path / "in/a.warc.gz.cdx").unlink()
    run(tmp_path / "1", parts)
    assert not {begin for begin, *_ in spans_of(folders)} <= set(STARTS)
    assert all_of(tmp_path / "parts") == all_of(tmp_path / "whole")


def interrupted(job: read.ReadJob, item: large_files.Spliced) -> ReadResult:
    raise KeyboardInterrupt


def test_an_index_on_a_web_server_is_used_where_it_is_an_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"a.warc.gz": b"".join(PAGES), "a.cdxj": cdxj(STARTS)}
    run(tmp_path / "0", made(tmp_path, "whole", 0, files))
    folders = watched(monkeypatch)
    with failing_server(tmp_path / "in", Faults()) as url:
        plain = made(tmp_path, "parts", 2_500, files)
        plain["source"][0]["inputs"] = [f"{url}/{name}" for name in files]
        run(tmp_path / "1", plain)
    begins = [span[0] for span in spans_of(folders)]
    assert len(begins) > 3 and set(begins) <= set(STARTS)
    assert fingerprint(str(tmp_path / "parts")) == fingerprint(str(tmp_path / "whole"))


MIDDLES = [start + 40 for start in STARTS]
FALSE: dict[str, tuple[dict[str, bytes], str]] = {
    "the middle of members": ({"a.cdx": cdx(MIDDLES)}, "where nothing begins: it is not of this file"),
    "one middle among starts": (
        {"a.cdxj": cdxj([*STARTS[:9], *MIDDLES[9:30], *STARTS[30:]])}, "where nothing begins: it is not of this file",
    ),
    "beyond the end": ({"a.cdx": cdx([*STARTS, 9**9])}, "names byte 387,420,489, and the file has"),
    "another file": ({"a.cdx": cdx(STARTS, "b.warc.gz")}, "none of its lines names this file"),
    "no index": ({"a.cdxj": b"<html>not found</html>\n"}, "its line 1 names no file and offset"),
    "a head without offsets": ({"a.cdx": cdx(STARTS, columns="N b a m g")}, "its line 2 names no file and offset"),
    "not packed": ({"a.cdx.gz": cdx(STARTS)}, "Not a gzipped file"),
    "cut off": ({"a.cdx.gz": gzip.compress(cdx(STARTS))[:90]}, "it cannot be unpacked"),
}  # fmt: skip


def told_of_false_index(
    files: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """The lines about the index, of a run that gives the bytes of one reader all the same."""
    run(tmp_path / "0", made(tmp_path, "whole", 0, files))
    unit_bytes = len(next(iter(files.values()))) // 6
    path = write_recipe(tmp_path / "r.toml", made(tmp_path, "parts", unit_bytes, files))
    assert main(["run", str(path)]) == 0
    assert all_of(tmp_path / "parts") == all_of(tmp_path / "whole")
    said = capsys.readouterr().err.splitlines()
    return [line for line in said if "is not used" in line or "nothing begins" in line]


@pytest.mark.parametrize("kind", FALSE)
def test_a_false_index_is_told_and_changes_no_byte(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, said = FALSE[kind]
    (line,) = told_of_false_index({"a.warc.gz": b"".join(PAGES), **files}, tmp_path, capsys)
    assert said in line and "a.cdx" in line


def test_an_index_of_records_in_the_body_of_a_record_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = misleading()
    inner = [at for at in range(len(data)) if data.startswith(b"\x1f\x8b\x08", at)]
    assert len(inner) > 13
    (line,) = told_of_false_index({"a.warc.gz": data, "a.cdx": cdx(inner[4:8])}, tmp_path, capsys)
    assert "where nothing begins" in line


@pytest.mark.parametrize(
    ("name", "frames", "of", "said"),
    [
        ("a.warc.zst", FRAMES, FRAMES[:-1], "its seek table is of frames of"),
        ("a.jsonl.zst", ROWS, ROWS[1:], "its seek table is of frames of"),
        ("a.warc.zst", FRAMES, FRAMES[::-1], "where nothing begins"),
        ("a.jsonl.zst", ROWS, ROWS[::-1], "where nothing begins"),
    ],
)
def test_a_false_seek_table_is_told_and_changes_no_byte(
    name: str,
    frames: list[bytes],
    of: list[bytes],
    said: str,
    *,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (line,) = told_of_false_index({name: with_table(frames, of=of)}, tmp_path, capsys)
    assert said in line and "the seek table of" in line


@pytest.mark.parametrize(
    ("bounds", "limits"),
    [
        (((give_up, "_MANY", 1),), {}),
        (((give_up, "_TOO_MANY", 2),), {}),
        (((reader, "ALWAYS_UNFOLDED_BYTES", 0),), {"max_compression_ratio": 1}),
    ],
    ids=["many bad lines", "too many", "much unfolded"],
)
def test_a_file_that_comes_near_a_bound_is_read_by_one_reader(
    bounds: tuple[tuple[Any, str, int], ...],
    limits: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = {"a.jsonl": b"{\n" * 40 + lines(), "b.warc.gz": crawl()}
    for module, name, value in bounds:
        monkeypatch.setattr(module, name, value)
    for out, unit_bytes in (("whole", 0), ("parts", 3_000)):
        plain = made(tmp_path, out, unit_bytes, files)
        plain["limits"] |= limits
        run(tmp_path / f"{out} recipe", plain)
    assert all_of(tmp_path / "parts") == all_of(tmp_path / "whole")


@pytest.mark.parametrize(("counter", "fields"), [
    ("by_status", [{"status": "200 OK"}, {"status": "404 Not Found"}, {"status": "500 Error"}]),
    ("by_mime", [{"content_type": "text/html"}, {"content_type": "image/png"}, {"content_type": "video/mp4"}]),
    ("by_type", [{"WARC-Type": "response"}, {"WARC-Type": "request"}, {"WARC-Type": "metadata"}]),
])  # fmt: skip
@pytest.mark.parametrize("most", [2, 3])
def test_names_beyond_the_bound_of_a_counter_are_counted_as_one_reader_does(
    most: int, counter: str, fields: list[dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part has a name of its own, so no part alone comes to the bound: all names together do."""
    members = []
    for number, one in enumerate(fields):
        for n in range(8):
            answer = http(web_page(8 * number + n), **{key: one[key] for key in one if key != "WARC-Type"})
            kind = {"WARC_Type": one["WARC-Type"]} if "WARC-Type" in one else {}
            members.append(member(record(answer, f"{number} {n}", **{k.lower(): v for k, v in kind.items()})))
    files = {"a.warc.gz": b"".join(members)}
    for module in (options, large_files):
        monkeypatch.setattr(module, "MAX_DISTINCT", most)
    run(tmp_path / "0", made(tmp_path, "whole", 0, files))
    folders = watched(monkeypatch)
    run(tmp_path / "1", made(tmp_path, "parts", len(files["a.warc.gz"]) // 6, files))
    asked = f"SELECT {counter} FROM inputs"
    counted, expected = (query(Folder(str(tmp_path / out)), asked).rows for out in ("parts", "whole"))
    assert counted == expected
    assert len(json.loads(str(counted[0][0]))) == 3  # two names and "other", or three
    assert sum("." in folder for folder in folders) >= 6
    is_read_whole = any("." not in folder.rpartition("/")[2] for folder in folders)
    assert is_read_whole == (most == 2), "at the bound, but not beyond it, the parts are enough"


def plain_rows(n: int) -> bytes:
    return json.dumps({"text": text(n)}).encode() + b"\n"


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress, bz2.compress], ids=["gz", "zst", "bz2"])
def test_what_begins_no_member_at_a_border_is_damage_and_no_plain_text(
    pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    """The reader of the second part begins there, where a plain file would be read as rows."""
    members = [pack(b"".join(plain_rows(10 * k + n) for n in range(5))) for k in range(6)]
    plain = b"".join(plain_rows(100 + n) for n in range(4))
    name = {gzip.compress: "a.jsonl.gz", zstandard.compress: "a.jsonl.zst", bz2.compress: "a.jsonl.bz2"}[pack]
    for number, behind in enumerate((plain, plain + b"".join(members[3:]))):
        files = {name: b"".join(members[:3]) + behind}
        run(tmp_path / "0", made(tmp_path, f"whole{number}", 0, files))
        for unit_bytes in (len(members[0]), len(files[name]) // 2, len(files[name]) * 3 // 4):
            out = f"parts{number}-{unit_bytes}"
            run(tmp_path / f"{out} recipe", made(tmp_path, out, unit_bytes, files))
            assert all_of(tmp_path / out) == all_of(tmp_path / f"whole{number}")
        lost = query(Folder(str(tmp_path / f"whole{number}")), "SELECT error FROM unreadable").rows
        assert len(lost) == 1 and "no compressed member begins" in str(lost[0][0])


def test_a_file_whose_members_hold_nothing_is_empty_once(tmp_path: Path) -> None:
    files = {"a.jsonl.gz": gzip.compress(b"", mtime=0) * 300, "b.jsonl": lines()}
    for out, unit_bytes in (("whole", 0), ("parts", 1_000)):
        run(tmp_path / f"{out} recipe", made(tmp_path, out, unit_bytes, files))
        asked = "SELECT notes FROM inputs WHERE file LIKE '%a.jsonl.gz'"
        assert json.loads(str(query(Folder(str(tmp_path / out)), asked).rows[0][0])) == {"empty": 1}
    assert all_of(tmp_path / "parts") == all_of(tmp_path / "whole")


def test_documents_behind_a_limit_are_not_read_whatever_the_parts(tmp_path: Path) -> None:
    for out, unit_bytes in (("whole", 0), ("parts", 2_000)):
        plain = made(tmp_path, out, unit_bytes, SMALL)
        plain["source"][0]["limit_documents"] = 7
        run(tmp_path / f"{out} recipe", plain)
    assert all_of(tmp_path / "parts") == all_of(tmp_path / "whole")


def test_a_file_in_one_member_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"a.warc.gz": member(b"".join(record(http(web_page(n)), str(n)) for n in range(9)))}
    files |= dict.fromkeys(("b.jsonl.gz", "c.jsonl.gz"), FILES["one.jsonl.gz"])
    path = write_recipe(tmp_path / "r.toml", made(tmp_path, "out", 1_000, files))
    with monkeypatch.context() as patched:
        patched.setattr(jsonl, "_LONG_MEMBER_BYTES", 0)
        assert main(["run", str(path)]) == 0
    said = capsys.readouterr().err
    assert (
        "a.warc.gz is read by one worker: all its records are in one compressed member: pack each as its own"
        in said
    )
    assert (
        said.count("gzip member: pack them in many (gzip -dc FILE | split -l 100000 --filter='gzip >> NEW')")
        == 2
    )
    packed = "gzip -dc b.jsonl.gz | split -l 10 --filter='gzip >> many.jsonl.gz'"
    subprocess.run(packed, shell=True, check=True, cwd=tmp_path / "in")
    for name in ("a.warc.gz", "b.jsonl.gz", "c.jsonl.gz"):
        (tmp_path / "in" / name).unlink()
    again = write_recipe(tmp_path / "again.toml", made(tmp_path, "again", 1_000, {}))
    assert main(["run", str(again)]) == 0
    assert "one worker" not in capsys.readouterr().err


def test_a_run_with_other_parts_goes_on_and_what_was_put_together_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "0", made(tmp_path, "whole", 0, SMALL))
    splice_unit, spliced = large_files.splice_unit, []

    def interrupted(job: read.ReadJob, item: large_files.Spliced) -> ReadResult:
        if spliced:
            raise KeyboardInterrupt
        spliced.append(item.unit.folder)
        return splice_unit(job, item)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(large_files, "splice_unit", interrupted)
        run(tmp_path / "1", made(tmp_path, "parts", 3_000, SMALL))
    folders = watched(monkeypatch)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(large_files, "splice_unit", interrupted)
        run(tmp_path / "1", made(tmp_path, "parts", 3_000, SMALL))
    assert not folders
    run(tmp_path / "2", made(tmp_path, "parts", 5_000, SMALL))
    assert folders
    assert not [name for name in folders if name.startswith(spliced[0])]
    assert all_of(tmp_path / "parts") == all_of(tmp_path / "whole")


def test_parts_of_a_file_on_a_web_server_are_read_by_ranges(tmp_path: Path) -> None:
    run(tmp_path / "0", made(tmp_path, "whole", 0, SMALL))
    with failing_server(tmp_path / "in", Faults()) as url:
        plain = made(tmp_path, "parts", 2_500, SMALL)
        plain["source"][0]["inputs"] = [f"{url}/{name}" for name in SMALL]
        run(tmp_path / "1", plain)
    assert fingerprint(str(tmp_path / "parts")) == fingerprint(str(tmp_path / "whole"))


@pytest.mark.slow
def test_parts_of_a_file_on_s3_give_the_same_bytes(tmp_path: Path) -> None:
    run(tmp_path / "0", made(tmp_path, "whole", 0, SMALL))
    with s3_server("large"):
        client = boto3.client("s3")
        for name, data in SMALL.items():
            client.put_object(Bucket="large", Key=f"in/{name}", Body=data)
        plain = made(tmp_path, "parts", 2_500, SMALL)
        plain["source"][0]["inputs"] = ["s3://large/in/*"]
        run(tmp_path / "1", plain)
    assert fingerprint(str(tmp_path / "parts")) == fingerprint(str(tmp_path / "whole"))


@pytest.mark.usefixtures("small_ray")
def test_ray_and_one_process_give_the_same_bytes(tmp_path: Path) -> None:
    run(tmp_path / "0", made(tmp_path, "whole", 0, SMALL))
    run(tmp_path / "1", made(tmp_path, "parts", 3_000, SMALL, ray=ON_RAY))
    assert all_of(tmp_path / "parts") == all_of(tmp_path / "whole")


MOMENTS = [
    *(Moment("work/units/*/lines.json", n) for n in (1, 3)),
    *(Moment("work/units/*.*/part.parquet", n) for n in (1, 2, 4, 6, 8)),
    *(Moment("work/units/*.*/unit.json", n) for n in (1, 2, 3, 5, 7, 9)),
    Moment("documents/*/*.parquet", 1),
    Moment("documents/*/*.parquet", 2),
    *(Moment(f"work/units/*/{name}.json", 1) for name in ("run", "final")),
    Moment("work/dedup/*/done.json", 1),
    Moment("shards/*/*.bin", 1),
    Moment("index.json", 1),
]


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS, ids=str)
def test_a_run_that_was_killed_repeats_no_part_that_was_read(
    moment: Moment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "0", made(tmp_path, "whole", 0, SMALL))
    out = tmp_path / "parts"
    path = write_recipe(tmp_path / "recipe.toml", made(tmp_path, "parts", 3_000, SMALL))
    with command(path) as driver:
        wait_for(moment, out, driver)
    assert driver.returncode == -signal.SIGKILL
    there = {str(marker.parent.relative_to(out)) for marker in out.glob("work/units/*/unit.json")}
    folders = watched(monkeypatch)
    assert main(["run", str(path)]) == 0
    assert not there & set(folders)
    assert all_of(out) == all_of(tmp_path / "whole")
