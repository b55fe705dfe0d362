"""A small crawl with planted truth: about 3,000 documents in six languages, written by us, the same for every
seed.

web-00000 … 3.warc.gz    pages in six languages, with menus and boilerplate; all plants but spam
news-00000 … 1.warc.gz   more pages, and copies of pages of `web`
boards-00000.jsonl.gz    forum posts as plain text, with spam of every Gopher kind
benchmark.jsonl          25 questions; some leaked into `web`
truth.json               what must become of each plant
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from lineage.recipe import RecipeError
from pipeline.demo.pages import Article, drop_words, render_page, write_article
from pipeline.demo.prose import LANGUAGES
from pipeline.demo.questions import question
from pipeline.demo.spam import SPAM
from pipeline.demo.warcs import DemoPage, break_records, write_gzip, write_source

KEPT_LANGUAGES = ("en", "de", "fr", "es")
_SHARES = {"en": 0.46, "de": 0.16, "fr": 0.13, "es": 0.12, "it": 0.07, "nl": 0.06}
LEAST_PAGES = 450
NUM_LEAKED = 10
LEAK = "benchmark"
"""How many of the benchmark's questions leak, and the kind of plant that they are."""
_PERSONAL = {
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

    `twin`: of the two documents with these URLs exactly one must meet that end (which one, their ids
    decide)."""

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


def make_crawl(folder: Path, num_pages: int = 3000, seed: int = 0) -> Truth:
    """Write the crawl below `folder`: the same bytes for the same arguments. RecipeError: too few to plant
    on."""
    if num_pages < LEAST_PAGES:
        raise RecipeError(
            f"a demo crawl of {num_pages} pages: expected at least {LEAST_PAGES}, to have room for its plants"
        )
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    crawl = _Crawl(rng, num_web=int(num_pages * 0.66), num_news=int(num_pages * 0.24))
    crawl.plant_duplicates()
    crawl.plant_personal_data()
    benchmark = crawl.plant_benchmark()
    crawl.plant_languages()
    posts = crawl.posts(int(num_pages * 0.10))
    write_source(folder, "web", crawl.web, 4, rng)
    write_source(folder, "news", crawl.news, 2, rng)
    broken = [_page("broken", number, write_article("en", rng), rng) for number in range(4)]
    crawl.truth.unreadable["web"] = break_records(
        folder / "web-00003.warc.gz", (broken[0], broken[1], broken[2], broken[3])
    )
    write_gzip(
        folder / "boards-00000.jsonl.gz",
        "".join(json.dumps(post, ensure_ascii=False) + "\n" for post in posts),
    )
    (folder / "benchmark.jsonl").write_text(
        "".join(json.dumps(item) + "\n" for item in benchmark), encoding="utf-8"
    )
    crawl.truth.num_pages = len(crawl.web) + len(crawl.news) + len(posts) + 2
    (folder / "truth.json").write_text(json.dumps(asdict(crawl.truth), indent=1), encoding="utf-8")
    return crawl.truth


def _page(source: str, number: int, article: Article, rng: random.Random) -> DemoPage:
    host = f"{source}{number % 40}.example.com"
    return DemoPage(url=f"https://{host}/{number // 40}/page-{number}", html=render_page(article, host, rng))


class _Crawl:
    """The pages of the crawl while plants are put among them; each English page of `web` is planted on at
    most once."""

    def __init__(self, rng: random.Random, num_web: int, num_news: int) -> None:
        self.rng, self.truth = rng, Truth()
        self.articles = [self._article() for _ in range(num_web)]
        self.web = [_page("web", number, article, rng) for number, article in enumerate(self.articles)]
        self.news = [_page("news", number, self._article(), rng) for number in range(num_news)]
        english = [number for number, article in enumerate(self.articles) if article.language == "en"]
        self._free = iter(rng.sample(english, len(english)))

    def _article(self) -> Article:
        return write_article(self.rng.choices(LANGUAGES, [_SHARES[name] for name in LANGUAGES])[0], self.rng)

    def _insert(self, number: int, paragraph: str) -> str:
        """Put a paragraph into a page of `web`; its URL."""
        article = self.articles[number]
        changed = replace(article, paragraphs=(*article.paragraphs[:2], paragraph, *article.paragraphs[2:]))
        url = self.web[number].url
        self.web[number] = DemoPage(url=url, html=render_page(changed, "club.example.com", self.rng))
        return url

    def plant_duplicates(self) -> None:
        """Copies of pages of `web`, in `news` or (the same record twice) in `web` itself."""
        for kind in [kind for kind in ("exact", "near", "url", "identity") for _ in range(25)]:
            number = next(self._free)
            article, original, url = (
                self.articles[number],
                self.web[number],
                f"https://copies.example.net/{kind}/{number}",
            )
            if kind == "identity":
                self.web.append(original)
                self._expect(
                    kind, "web", original.url, ("duplicate", "identity", "identity"), twin=original.url
                )
                continue
            if kind == "near":
                article = replace(article, paragraphs=drop_words(article.paragraphs, self.rng, 3))
            elif kind == "url":
                article, url = (
                    write_article("en", self.rng, 14),
                    f"{original.url}?utm_source=feed&utm_medium=rss",
                )
            self.news.append(DemoPage(url=url, html=render_page(article, "copies.example.net", self.rng)))
            end = ("duplicate", f"dedup.{kind}", f"dedup.{kind}")
            self._expect(kind, "news", url, end, twin=original.url)

    def plant_personal_data(self) -> None:
        """Three pages with each kind of personal data."""
        for kind, sentence in _PERSONAL.items():
            for _ in range(3):
                filled = sentence.format(
                    name=self.rng.choice(("anna", "joseph", "miriam")),
                    number=self.rng.randrange(1000, 9999),
                    a=self.rng.randrange(1, 255),
                    b=self.rng.randrange(1, 255),
                    key="".join(self.rng.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", k=16)),
                )
                self._expect(
                    f"pii {kind}",
                    "web",
                    self._insert(next(self._free), filled),
                    ("kept", None, None),
                    edit=kind,
                )

    def plant_benchmark(self) -> list[dict[str, str]]:
        """25 questions, ten of which leak, verbatim, into pages that are otherwise good."""
        items = [{"id": f"demo-{number:02d}", "text": question(number, self.rng)} for number in range(25)]
        for item in items[:NUM_LEAKED]:
            self._expect(LEAK, "web", self._insert(next(self._free), item["text"]), ("kept", None, None))
        return items

    def plant_languages(self) -> None:
        """Pages in languages that the recipe does not keep."""
        for page, article in zip(self.web, self.articles, strict=False):
            if article.language not in KEPT_LANGUAGES:
                end = ("rejected", "language", "language.not_kept")
                self._expect(f"language {article.language}", "web", page.url, end)

    def posts(self, num: int) -> list[dict[str, str]]:
        """Forum posts, with spam of every kind."""
        posts = []
        for number in range(num):
            article = write_article("en", self.rng, self.rng.randint(8, 16))
            url = f"https://boards.example.org/t/{number}"
            posts.append({"id": f"post-{number}", "url": url, "text": article.text})
        for rule, write in SPAM.items():
            for copy in range(3):
                url = f"https://boards.example.org/spam/{rule}/{copy}"
                posts.append({"id": f"{rule}-{copy}", "url": url, "text": write(self.rng)})
                self._expect(f"spam {rule}", "boards", url, ("rejected", "quality", rule))
        return posts

    def _expect(
        self,
        kind: str,
        source: str,
        url: str,
        end: tuple[str, str | None, str | None],
        *,
        twin: str | None = None,
        edit: str | None = None,
    ) -> None:
        status, stage, rule = end
        self.truth.plants.append(
            Plant(
                kind=kind, source=source, url=url, twin=twin, status=status, stage=stage, rule=rule, edit=edit
            )
        )
