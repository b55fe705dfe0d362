"""Web pages round a text: menu, header, teasers, footer, so that an extractor has something to take away."""

from __future__ import annotations

import html
import random
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.demo.prose import Writer, phrases


@dataclass(frozen=True, slots=True, kw_only=True)
class Article:
    """A text to put on a page."""

    language: str
    title: str
    paragraphs: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.paragraphs)


def write_article(language: str, rng: random.Random, num_sentences: int | None = None) -> Article:
    """A new article of 12 to 30 sentences."""
    writer = Writer(language, rng)
    return Article(
        language=language,
        title=writer.title(),
        paragraphs=tuple(writer.paragraphs(num_sentences or rng.randint(12, 30))),
    )


def render_page(article: Article, site: str, rng: random.Random, charset: str = "utf-8") -> bytes:
    """The article as an HTML page of `site`, encoded."""
    menu = phrases(article.language).menu
    links = "".join(f'<li><a href="/{i}">{html.escape(item)}</a></li>' for i, item in enumerate(menu))
    teasers = "".join(
        f'<li><a href="/{rng.randrange(10**6)}">{html.escape(Writer(article.language, rng).title())}</a></li>'
        for _ in range(6)
    )
    body = "\n".join(f"<p>{html.escape(paragraph)}</p>" for paragraph in article.paragraphs)
    page = f"""<!DOCTYPE html>
<html lang="{article.language}"><head><meta charset="{charset}"><title>{html.escape(article.title)} | {site}</title>
<style>nav li {{ display: inline }}</style><script>window.dataLayer = []; track("{site}");</script></head>
<body><header><div class="logo">{site}</div><nav><ul>{links}</ul></nav></header>
<main><article><h1>{html.escape(article.title)}</h1>
{body}
</article></main>
<aside class="sidebar"><ul>{teasers}</ul></aside>
<footer><p>© 2026 {site}</p><ul>{links}</ul></footer></body></html>
"""
    return page.encode(charset, "xmlcharrefreplace")


def drop_words(paragraphs: Sequence[str], rng: random.Random, num: int) -> tuple[str, ...]:
    """The paragraphs without `num` of their words, spread over them: shorter, and nearly the same."""
    edited = [paragraph.split(" ") for paragraph in paragraphs]
    for drop in range(num):
        words = edited[drop % len(edited)]
        del words[rng.randrange(1, len(words) - 1)]
    return tuple(" ".join(words) for words in edited)
