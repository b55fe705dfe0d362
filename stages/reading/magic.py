"""What a file is by its first bytes: the one table of the kinds that are not read, and what to do with
them."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import Final

from lineage.magic import BZIP2_MAGIC, GZIP_MAGIC, XZ_MAGIC, ZSTD_MAGIC

HEAD_BYTES: Final = 16 << 10
"""As many first bytes as are ever asked for."""
PARQUET_MAGIC: Final = b"PAR1"
ARE_READ: Final = "gzip, zstd, bzip2, xz and plain files are read"


@dataclass(frozen=True, slots=True)
class Unread:
    """A kind of file that is not read: what its first bytes look like, what it is, and what to do with it."""

    begins: re.Pattern[bytes]
    is_: str
    advice: str


def _unread(begins: bytes, is_: str, advice: str) -> Unread:
    return Unread(re.compile(begins, re.DOTALL | re.IGNORECASE if b"<" in begins else re.DOTALL), is_, advice)


_UNPACK: Final = f"{ARE_READ}: unpack it first"
_AS_TABLE: Final = "write it as Parquet or JSON lines first"
_TABLE: Final = (
    _unread(rb"\x04\x22\x4d\x18|\x02\x21\x4c\x18", "compressed with LZ4", f"{_UNPACK} (lz4 -d)"),
    _unread(rb"\xff\x06\x00\x00sNaPpY", "compressed with Snappy", f"{_UNPACK} (snzip -d)"),
    _unread(rb"\x89LZO\x00\r\n\x1a\n", "compressed with LZO", f"{_UNPACK} (lzop -d)"),
    _unread(rb"LZIP[\x00\x01]", "compressed with lzip", f"{_UNPACK} (lzip -d)"),
    _unread(rb"\x5d\x00\x00[\x00-\xff]{2}(?:\xff{8}|[\x00-\xff]{5}\x00{3})", "compressed with LZMA",
            f"{_UNPACK} (xz -d --format=lzma)"),
    _unread(rb"\x1f\x9d", "compressed with compress", f"{_UNPACK} (gzip -d)"),
    _unread(rb"PK(?:\x03\x04(?!.{26}(?:archive/|datapackage|fuzzy|indexes/|logs/|pages/))|\x05\x06|\x07\x08)",
            "a ZIP archive", f"{_UNPACK} (unzip); a WACZ file is named so or begins with one of its own members"),
    _unread(rb"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", f"{_UNPACK} (7z x)"),
    _unread(rb"Rar!\x1a\x07", "a RAR archive", f"{_UNPACK} (unrar x)"),
    _unread(rb".{257}ustar", "a tar archive", "unpack it first (tar -xf) and name the files in it; LaTeX"
            " sources of papers are read with source.format = \"latex\""),
    _unread(rb"ORC", "an ORC file", _AS_TABLE),
    _unread(rb"Obj\x01", "an Avro file", _AS_TABLE),
    _unread(rb"ARROW1\x00\x00|FEA1|\xff{4}.{2}\x00\x00[\x04-\x40]\x00\x00\x00", "an Arrow IPC (Feather) file",
            _AS_TABLE),
    _unread(rb"SQLite format 3\x00", "an SQLite database", _AS_TABLE),
    _unread(rb"\x89HDF\r\n\x1a\n", "an HDF5 file", _AS_TABLE),
    _unread(rb"%PDF-", "a PDF document", "name it .pdf, or its source.format \"pdf\""),
    _unread(rb"version https://git-lfs\.github\.com/", "a pointer of Git LFS and not the file itself",
            "fetch the file first (git lfs pull)"),
    _unread(rb"(?:\xef\xbb\xbf)?\s*(?:<!doctype\s+html|<html[\s>])", "an HTML page",
            "a server may have sent an error page in place of the file: look at it, and fetch the file again; HTML of a"
            " checkout is read with source.format = \"file\", pages go into a WARC file or JSON lines first"),
    _unread(rb"(?:\xef\xbb\xbf)?\s*<\?xml\s(?![^>]{0,200}>\s*<mediawiki\s)", "an XML file",
            "write its texts as JSON lines first (a dump of a MediaWiki site begins with <mediawiki)"),
    _unread(rb"\xff\xfe|\xfe\xff", "a text in UTF-16 or UTF-32", "write it in UTF-8 first (iconv -f UTF-16 -t UTF-8)"),
)  # fmt: skip
"""In this order. No file of records or rows begins so."""
_NAMED: Final = {
    ".br": ("compressed with Brotli", f"{_UNPACK} (brotli -d)"),
    ".snappy": ("compressed with Snappy", _UNPACK),
    ".sz": ("compressed with Snappy", f"{_UNPACK} (snzip -d)"),
    ".csv": (
        "a table of comma-separated values",
        f"{_AS_TABLE}, in Python: import pyarrow.csv, pyarrow.parquet;"
        " pyarrow.parquet.write_table(pyarrow.csv.read_csv('a.csv'), 'a.parquet')",
    ),
    ".tsv": (
        "a table of tab-separated values",
        f"{_AS_TABLE}, in Python: import pyarrow.csv as c, pyarrow.parquet;"
        " pyarrow.parquet.write_table(c.read_csv('a.tsv', parse_options=c.ParseOptions(delimiter='\\t')),"
        " 'a.parquet')",
    ),
}
"""What has no magic is known by its name, where its first bytes are of nothing that is read."""
_IS_READ = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*\{|WARC/|PAR1|" + re.escape(GZIP_MAGIC) + b"|" + re.escape(ZSTD_MAGIC)
)


def is_streamed(head: bytes) -> bool:
    """Whether a file is a bzip2 or xz stream: its members hold stretches of its content and no whole records.
    A head of xz must be whole, with its checksum (xz-file-format.txt, 2.1.1): a damaged member of another
    file may look like one."""
    flags = head[len(XZ_MAGIC) : len(XZ_MAGIC) + 2]
    is_xz = head.startswith(XZ_MAGIC + flags + zlib.crc32(flags).to_bytes(4, "little")) and len(flags) == 2
    return is_xz or BZIP2_MAGIC.match(head) is not None


def why_not_read(head: bytes, name: str) -> str | None:
    """What a file is and what to do with it, where no reader is for it: by its first bytes (HEAD_BYTES of
    them, or all there are), or else its name. None for every other file, damaged ones too."""
    for kind in _TABLE:
        if kind.begins.match(head) and not (head.startswith(b"PK") and name.lower().endswith(".wacz")):
            return f"it is {kind.is_}: {kind.advice}"
    for ending, (is_, advice) in _NAMED.items():
        if name.lower().endswith(ending) and head and not _IS_READ.match(head) and not is_streamed(head):
            return f"by its name it is {is_}: {advice}"
    return None


def why_content_not_read(begin: bytes) -> str | None:
    """The same of what a compressed file unfolds to. Parquet is read from its end, and compresses its own
    pages."""
    if begin.startswith(PARQUET_MAGIC):
        return f"it is a compressed Parquet file: {_UNPACK}, as Parquet compresses its own pages"
    unread = why_not_read(begin, "")
    return None if unread is None else f"unpacked {unread}"
