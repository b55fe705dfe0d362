"""Hundreds of thousands of real pages: the HTML of Debian's documentation packages, packed as a crawl.

`pack` fetches the packages by apt-get and unpacks them by dpkg-deb; nothing else reaches the internet. A page is an
*.html file, distinct by its bytes, with the URL http://PACKAGE.debian.example/PATH and its gzip member in one of
NUM_FILES WARC files, by the hash of that URL. So each file is a sample of all pages, and the first files are a
smaller corpus of the same kind."""

from __future__ import annotations

import concurrent.futures
import gzip
import hashlib
import itertools
import json
import re
import subprocess
import tempfile
import urllib.parse
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from pipeline.demo.warcs import response_member

NUM_FILES: Final = 420
MANIFEST: Final = "pages.json"
PACKAGES: Final = (
    # Interfaces of C, C++, Pascal, Fortran and Java libraries, made by a tool of each language.
    *("lazarus-doc-2.2", "fp-docs-3.2.2", "pike8.0-doc", "petsc3.18-doc", "openjdk-17-doc", "libgtk-4-doc"),
    *("libhbci4j-core-java-doc", "casacore-doc", "libgecode-doc", "libpcl-doc", "libapache-poi-java-doc"),
    *("gnuradio-doc", "libball1.5-doc", "libfastutil-java-doc", "fwupd-doc", "ogre-1.12-doc", "fop-doc"),
    *("liblapack-doc", "dcmtk-doc", "libmed-doc", "libopenvdb-doc", "openscenegraph-doc", "wx3.2-doc"),
    *("clhep-doc", "libjuce-doc", "libcoin-doc", "libmwaw-doc", "libpwiz-doc", "rdkit-doc", "libviennacl-doc"),
    *("sofia-sip-doc", "libarm-compute-doc", "libcrypto++-doc", "libxalan-c-doc", "qtbase5-doc-html", "efl-doc"),
    *("libosl-doc", "seqan3-doc", "elastix-doc", "libxcb-doc", "gdcm-doc", "libxalan2-java-doc", "libsc-doc"),
    *("libjaxb-java-doc", "libcommons-math3-java-doc", "libcastor-java-doc", "libjfreechart-java-doc"),
    # Interfaces of other languages.
    *("scala-doc", "groovy-doc", "ghc-doc", "twisted-doc", "python-pandas-doc", "libghc-ghc-lib-parser-doc"),
    *("libghc-pandoc-doc", "libghc-agda-doc", "agda-stdlib-doc", "erlang-doc", "racket-doc"),
    # Manuals in prose.
    *("sagemath-doc", "db5.3-doc", "postgresql-doc-15", "python3.11-doc", "uima-doc", "derby-doc", "dpdk-doc"),
    *("debian-handbook", "gnucash-docs", "imagemagick-6-doc", "icu-doc", "giac-doc", "singular-doc"),
    # Versions of one manual: near-duplicates as crawls have them.
    *("rust-doc", "rust-web-doc", "cargo-web-doc", "linux-doc-6.1", "linux-doc-6.12"),
    *("libstdc++-11-doc", "libstdc++-12-doc", "libboost1.74-doc", "libboost1.81-doc"),
    *("llvm-15-doc", "llvm-16-doc", "llvm-19-doc", "libgtkmm-2.4-doc", "libgtkmm-3.0-doc", "libgtkmm-4.0-doc"),
    *("libbiojava-java-doc", "libbiojava4-java-doc", "libbiojava5-java-doc", "libbiojava6-java-doc"),
    # Translations of one manual.
    *(
        f"libreoffice-help-{language}"
        for language in (
            *("ca", "cs", "da", "de", "dz", "el", "en-gb", "en-us", "es", "et", "eu", "fi", "fr", "gl", "hi", "hu"),
            *("id", "it", "ja", "km", "ko", "nl", "om", "pl", "pt", "pt-br", "ru", "sl", "sv", "tr", "vi", "zh-cn"),
            "zh-tw",
        )
    ),
    *(f"lilypond-doc-html{language}" for language in ("", "-ca", "-de", "-es", "-fr", "-it", "-ja")),
    *(f"debian-reference-{language}" for language in ("de", "en", "es", "fr", "it", "ja", "pt", "zh-cn")),
    *("cppreference-doc-en-html", "installation-guide-amd64"),
)  # fmt: skip
"""In the order of packing: of pages with equal bytes the first package's is kept."""

_PAGE: Final = re.compile(r"\.x?html?(\.gz)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package as it was packed: its version, its pages, and those of them that no package before it has."""

    name: str
    version: str
    num_pages: int
    num_distinct: int


class _Member(NamedTuple):
    """A page as a WARC record."""

    digest: bytes
    file: int
    member: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A packed folder: its packages, and how many pages each of its files holds."""

    folder: Path
    packages: tuple[Package, ...]
    num_pages: tuple[int, ...]

    def first(self, num_pages: int) -> list[Path]:
        """The first files that hold `num_pages` together; RuntimeError if all of them hold fewer."""
        for number, found in enumerate(itertools.accumulate(self.num_pages), 1):
            if found >= num_pages:
                return _paths(self.folder)[:number]
        raise RuntimeError(f"{self.folder} holds {sum(self.num_pages):,} pages, fewer than {num_pages:,}")


def pack(folder: Path) -> Packed:
    """The pages in `folder`, which is filled where it has no manifest; RuntimeError with apt's or dpkg's output if
    they fail, for example because the release no longer has a package."""
    manifest = folder / MANIFEST
    if not manifest.exists():
        folder.mkdir(parents=True, exist_ok=True)
        manifest.write_text(json.dumps(_fill(folder), indent=1))
    found = json.loads(manifest.read_text())
    packages = tuple(Package(**each) for each in found["packages"])
    return Packed(folder=folder, packages=packages, num_pages=tuple(found["num_pages"]))


def _fill(folder: Path) -> dict[str, Any]:
    """Write the files; the content of the manifest."""
    paths = _paths(folder)
    for path in paths:
        path.write_bytes(b"")  # an earlier call may have ended in the midst
    seen, packages, num_pages = set[bytes](), list[Package](), Counter[int]()
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        for name, (version, members) in zip(PACKAGES, pool.map(_members_of, PACKAGES), strict=True):
            new = [each for each in members if each.digest not in seen]
            seen.update(each.digest for each in new)
            num_pages.update(each.file for each in new)
            for file, of_file in itertools.groupby(
                sorted(new, key=lambda each: each.file), lambda each: each.file
            ):
                with open(paths[file], "ab") as stream:
                    stream.writelines(each.member for each in of_file)
            packages.append(
                Package(name=name, version=version, num_pages=len(members), num_distinct=len(new))
            )
            print(
                f"{name} {version}: {len(members):,} pages, {len(new):,} new; {len(seen):,} in all",
                flush=True,
            )
    return {
        "packages": [asdict(each) for each in packages],
        "num_pages": [num_pages[file] for file in range(NUM_FILES)],
    }


def _paths(folder: Path) -> list[Path]:
    return [folder / f"debian-{number:05d}.warc.gz" for number in range(NUM_FILES)]


def _members_of(package: str) -> tuple[str, list[_Member]]:
    """The version of a package and its distinct pages, by path."""
    found: dict[bytes, _Member] = {}
    with tempfile.TemporaryDirectory(prefix="sluice-debian-") as scratch:
        _call(["apt-get", "download", "-qq", package], scratch)
        (archive,) = Path(scratch).glob("*.deb")
        version = _call(["dpkg-deb", "-f", str(archive), "Version"], scratch).strip()
        _call(["dpkg-deb", "-x", str(archive), "root"], scratch)
        archive.unlink()
        for path, html in _pages_of(Path(scratch) / "root"):
            digest = hashlib.blake2b(html, digest_size=16).digest()
            if digest not in found:
                found[digest] = _member_of(package, path, html, digest)
    return version, list(found.values())


def _pages_of(root: Path) -> Iterator[tuple[str, bytes]]:
    """The path and the bytes of each page below a folder, in order of path."""
    for path in sorted(root.rglob("*")):
        if _PAGE.search(path.name) and path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            html = gzip.decompress(data) if path.suffix == ".gz" else data
            yield path.relative_to(root).as_posix().removesuffix(".gz"), html


def _member_of(package: str, path: str, html: bytes, digest: bytes) -> _Member:
    url = f"http://{package}.debian.example/{urllib.parse.quote(path)}"
    hashed = hashlib.blake2b(url.encode(), digest_size=16).digest()
    member = response_member(url, "text/html", html, uuid.UUID(bytes=hashed, version=4))
    return _Member(digest, int.from_bytes(hashed[:8], "big") % NUM_FILES, member)


def _call(command: Sequence[str], folder: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)} failed with {done.returncode}: {done.stderr.strip()[-2000:]}"
        )
    return done.stdout
