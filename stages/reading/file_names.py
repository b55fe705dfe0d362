"""What a file's name says of it: that it is a document by itself, or that it holds none."""

from __future__ import annotations

import posixpath
import re
from typing import Final, Literal

PACKED: Final = (".gz", ".zst", ".zstd", ".bz2", ".xz")
_PLAIN: Final = "txt text"
_WRITTEN: Final = (
    "md markdown mdx rst adoc asciidoc org tex py pyi pyx pxd c h cc cpp cxx hh hpp hxx cu cuh m mm cs fs java kt kts"
    " scala groovy go rs zig nim d swift dart js mjs cjs jsx ts mts tsx vue svelte php rb pl pm lua r jl hs ml mli ex"
    " exs erl hrl clj cljs elm lisp el scm rkt f f90 f95 f03 pas adb ads asm s v sv vhd vhdl sh bash zsh fish ps1 bat"
    " sql proto thrift graphql cmake tf nix css scss sass less toml yaml yml ini cfg"
)
_PLAIN_ENDINGS: Final = frozenset(f".{ending}" for ending in _PLAIN.split())
_ENDINGS: Final = _PLAIN_ENDINGS | {f".{ending}" for ending in _WRITTEN.split()}
_KINDS: Final[dict[str, Literal["pdf", "epub"]]] = {".pdf": "pdf", ".epub": "epub"}
_MARKER: Final = re.compile(
    r"""(?:.*/)?(?:
      _SUCCESS|_FAILURE|_(?:started|committed)_[^/]*     # Hadoop's and Spark's committers, Databricks'
      |_(?:common_)?metadata                             # Parquet footers of other files
      |[^/]+\.crc                                        # Hadoop's checksums
      |(?:_delta_log|_temporary|\.hoodie)/.*             # logs of Delta and Hudi, parts that were not committed
      |metadata/(?:version-hint\.text|[^/]+\.metadata\.json|[^/]+\.avro)  # Iceberg's manifests
    )""",
    re.VERBOSE | re.DOTALL,
)


_INDEX: Final = re.compile(r".*\.cdxj?(?:\.gz)?", re.IGNORECASE | re.DOTALL)


def unpacked_name(name: str) -> str:
    """The name in lower case without the endings of compression."""
    name = name.lower()
    for ending in PACKED:
        name = name.removesuffix(ending)
    return name


def kind_by_name(name: str) -> Literal["file", "pdf", "epub"] | None:
    """What a file of this name is that is a document by itself, compressed or not: a text or a source file (`file`), a
    PDF or an EPUB. None for any other name."""
    ending = posixpath.splitext(unpacked_name(name))[1]
    return "file" if ending in _ENDINGS else _KINDS.get(ending)


def may_hold_rows(name: str) -> bool:
    """Whether one of those may be a file of rows or records all the same, as writers call anything .txt."""
    return posixpath.splitext(unpacked_name(name))[1] in _PLAIN_ENDINGS


def is_marker(name: str) -> bool:
    """Whether a writer of tables leaves a file of this relative name beside its parts, or a crawler one beside its WARC
    files."""
    return _MARKER.fullmatch(name) is not None or is_index(name)


def is_index(name: str) -> bool:
    """Whether a file of this name is an index of WARC files (CDX or CDXJ)."""
    return _INDEX.fullmatch(name) is not None
