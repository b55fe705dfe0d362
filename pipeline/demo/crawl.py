"""A small crawl with planted truth: about 3,000 documents in six languages, written by us, the same for every seed.

web-00000 … 3.warc.gz    pages in six languages, with menus and boilerplate; all plants but spam
news-00000 … 1.warc.gz   more pages, and copies of pages of `web`
boards-00000.jsonl.gz    forum posts as plain text, with spam of every Gopher kind
benchmark.jsonl          25 questions; some leaked into `web`
truth.json               what must become of each plant
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from pipeline.demo.pages import Article, drop_words, render_page, write_article
from pipeline.demo.prose import LANGUAGES, Writer
from pipeline.demo.spam import SPAM

KEPT_LANGUAGES = ("en", "de", "fr", "es")
_SHARES = {"en": 0.46, "de": 0.16, "fr": 0.13, "es": 0.12, "it": 0.07, "nl": 0.06}
_SECRETS = {
    "email": "Write to {name}@garden-club.example.org to take part.",
    "phone": "The office answers at +49 30 9018{number:05d} on weekdays.",
    "ip": "The old server still listens at 93.184.{a}.{b} in the cellar.",
    "credit_card": "Donations were charged to 4111 1111 1111 1111 by mistake.",
    "iban": "Our account is DE89 3704 0044 0532 0130 00 at the village bank.",
    "us_ssn": "The form still shows the number 536-22-{number:04d} of a visitor.",
    "secret": "Somebody left the key AKIA{key} on the notice board.",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """A planted document: how to find it again, and what must become of it (`rule` None: kept).

    `twin`: of the two documents with these URLs exactly one must meet that end (which one, their ids decide)."""

    kind: str
    source: str
    url: str
    twin: str | None = None
    status: str
    stage: str | None = None
    rule: str | None = None
    edit: str | None = None


@dataclass(slots=True)
class Truth:
    """Everything that was planted. `unreadable` counts broken stretches by source."""

    plants: list[Plant] = field(default_factory=list)
    unreadable: dict[str, int] = field(default_factory=dict)
    num_pages: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of the crawl before it is written."""

    url: str
    html: bytes


def make_crawl(folder: Path, num_pages: int = 3000, seed: int = 0) -> Truth:
    """Write the crawl below `folder`: the same bytes for the same arguments."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    truth = Truth()
    num_web, num_news, num_posts = int(num_pages * 0.66), int(num_pages * 0.24), int(num_pages * 0.10)
    articles = [_article(rng) for _ in range(num_web)]
    web = [_page("web", number, article, rng) for number, article in enumerate(articles)]
    english = [number for number, article in enumerate(articles) if article.language == "en"]
    plant_on = iter(rng.sample(english, len(english)))
    news = [_page("news", number, _article(rng), rng) for number in range(num_news)]
    _plant_duplicates(truth, articles, web, news, plant_on, rng)
    _plant_personal_data(truth, web, articles, plant_on, rng)
    benchmark = _plant_benchmark(truth, web, articles, plant_on, rng)
    _plant_languages(truth, web, articles)
    _write_source(folder, "web", web, 4, rng)
    _write_source(folder, "news", news, 2, rng)
    _break_records(folder / "web-00003.warc.gz", truth, rng)
    posts = _posts(truth, num_posts, rng)
    _write_gzip(
        folder / "boards-00000.jsonl.gz", "".join(json.dumps(post, ensure_ascii=False) + "\n" for post in posts)
    )
    (folder / "benchmark.jsonl").write_text("".join(json.dumps(item) + "\n" for item in benchmark), encoding="utf-8")
    truth.num_pages = len(web) + len(news) + len(posts)
    (folder / "truth.json").write_text(json.dumps(asdict(truth), indent=1), encoding="utf-8")
    return truth


def _article(rng: random.Random) -> Article:
    language = rng.choices(LANGUAGES, [_SHARES[name] for name in LANGUAGES])[0]
    return write_article(language, rng)


def _url(source: str, number: int) -> str:
    return f"https://{source}{number % 40}.example.com/{number // 40}/page-{number}"


def _page(source: str, number: int, article: Article, rng: random.Random) -> Page:
    return Page(url=_url(source, number), html=render_page(article, f"{source}{number % 40}.example.com", rng))


def _plant_duplicates(
    truth: Truth,
    articles: Sequence[Article],
    web: list[Page],
    news: list[Page],
    plant_on: Iterator[int],
    rng: random.Random,
) -> None:
    """Copies of pages of `web`, in `news` or (the same record twice) in `web` itself."""
    for kind, number in zip((kind for kind in ("exact", "near", "url", "identity") for _ in range(25)), plant_on):  # noqa: B905
        article, original = articles[number], web[number]
        url = f"https://copies.example.net/{kind}/{number}"
        if kind == "identity":
            web.append(original)
            truth.plants.append(Plant(kind=kind, source="web", url=original.url, twin=original.url,
                                      status="duplicate", stage="identity", rule="identity"))  # fmt: skip
            continue
        if kind == "near":
            article = replace(article, paragraphs=drop_words(article.paragraphs, rng, 3))
        elif kind == "url":
            article, url = write_article("en", rng, 14), f"{original.url}?utm_source=feed&utm_medium=rss"
        news.append(Page(url=url, html=render_page(article, "copies.example.net", rng)))
        truth.plants.append(Plant(kind=kind, source="news", url=url, twin=original.url, status="duplicate",
                                  stage=f"dedup.{kind}", rule=f"dedup.{kind}"))  # fmt: skip


def _plant_personal_data(
    truth: Truth, web: list[Page], articles: Sequence[Article], plant_on: Iterator[int], rng: random.Random
) -> None:
    for kind, sentence in _SECRETS.items():
        for _ in range(3):
            number = next(plant_on)
            filled = sentence.format(
                name=rng.choice(("anna", "joseph", "miriam")), number=rng.randrange(1000, 9999), a=rng.randrange(1, 255),
                b=rng.randrange(1, 255), key="".join(rng.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", k=16)),
            )  # fmt: skip
            article = articles[number]
            changed = Article(language="en", title=article.title, paragraphs=(
                *article.paragraphs[:2], f"{article.paragraphs[2]} {filled}", *article.paragraphs[3:]))  # fmt: skip
            web[number] = Page(url=web[number].url, html=render_page(changed, "club.example.com", rng))
            truth.plants.append(Plant(kind=f"pii {kind}", source="web", url=web[number].url, status="kept",
                                      edit=f"pii.{kind}"))  # fmt: skip


def _plant_benchmark(
    truth: Truth, web: list[Page], articles: Sequence[Article], plant_on: Iterator[int], rng: random.Random
) -> list[dict[str, str]]:
    """25 questions, ten of which leak, verbatim, into pages that are otherwise good."""
    items = []
    for number in range(25):
        writer = Writer("en", rng)
        text = f"Question {number + 1}: {writer.sentence()} {writer.sentence()} Which of these is true, and why?"
        items.append({"id": f"demo-{number:02d}", "text": text})
    for item in items[:10]:
        number = next(plant_on)
        article = articles[number]
        changed = Article(language="en", title=article.title, paragraphs=(
            *article.paragraphs[:1], item["text"], *article.paragraphs[1:]))  # fmt: skip
        web[number] = Page(url=web[number].url, html=render_page(changed, "quiz.example.com", rng))
        truth.plants.append(Plant(kind="benchmark", source="web", url=web[number].url, status="kept"))
    return items


def _plant_languages(truth: Truth, web: Sequence[Page], articles: Sequence[Article]) -> None:
    for page, article in zip(web, articles, strict=False):
        if article.language not in KEPT_LANGUAGES:
            truth.plants.append(Plant(kind=f"language {article.language}", source="web", url=page.url,
                                      status="rejected", stage="language", rule="language.not_kept"))  # fmt: skip


def _posts(truth: Truth, num: int, rng: random.Random) -> list[dict[str, str]]:
    posts = []
    for number in range(num):
        article = write_article("en", rng, rng.randint(8, 16))
        posts.append({"id": f"post-{number}", "url": f"https://boards.example.org/t/{number}", "text": article.text})
    for rule, write in SPAM.items():
        for copy in range(3):
            url = f"https://boards.example.org/spam/{rule}/{copy}"
            posts.append({"id": f"{rule}-{copy}", "url": url, "text": write(rng)})
            truth.plants.append(Plant(kind=f"spam {rule}", source="boards", url=url, status="rejected", stage="quality",
                                      rule=rule))  # fmt: skip
    return posts


def _write_source(folder: Path, source: str, pages: list[Page], num_files: int, rng: random.Random) -> None:
    order = rng.sample(range(len(pages)), len(pages))
    for file in range(num_files):
        members = [_warcinfo(f"{source}-{file:05d}")]
        members += [_response(pages[place], source) for place in order[file::num_files]]
        (folder / f"{source}-{file:05d}.warc.gz").write_bytes(b"".join(members))


def _member(head: str, block: bytes) -> bytes:
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0, compresslevel=6) as file:
        file.write(head.encode() + block + b"\r\n\r\n")
    return buffer.getvalue()


def _warcinfo(name: str) -> bytes:
    block = f"software: sluice demo\r\nformat: WARC File Format 1.0\r\ndescription: {name}\r\n".encode()
    head = (f"WARC/1.0\r\nWARC-Type: warcinfo\r\nWARC-Record-ID: <urn:uuid:{_uuid(name.encode())}>\r\n"
            f"WARC-Date: 2026-01-01T00:00:00Z\r\nContent-Type: application/warc-fields\r\n"
            f"Content-Length: {len(block)}\r\n\r\n")  # fmt: skip
    return _member(head, block)


def _response(page: Page, source: str) -> bytes:
    http = (
        f"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(page.html)}\r\n\r\n"
    ).encode()
    block = http + page.html
    seconds = int.from_bytes(hashlib.sha256(page.url.encode()).digest()[:3], "big") % 86_400
    moment = f"2026-01-{1 + seconds % 28:02d}T{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}Z"
    head = (f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Record-ID: <urn:uuid:{_uuid(source.encode() + page.url.encode())}>\r\n"
            f"WARC-Target-URI: {page.url}\r\nWARC-Date: {moment}\r\nContent-Type: application/http; msgtype=response\r\n"
            f"Content-Length: {len(block)}\r\n\r\n")  # fmt: skip
    return _member(head, block)


def _uuid(name: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=hashlib.sha256(name).digest()[:16], version=4)


def _break_records(file: Path, truth: Truth, rng: random.Random) -> None:
    """Add a record with flipped bits, a whole one, and one that the file's end clips: two stretches cannot be read,
    and nothing else is lost."""
    pages = [Page(url=f"https://broken.example.com/{i}", html=render_page(_article(rng), "broken.example.com", rng))
             for i in range(3)]  # fmt: skip
    flipped, whole, clipped = (bytearray(_response(page, "broken")) for page in pages)
    for place in range(len(flipped) // 2, len(flipped) // 2 + 40):
        flipped[place] ^= 0xFF
    with open(file, "ab") as stream:
        stream.write(flipped + whole + clipped[: len(clipped) // 2])
    truth.unreadable["web"] = 2


def _write_gzip(path: Path, text: str) -> None:
    with open(path, "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as file:
        file.write(text.encode())
