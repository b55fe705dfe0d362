"""Whether a step or reader costs more than linear time on hostile input: processor time at twice the length
beside it.

    python -m benchmarks.linearity [--only STEP…] [--family FAMILY…] [--characters 60000] [--to TABLE.jsonl]

Every family of `benchmarks.support.hostile` goes through every step and reader that it makes sense for, at a
length and at twice that. A factor above 2.6 is a fault, and ends this with exit 1; what costs less than 20 ms
at twice the length is left out, since a clock says nothing of it. What seems to be one is doubled up to three
times more: where a further doubling costs no more than that, it was a step at one length (another method, a
tree that is made), and the smallest factor counts. What is quadratic but small beside a linear part shows only
in long texts: `--characters 240000` looks for it. A factor is the least times of up to four rounds, each on
another text, so that no memory of ours helps. A family runs in a process of its own, which is ended
where one text takes more than a minute: native code may not come back."""

from __future__ import annotations

import argparse
import bz2
import functools
import gzip
import io
import json
import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.support.hostile import PAGES, TEXTS, Make
from lineage.pages import named_host, normalise_url, page_of
from stages.chain import build_chain
from stages.composition import clean_text
from stages.dedup.minhash import Signer
from stages.dedup.options import DedupTable
from stages.dedup.shingles import shingle_hashes
from stages.document import Document, Place, Step
from stages.html import extraction_child
from stages.ngrams import NgramIndex
from stages.pii.options import PiiTable
from stages.pii.step import PiiStep
from stages.quality.options import QualityTable
from stages.quality.step import quality_step
from stages.reading.options import ReadOptions
from stages.reading.reader import read_documents
from stages.rules import offending_lines
from stages.steps.catalogue import StepTables, rules_of
from stages.steps.language import LanguageStep, LanguageTable
from stages.steps.parse import ParseTable
from stages.steps.url import UrlStep, UrlTable
from stages.tokens.tokenizer import load_tokenizer, train_bpe

MOST: Final = 2.6
FLOOR_SECONDS: Final = 0.02
_ROUNDS: Final = 4
_MOST_LENGTHS: Final = 5
_TURNED_DOWN: Final = 1.5
_PLAIN_ENOUGH: Final = 2.2
"""A factor that needs no second look."""
_PATIENCE_SECONDS: Final = 60
_ALL_RULES: Final = ("gopher_quality", "gopher_repetition", "c4", "fineweb")
_ENGLISH: Final = (
    "The keeper of the harbour wrote that it was quiet and the boats came home before the rain. " * 300
)

Work = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A family in a step: seconds at the length, at twice that, and at each doubling behind it. None: it was
    not measured; where there are none at twice the length, it did not end in a minute."""

    step: str
    family: str
    seconds: float | None
    seconds_twice: float | None
    seconds_beyond: tuple[float, ...] = ()

    @property
    def factor(self) -> float | None:
        """How many times as much twice the length costs; None where that is too little to tell."""
        if self.seconds_twice is None:
            return float("inf")
        if self.seconds is None or self.seconds_twice < FLOOR_SECONDS:
            return None
        beyond = (
            longer / shorter for shorter, longer in pairwise((self.seconds_twice, *self.seconds_beyond))
        )
        # What costs hardly more at twice the length was rejected there.
        factors = [self.seconds_twice / self.seconds, *(each for each in beyond if each > _TURNED_DOWN)]
        return min(factors)


def text_steps() -> dict[str, Work]:
    """What is done with a text, by step."""
    variants: tuple[Any, ...] = ("datatrove", "paper", "dclm", "dolma")
    works: dict[str, Work] = {
        "url": _as_url,
        "parse, plain text": _through_chain("parse", is_html=False),
        "parse, plain bytes of no charset": _through_chain("parse", is_html=False, charset=None),
        "parse, resiliparse, text": _on_page(_through_chain("parse", extractor="resiliparse")),
        "parse, trafilatura, text": _on_page(_through_chain("parse", extractor="trafilatura")),
        "language": _in_step(LanguageStep(LanguageTable())),
        "pii": _in_step(PiiStep(PiiTable())),
        "pii, another country": _in_step(PiiStep(PiiTable(phone_region="DE"))),
        "decontaminate, 13 words": _decontaminating("13w"),
        "decontaminate, 8 tokens": _decontaminating("8t"),
        "tokenize, ranks": _tokenizing(),
        "read JSONL, a text": _reading(_jsonl),
        "read JSONL, a line": _reading(_jsonl_line),
        "read JSONL, other fields": _reading(_jsonl_metadata),
        "read WARC, a page": _reading(_warc_page),
        "read WARC, its headers": _reading(_warc_headers),
        "read WARC, a file of it": _reading(_warc_raw),
        "read WARC in gzip": _reading(_warc_gzip),
        "read WARC in bzip2": _reading(_warc_bzip2),
        "read ARC": _reading(_arc),
        "read Parquet": _reading(_parquet),
    }
    for variant in variants:
        for language in ("en", "zh") if variant == "datatrove" else ("en",):
            table = QualityTable(rules=_ALL_RULES, variant=variant, ledger="all", no_table="pass")
            name = f"quality, {variant}" + (f", {language}" if language != "en" else "")
            works[name] = _in_step(quality_step(table), language=language)
    offending = rules_of(StepTables(max_document_bytes=1 << 30, quality=QualityTable(rules=_ALL_RULES)))
    works["report, marked lines"] = lambda text: [
        offending_lines(offending, rule, _behind_parse(text)) for rule in _OFFENDING
    ]
    for normalise in ("none", "fineweb", "slimpajama"):
        dedup = DedupTable(normalise=normalise)
        works[f"near-duplicates, {normalise}"] = lambda text, dedup=dedup: (  # type: ignore[misc]
            shingle_hashes(_behind_parse(text), dedup),
            Signer(dedup).signature(_behind_parse(text)),
        )
    return works


_OFFENDING: Final = (
    "gopher_quality.too_many_bullet_lines",
    "gopher_quality.too_many_ellipsis_lines",
    "gopher_repetition.duplicate_lines",
    "gopher_repetition.duplicate_paragraphs",
    "gopher_repetition.top_2_gram",
    "gopher_repetition.duplicate_5_grams",
    "c4.too_few_sentences",
    "fineweb.too_many_short_lines",
)


def page_steps() -> dict[str, Work]:
    """What is done with a page, by step."""
    favors: tuple[Any, ...] = ("precision", "recall")
    return {
        "parse, resiliparse": _through_chain("parse", extractor="resiliparse"),
        "prefilter": _through_chain("prefilter", "parse", extractor="resiliparse", prefilter=True),
        "parse, resiliparse, no charset": _through_chain("parse", extractor="resiliparse", charset=None),
        "parse, trafilatura, fast": _through_chain("parse", extractor="trafilatura", fast=True),
    } | {f"parse, trafilatura, {favor}": _through_chain("parse", favor=favor) for favor in favors}


def _document(text: str, **fields: Any) -> Document:
    place = Place(file="x", offset=0, length=0)
    return Document(
        doc_id=b"", source="x", place=place, raw_hash=b"", url="https://example.org/", text=text, **fields
    )


def _in_step(step: Step, language: str = "en") -> Work:
    return lambda text: step(_document(_behind_parse(text), language=language))


def _behind_parse(text: str) -> str:
    """A text as the steps behind parse get it: without lone surrogates."""
    return text.encode("utf-8", "replace").decode()


def _through_chain(
    *steps: str, is_html: bool = True, charset: str | None = "utf-8", prefilter: bool = False, **keys: Any
) -> Work:
    tables = StepTables(
        max_document_bytes=20_000_000,
        parse=ParseTable(timeout_seconds=_PATIENCE_SECONDS, **keys),
        language=LanguageTable(prefilter=prefilter),
        quality=QualityTable(rules=()),
    )
    chain = build_chain(list(steps), tables)

    def work(text: str) -> object:
        payload = text.encode("utf-8", "surrogatepass")
        document = _document(
            "", payload=payload, num_bytes=len(payload), is_html=is_html, charset_hint=charset
        )
        return chain(document)

    return work


def _on_page(work: Work) -> Work:
    return lambda text: work(f"<html><body><p>Some words of text.</p><p>{text}</p></body></html>")


_URL_STEP: Final = UrlStep(UrlTable(), 20_000_000)


def _as_url(text: str) -> object:
    """A text as each part of a URL, and as the whole."""
    found: list[object] = []
    for url in (
        f"https://{text}",
        f"https://example.org/{text}",
        f"https://example.org/?{text}",
        f"urn:{text}",
        text,
    ):
        found += [page_of(url), normalise_url(url, fragments=True)]
        found.append(_URL_STEP(Document(doc_id=b"", source="x", place=_PLACE, raw_hash=b"", url=url)))
    return found, named_host(text)


_PLACE: Final = Place(file="x", offset=0, length=0)


def _decontaminating(ngram: Any) -> Work:
    encode = load_tokenizer("cl100k_base").encode_batch if ngram == "8t" else None

    def work(text: str) -> object:
        text = _behind_parse(text)
        items = [
            _ENGLISH[:500],
            text[-1000:],
            text[-300:],
            text[-60:],
        ]  # what the text holds, again and again
        return NgramIndex(items, ngram, encode).match(text)

    return work


def _tokenizing() -> Work:
    known = load_tokenizer("cl100k_base")
    own = Path(os.environ.get("TMPDIR", "/tmp")) / f"sluice-linearity-{os.getpid()}.tiktoken"
    own.write_bytes(train_bpe([_ENGLISH, "aaaa bbbb 1111 " * 2000], 300))
    learnt = load_tokenizer(str(own))
    own.unlink()

    def work(text: str) -> object:
        clean, _ = clean_text(text)
        return known.encode(clean), learnt.encode(clean)

    return work


def _reading(make: Callable[[str], tuple[str, bytes]]) -> Work:
    """A reader over a file, whose making is no part of its cost."""
    made = functools.lru_cache(maxsize=1)(make)

    def work(text: str) -> object:
        name, data = made(text)
        options = ReadOptions(source="s", file=name, size=len(data))
        return list(read_documents(io.BytesIO(data), options))

    work.prepare = made  # type: ignore[attr-defined]
    return work


def _jsonl(text: str) -> tuple[str, bytes]:
    return "a.jsonl", json.dumps({"text": text}).encode() + b"\n"


def _jsonl_line(text: str) -> tuple[str, bytes]:
    return "a.jsonl", text.encode("utf-8", "surrogatepass") + b'\n{"text": "a"}\n'


def _jsonl_metadata(text: str) -> tuple[str, bytes]:
    return "a.jsonl", json.dumps(
        {"text": "a", "url": text, "date": text, "id": text, text[:1000]: text}
    ).encode()


def _warc(head: str, body: bytes) -> bytes:
    http = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"
        + head.encode("utf-8", "surrogatepass")
        + b"\r\n\r\n"
        + body
    )
    fields = f"WARC-Type: response\r\nWARC-Record-ID: <urn:uuid:1>\r\nContent-Length: {len(http)}\r\n"
    kind = "Content-Type: application/http; msgtype=response\r\nWARC-Target-URI: https://example.org/\r\n\r\n"
    return b"WARC/1.0\r\n" + (fields + kind).encode() + http + b"\r\n\r\n"


def _warc_page(text: str) -> tuple[str, bytes]:
    return "a.warc", _warc("A: b", text.encode("utf-8", "surrogatepass"))


def _warc_headers(text: str) -> tuple[str, bytes]:
    heads = [text, f"A: {text}", f"Content-Type: text/html; charset={text}", f"Content-Type: {text}"]
    heads += [f"Content-Encoding: {text}", f"Transfer-Encoding: chunked, {text}", f"Content-Length: {text}"]
    return "a.warc", b"".join(_warc(head, b"<p>word") for head in heads)


def _warc_raw(text: str) -> tuple[str, bytes]:
    data = text.encode("utf-8", "surrogatepass")
    return "a.warc", _warc("A: b", b"<p>word") + data + b"WARC/1.0\r\n" + data + b"\r\n\r\n" + _warc(
        "A: b", b"<p>word"
    )


def _warc_gzip(text: str) -> tuple[str, bytes]:
    return "a.warc.gz", gzip.compress(_warc_raw(text)[1], 1)


def _warc_bzip2(text: str) -> tuple[str, bytes]:
    return "a.warc.bz2", bz2.compress(_warc_raw(text)[1], 1)


def _arc(text: str) -> tuple[str, bytes]:
    data = text.encode("utf-8", "surrogatepass")
    head = b"filedesc://a.arc 0.0.0.0 20260101000000 text/plain %d\n" % len(data)
    return "a.arc", head + data + b"\n" + b"http://a.b/ 1.2.3.4 20260101000000 text/html %d\n" % len(
        data
    ) + data + b"\n"


def _parquet(text: str) -> tuple[str, bytes]:
    file = io.BytesIO()
    kept = text.encode("utf-8", "replace").decode()
    pq.write_table(pa.table({"text": [kept, "a"], "url": [kept, None], "more": [[kept], None]}), file)
    return "a.parquet", file.getvalue()


def measured(step: str, work: Work, family: str, make: Make, length: int) -> Measured:
    """A family in a step, in this process."""
    least = least_twice = float("inf")
    work(make(length // 8))  # what is loaded on the first call is no part of it
    for number in range(_ROUNDS):
        least_twice = min(least_twice, _seconds(work, f"{number} {make(2 * length)}"))
        if least_twice < FLOOR_SECONDS:
            break
        least = min(least, _seconds(work, f"{number} {make(length)}"))
        if least_twice <= _PLAIN_ENOUGH * least or least_twice > _PATIENCE_SECONDS / 6:
            break
    known = None if least == float("inf") else least
    times = [] if known is None else [known, least_twice]
    while 0 < len(times) < _MOST_LENGTHS and MOST * times[-2] < times[-1] < _PATIENCE_SECONDS / 6:
        longer = make(2 ** len(times) * length)
        times.append(min(_seconds(work, f"{number} {longer}") for number in range(2)))
    return Measured(
        step=step,
        family=family,
        seconds=known,
        seconds_twice=least_twice,
        seconds_beyond=tuple(times[2:]),
    )


def _seconds(work: Work, text: str) -> float:
    getattr(work, "prepare", len)(text)
    begun = _processor_seconds()
    work(text)
    return _processor_seconds() - begun


def _processor_seconds() -> float:
    """What this process has taken: by a finer clock than `time.process_time`, which goes by the kernel's
    ticks where there is a limit on it."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return spent.ru_utime + spent.ru_stime


def measured_apart(works: Mapping[str, Work], family: str, make: Make, length: int) -> Iterator[Measured]:
    """A family in each step, in another process; a step that does not come back is left there."""
    names = list(works)
    while names:
        ours, theirs = multiprocessing.Pipe(duplex=False)
        child = multiprocessing.get_context("fork").Process(
            target=_measure_all, args=(theirs, {name: works[name] for name in names}, family, make, length)
        )
        child.start()
        theirs.close()
        while names:
            try:
                yield ours.recv()
            except EOFError:
                child.join()
                if child.exitcode != -signal.SIGXCPU:
                    raise RuntimeError(
                        f"{names[0]} on {family} ended its process: {child.exitcode}"
                    ) from None
                yield Measured(step=names[0], family=family, seconds=None, seconds_twice=None)
                names.pop(0)
                break
            names.pop(0)
        child.join()


def _measure_all(pipe: Connection, works: Mapping[str, Work], family: str, make: Make, length: int) -> None:
    # All pages here, none in a child: its processor time would not be seen.
    extraction_child._MOST_TAGS_HERE = extraction_child._MOST_CHARS_HERE = sys.maxsize  # type: ignore[misc]
    for name in works:
        most = int(_processor_seconds()) + _PATIENCE_SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))
        pipe.send(measured(name, works[name], family, make, length))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the worst factor of each step, and every fault."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[""], metavar="STEP", help="steps whose name begins so")
    parser.add_argument("--family", nargs="+", metavar="FAMILY", help="these families alone")
    parser.add_argument("--characters", type=int, default=60_000, help="the length that is doubled (60000)")
    parser.add_argument("--to", type=Path, help="a file of JSON lines that each measure is added to")
    options = parser.parse_args(arguments)
    found: list[Measured] = []
    for families, works in ((TEXTS, text_steps()), (PAGES, page_steps())):
        chosen = {name: work for name, work in works.items() if name.startswith(tuple(options.only))}
        for family, make in families.items():
            if options.family is None or family in options.family:
                for one in measured_apart(chosen, family, make, options.characters):
                    found.append(one)
                    if options.to is not None:
                        with options.to.open("a") as file:
                            file.write(f"{json.dumps(asdict(one))}\n")
                    if (one.factor or 0) > MOST:
                        print(f"FAULT {_told(one)}", flush=True)
    for step in dict.fromkeys(one.step for one in found):
        of_step = [one for one in found if one.step == step]
        worst = max(of_step, key=lambda one: one.factor or 0)
        print(f"{step}: {len(of_step)} families, worst {_told(worst) if worst.factor else 'below 20 ms'}")
    return any((one.factor or 0) > MOST for one in found)


def _told(one: Measured) -> str:
    if one.seconds is None or one.seconds_twice is None:
        return f"{one.step} on {one.family}: no end within {_PATIENCE_SECONDS} s"
    return f"x{one.factor:.2f} on {one.family} ({one.step}: {one.seconds:.3f} s, {one.seconds_twice:.3f} s)"


if __name__ == "__main__":
    sys.exit(main())
