"""Pages in charsets that nobody names, or that a header misnames: how many are read wrongly, ours beside its
peers.

    python -m benchmarks.charsets CRAWL [--labelled FOLDER] [--old CHECKOUT]

CRAWL is a folder of WARC files. Of its pages those that are valid UTF-8 beyond ASCII are taken, whose text
nobody doubts. A page is written in a charset if the letters of its main text fit; other characters that do
not are written as numeric references, as publishing systems do. No <meta> and no XML declaration names a
charset any more. Wrong is a page of which any character is read as another.

`labelled` are files whose folder names their charset (`windows-1251-russian/…`), as in chardet's tests
(https://github.com/chardet/chardet, folder tests); `made` are pages of one to four sentences of spaCy's
examples, for scripts that a crawl has few pages of; `snippets` are the texts alone, cut to 30 and to 200
characters around one beyond ASCII.

resiliparse is its own `bytes_to_str(page, detect_encoding(page))`, datatrove what its WarcReader does.
CHECKOUT is another checkout of this project, whose reading is told too. Then the crawl's own pages, as they
are: on how many the sides agree, and the time of each side in turns."""

from __future__ import annotations

import argparse
import importlib
import json
import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import cchardet
from resiliparse.parse.encoding import bytes_to_str, detect_encoding

from benchmarks.support.texts import main_text, predicted
from stages.document import Document
from stages.reading.charsets.charset import decode_text
from stages.reading.charsets.labels import known_charset
from stages.reading.reader import InputCounts, ReadOptions, read_documents
from stages.reading.warc.body import decode_body

Read = Callable[[bytes, str | None], str | None]
_MAX_BYTES: Final = 20_000_000
_DECLARATION = re.compile(r"<meta[^>]{0,300}charset[^>]{0,300}>|<\?xml[^>]{0,300}\?>", re.IGNORECASE)
_BEYOND_ASCII = re.compile(r"[^\0-\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Charset:
    """A charset and whose texts are written in it: languages as lid.176 and spaCy name them (None: all that
    fit), and the beginnings of the names of labelled folders."""

    name: str
    codec: str
    languages: tuple[str, ...] | None
    labelled: tuple[str, ...] = ()


_CENTRAL = ("pl", "cs", "sk", "hu", "hr", "sl")
_CYRILLIC = ("ru", "uk", "bg", "mk")
CHARSETS: Final = (
    Charset(name="windows-1252", codec="cp1252", languages=None),
    Charset(
        name="ISO-8859-2", codec="iso8859_2", languages=_CENTRAL, labelled=("iso-8859-2-", "windows-1250-")
    ),
    Charset(
        name="windows-1250", codec="cp1250", languages=_CENTRAL, labelled=("iso-8859-2-", "windows-1250-")
    ),
    Charset(name="windows-1251", codec="cp1251", languages=_CYRILLIC, labelled=("windows-1251-", "KOI8-R")),
    Charset(name="KOI8-R", codec="koi8_r", languages=("ru",), labelled=("windows-1251-russian", "KOI8-R")),
    Charset(name="Shift_JIS", codec="cp932", languages=("ja",), labelled=("SHIFT_JIS", "CP932", "EUC-JP")),
    Charset(name="EUC-JP", codec="euc_jp", languages=("ja",), labelled=("SHIFT_JIS", "CP932", "EUC-JP")),
    Charset(
        name="ISO-2022-JP", codec="iso2022_jp", languages=("ja",), labelled=("SHIFT_JIS", "CP932", "EUC-JP")
    ),
    Charset(name="GB18030", codec="gb18030", languages=("zh",), labelled=("GB2312",)),
    Charset(name="Big5", codec="big5hkscs", languages=(), labelled=("Big5",)),
    Charset(name="EUC-KR", codec="cp949", languages=("ko",), labelled=("EUC-KR", "CP949")),
    Charset(name="windows-1253", codec="cp1253", languages=("el",), labelled=("iso-8859-7-",)),
    Charset(
        name="windows-1254", codec="cp1254", languages=("tr",), labelled=("iso-8859-9-", "windows-1254-")
    ),
    Charset(name="windows-1255", codec="cp1255", languages=("he",), labelled=("windows-1255-",)),
    Charset(name="windows-1256", codec="cp1256", languages=("ar",), labelled=("windows-1256-",)),
    Charset(name="windows-1257", codec="cp1257", languages=("lt", "lv", "et")),
    Charset(name="windows-874", codec="cp874", languages=("th",), labelled=("TIS-620",)),
)


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the crawl: its bytes (content encodings undone), the header's charset, and, where its bytes
    are valid UTF-8 beyond ASCII, what they say, its main text and that text's language."""

    payload: bytes
    hint: str | None
    html: str = ""
    text: str = ""
    language: str = ""


def crawl_pages(folder: Path) -> list[Page]:
    """The HTML documents of the WARC files in `folder`, as our own reader finds them."""
    pages = []
    for path in sorted(folder.glob("*.warc.gz")):
        options = ReadOptions(source="crawl", file=path.name, max_document_bytes=_MAX_BYTES)
        with path.open("rb") as file:
            for item in read_documents(file, options, InputCounts()):
                if isinstance(item, Document) and item.is_html:
                    payload = decode_body(item.payload, item.content_encoding, _MAX_BYTES)
                    pages.append(_page(payload, item.charset_hint))
    return pages


def _page(payload: bytes, hint: str | None) -> Page:
    try:
        html = payload.decode("utf-8-sig")
    except UnicodeDecodeError:
        return Page(payload, hint)
    if html.isascii():
        return Page(payload, hint)
    text = main_text(html)
    return Page(payload, hint, _DECLARATION.sub("", html), text, predicted(text)[0].removeprefix("__label__"))


def of_crawl(pages: Sequence[Page], charset: Charset) -> Iterator[tuple[str, str]]:
    """HTML and main text of the pages that can be written in a charset."""
    for page in pages:
        spoken = charset.languages is None or page.language in charset.languages
        if spoken and not page.text.isascii() and _fits(page.text, charset.codec):
            yield page.html, page.text


def of_labelled(folder: Path | None, charset: Charset) -> Iterator[str]:
    """The labelled files of a charset's languages, as characters."""
    for place in sorted(folder.iterdir()) if folder and charset.labelled else ():
        if place.is_dir() and place.name.startswith(charset.labelled):
            label = place.name if known_charset(place.name) else place.name.rpartition("-")[0]
            for path in sorted(place.iterdir()):
                text = path.read_bytes().decode(known_charset(label) or "ascii", "replace")
                if "\ufffd" not in text:
                    yield _DECLARATION.sub("", text)


def made(charset: Charset) -> Iterator[str]:
    """Pages of one, two and four of spaCy's example sentences, beginning at each sentence."""
    for language in charset.languages or ():
        try:
            sentences = importlib.import_module(f"spacy.lang.{language}.examples").sentences
        except ModuleNotFoundError:
            continue
        fitting = [sentence for sentence in sentences if _fits(sentence, charset.codec)]
        for number in range(len(fitting)):
            for count in (1, 2, 4):
                body = "".join(f"<p>{sentence}</p>" for sentence in fitting[number : number + count])
                yield f"<html><head><title>{number}</title></head><body>{body}</body></html>"


def snippets(texts: Sequence[str], length: int) -> Iterator[str]:
    """A stretch of each text with a character beyond ASCII in it, without tags."""
    rng = random.Random(length)
    for text in texts:
        plain = " ".join(re.sub(r"<[^>]*>", " ", text).split())
        places = [match.start() for match in _BEYOND_ASCII.finditer(plain)]
        if places:
            start = max(0, rng.choice(places) - rng.randrange(length))
            yield plain[start : start + length]


def _fits(text: str, codec: str) -> bool:
    letters = "".join(filter(str.isalpha, text))
    try:
        letters.encode(codec)
    except UnicodeEncodeError:
        return False
    return True


def wrong(texts: Sequence[str], codec: str, read: Read, hint: str | None = None) -> str:
    """How many of the texts that say something beyond ASCII are read wrongly, of how many."""
    num_wrong = num_all = 0
    for text in texts:
        page = text.encode(codec, "xmlcharrefreplace")
        expected = page.decode(codec)
        if not expected.isascii():
            num_all += 1
            num_wrong += read(page, hint) != expected
    return f"{num_wrong}/{num_all}"


def ours(page: bytes, hint: str | None) -> str:
    """The text by this checkout."""
    return decode_text(page, hint)[0]


def resiliparse(page: bytes, hint: str | None) -> str:
    """The text as resiliparse's documentation decodes a page; it looks at no header."""
    return bytes_to_str(page, detect_encoding(page) or "utf-8")


def datatrove(page: bytes, hint: str | None) -> str | None:
    """The text as datatrove 0.10.1 decodes a page (process_record of its WARC reader), None where it drops
    it."""
    try:
        return page.decode("utf-8")
    except UnicodeDecodeError:
        charset = cchardet.detect(page)["encoding"]
    try:
        return page.decode(charset) if charset else None
    except (UnicodeDecodeError, LookupError):
        return None


def of_checkout(folder: Path) -> Read:
    """The reading of another checkout."""
    mine = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith("stages")}
    sys.path.insert(0, str(folder))
    try:
        theirs = importlib.import_module("stages.reading.charsets.charset")
    finally:
        sys.path.remove(str(folder))
        sys.modules.update(mine)
    if not (theirs.__file__ or "").startswith(str(folder)):
        sys.exit(f"{folder}: a checkout is expected, with stages/reading/charsets/charset.py")
    return lambda page, hint: str(theirs.decode_text(page, hint)[0])


def tell(
    charset: Charset, kind: str, texts: Sequence[str], sides: Mapping[str, Read], hint: str | None = None
) -> None:
    """One line: wrong of all, by side."""
    if texts:
        found = {name: wrong(texts, charset.codec, read, hint) for name, read in sides.items()}
        print(json.dumps({"charset": charset.name, "pages": kind, "header": hint, **found}), flush=True)


def as_crawled(pages: Sequence[Page], sides: Mapping[str, Read], rounds: int) -> None:
    """How the sides read the pages as they are: with how many of ours each agrees, and milliseconds a
    page."""
    texts = {name: [read(page.payload, page.hint) for page in pages] for name, read in sides.items()}
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(rounds):
        for name, read in sides.items():
            begun = time.process_time()
            for page in pages:
                read(page.payload, page.hint)
            best[name] = min(best[name], time.process_time() - begun)
    for name in sides:
        pairs = list(zip(texts[name], texts["ours"], strict=True))
        print(json.dumps({
            "as crawled": name, "pages": len(pages),
            "like ours": sum(theirs is not None and theirs.removeprefix("\ufeff") == mine for theirs, mine in pairs),
            "dropped": sum(theirs is None for theirs, _ in pairs),
            "with U+FFFD": sum("\ufffd" in (theirs or "") for theirs, _ in pairs),
            "ms a page": round(1000 * best[name] / max(len(pages), 1), 3),
        }))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("crawl", type=Path)
    parser.add_argument("--labelled", type=Path)
    parser.add_argument("--old", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    sides: dict[str, Read] = {"old": of_checkout(asked.old)} if asked.old else {}
    sides |= {"ours": ours, "resiliparse": resiliparse, "datatrove": datatrove}
    pages = crawl_pages(asked.crawl)
    for charset in CHARSETS:
        crawled = list(of_crawl(pages, charset))
        html = [page for page, _ in crawled]
        labelled = list(of_labelled(asked.labelled, charset))
        written = list(made(charset))
        tell(charset, "crawl", html, sides)
        tell(charset, "crawl", html, sides, "utf-8")
        tell(charset, "labelled", labelled, sides)
        tell(charset, "made", written, sides)
        for length in (30, 200):
            texts = [text for _, text in crawled] + labelled + written
            tell(charset, f"snippets of {length}", list(snippets(texts, length)), sides)
    as_crawled(pages, sides, asked.rounds)


if __name__ == "__main__":
    main()
