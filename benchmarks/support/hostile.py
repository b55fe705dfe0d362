"""Families of hostile texts and pages: what repeats without end, each as a function from a length to that much of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

Make = Callable[[int], str]
"""About so many characters of a family."""

_UNITS: Final[dict[str, str]] = {
    # brackets, quotes and signs
    "brackets, opened": "(", "brackets, closed": ")", "brackets, in pairs": "()", "square brackets": "[",
    "curly brackets": "{", "curly brackets, in pairs": "{ } ", "quotes": '"', "apostrophes": "'", "typographic quotes": "“’",
    "guillemets": "«»", "backslashes": "\\", "slashes": "/", "dots": ".", "commas": ",", "ellipses": "…", "three dots": "... ",
    "hashes": "#", "hashes with words": "#tag ", "at signs": "@", "ampersands": "&", "percent escapes": "%41", "dashes": "-",
    "underscores": "_", "pluses": "+", "equals signs": "=", "asterisks": "*", "bullets": "• word\n", "dash bullets": "- a\n",
    "colons": ":", "semicolons": ";", "question marks": "?", "exclamation marks": "!", "pipes": "|", "tildes": "~",
    # white space and lines
    "spaces": " ", "line feeds": "\n", "carriage returns": "\r", "both line ends": "\r\n", "tabs": "\t", "no-break spaces": "\u00a0",
    "line separators": "\u2028", "form feeds": "\f", "words on lines of their own": "word\n", "empty paragraphs": "\n\nword",
    "spaces before line feeds": " \n", "ideographic spaces": "\u3000",
    # digits
    "digits": "7", "digits and spaces": "7 ", "digits and dots": "7.", "digits and dashes": "7-", "digits and commas": "7,",
    "digits and slashes": "7/", "digits and colons": "7:", "digits and brackets": "(7)", "digits and pluses": "+7",
    "digits and line feeds": "7\n", "digits of three": "555 ", "Arabic digits": "٧", "digits and long dashes": "7–",
    "digits and no-break spaces": "7\u00a0", "digits and underscores": "7_", "digits and zero-width spaces": "7\u200b",
    # personal data
    "phones": "+49 30 901820 ", "phones in one": "+4930901820", "phones with extensions": "555-0100 ext. 12 ",
    "American phones": "(202) 555-0143 ", "cards": "4111 1111 1111 1111 ", "cards in one": "4111111111111111",
    "IBANs": "DE89 3704 0044 0532 0130 00 ", "IBANs in one": "DE89370400440532013000", "IBAN heads": "DE89 ",
    "e-mails": "a.b@example.org ", "e-mails in one": "a@b.", "e-mail users": "a.b.", "e-mail hosts": "a@b.c.", "e-mails, obfuscated": "a [at] b [dot] ",
    "IPv4": "192.168.1.1 ", "IPv4 in one": "192.168.", "IPv6": "2001:db8::1 ", "IPv6 in one": "2001:db8:", "IPv6 colons": "::",
    "social security numbers": "123-45-6789 ", "social security numbers in one": "123-45-6789",
    "AWS keys": "AKIAIOSFODNN7EXAMPL ", "AWS heads": "AKIA", "GitHub heads": "ghp_", "bearer heads": "bearer ", "JWT heads": "eyJ", "JWTs": "eyJhbGciOi.",
    "PEM heads": "-----BEGIN PRIVATE KEY-----\n", "PEM heads in one": "-----BEGIN ", "PEM ends": "-----END PRIVATE KEY-----\n",
    "password assignments": "password = ", "password assignments in one": "password=", "API key words": 'api_key: "', "base64": "aGVsbG8gd29ybGQh", "hexadecimal": "deadbeef",
    "URLs with users": "https://a:b@", "UUIDs": "550e8400-e29b-41d4-a716-446655440000 ",
    # addresses
    "URLs": "https://example.org/a ", "URLs in one": "https://example.org/", "schemes": "http:", "www": "www.", "hosts": "example.com ",
    "hosts in one": "a.", "query arguments": "&a=b", "path segments": "/..", "path dots": "/./", "fragments": "#a",
    # words
    "one letter": "a", "words": "word ", "words of a sentence": "The quick brown fox jumps over the lazy dog. ", "capital letters": "A",
    "long words": "incomprehensibilities", "hyphenated words": "well-", "apostrophe words": "don't", "abbreviations": "e.g. ", "initials": "U.S.",
    "letters and spaces": "a ", "sentences": "A. ", "sentences without spaces": "A.b", "lorem ipsum": "lorem ipsum ", "javascript": "javascript ",
    "terms of use": "terms of use ", "cookies": "use of cookies\n", "stop words": "the of and to ", "citations": "[1]", "read more": "read more...\n", "camel case": "aB", "letters and digits": "a1",
    "contractions": "I'd've", "emoticons": ":-)", "units": "10km", "currencies": "$5", "ordinals": "1st ",
    # Unicode
    "combining marks": "\u0301", "mixed combining marks": "\u0301\u0316", "letters with two marks": "a\u0301\u0316", "three combining marks": "\u0316\u0301\u0591",
    "Arabic marks": "ب\u064e\u0651", "Hebrew points": "\u05b8\u05bc", "Thai marks": "ก\u0e49\u0e38", "enclosing marks": "\u20dd", "Indic viramas": "क\u094d", "Hangul jamos": "\u1100\u1161\u11a8", "composed letters": "é",
    "marks that unfold": "\u0344", "letters that fold long": "ﷺ", "sharp s": "ß", "dotted capital I": "İ",
    "bidirectional overrides": "\u202e\u202d", "bidirectional isolates": "\u2066a\u2069", "emoji": "😀", "emoji sequences": "👨\u200d👩\u200d👧", "emoji skins": "👍🏽", "flags": "🇩🇪", "variation selectors": "a\ufe0f",
    "zero-width spaces": "\u200b", "zero-width joiners": "\u200d", "words and zero-width spaces": "a\u200b", "soft hyphens": "a\u00ad", "byte order marks": "\ufeff",
    "mixed scripts": "aяαあ", "Cyrillic": "слово ", "Greek": "λέξη ", "CJK without spaces": "漢字仮名", "CJK sentences": "漢字。", "CJK full stops": "。", "kana": "ひらがな", "Thai": "ภาษาไทย", "Lao": "ພາສາລາວ", "Khmer": "ភាសាខ្មែរ", "Burmese": "မြန်မာ", "Tibetan": "བོད་", "Hindi": "हिन्दी ", "Arabic": "العربية ", "Hangul": "한국어 ",
    "full-width letters": "ａ", "private use": "\ue000", "unassigned": "\U000e0fff", "control codes": "\x01", "escape codes": "\x1b[31m", "replacement characters": "\ufffd", "astral letters": "𝒜", "superscripts": "²", "NULs": "\0", "surrogates": "\ud800",
    # JSON
    "JSON arrays": "[", "JSON objects": '{"a":', "JSON escapes": "\\u0041", "JSON numbers": "1,",
}  # fmt: skip
_MIXED: Final = 97
"""A prime: texts that are not periodic in a small number."""


def _repeated(unit: str) -> Make:
    return lambda length: unit * (length // len(unit))


def _numbered(form: str) -> Make:
    def make(length: int) -> str:
        each = form.format(10_000)
        return "".join(form.format(10_000 + number) for number in range(length // len(each)))

    return make


def _nested(opening: str, closing: str) -> Make:
    return lambda length: opening * (length // (len(opening) + len(closing))) + closing * (
        length // (len(opening) + len(closing))
    )


TEXTS: Final[dict[str, Make]] = {name: _repeated(unit) for name, unit in _UNITS.items()} | {
    "distinct words": _numbered("w{} "),
    "distinct lines": _numbered("line {}\n"),
    "distinct paragraphs": _numbered("paragraph {}\n\n"),
    "distinct numbers": _numbered("{} "),
    "distinct words in one": _numbered("w{}"),
    "distinct words with marks": _numbered("w{}\u0301 "),
    "distinct e-mails": _numbered("w{}@example.org "),
    "distinct hosts": _numbered("w{}.example.org "),
    "distinct phones": _numbered("+49 30 9{} "),
    "distinct IPv6": _numbered("2001:db8::{} "),
    "brackets around a text": _nested("(", ")"),
    "JSON around a value": _nested("[", "]"),
    "many different marks": lambda length: "a" + "".join(chr(0x300 + 7 * n % 0x60) for n in range(length)),
    "letters of one cycle": lambda length: "".join(chr(97 + n * n % _MIXED % 26) for n in range(length)),
}
"""Texts, by the family's name."""

_HTML_UNITS: Final[dict[str, str]] = {
    f"<{tag}> opened": f"<{tag}>x"
    for tag in (
        "a", "abbr", "address", "article", "aside", "b", "base", "bdo", "blockquote", "br", "button", "caption", "center",
        "cite", "code", "col", "colgroup", "dd", "del", "details", "dialog", "dir", "div", "dl", "dt", "em", "embed", "fieldset", "figure",
        "font", "footer", "form", "frame", "frameset", "h1", "head", "header", "hr", "html", "i", "iframe", "img", "input", "keygen", "label", "legend", "li", "link",
        "listing", "main", "map", "marquee", "math", "menu", "meta", "nav", "nobr", "noembed", "noframes", "noscript", "object", "ol", "optgroup",
        "option", "p", "param", "picture", "plaintext", "pre", "q", "rb", "rp", "rt", "rtc", "ruby", "s", "script", "section", "select", "small",
        "source", "span", "strong", "style", "sub", "summary", "sup", "svg", "table", "tbody", "td", "template", "textarea", "tfoot", "th", "thead", "title", "tr", "track", "tt", "u", "ul", "var", "video", "wbr", "xmp", "x-custom",
    )
}  # fmt: skip
_HTML_UNITS |= {
    "paragraphs": "<p>A few words of text.</p>", "paragraphs, closed": "<p>x</p>", "empty paragraphs of HTML": "<p></p>", "closing paragraphs": "</p>", "closing breaks": "</br>", "end tags": "</div>", "unknown end tags": "</zz>",
    "divisions": "<div>x</div>", "spans": "<span>x</span>", "links": '<a href="https://example.org/a">a link</a> ', "links without text": '<a href="#"></a>', "images": '<img src="a.png" alt="x">', "line breaks of HTML": "<br>", "words and line breaks": "word<br>",
    "list items": "<li>an item</li>", "lists": "<ul><li>an item</li></ul>", "definition lists": "<dl><dt>a<dd>b</dl>", "headings": "<h2>A heading</h2>", "articles": "<article>x</article>", "sections": "<section><p>x</p></section>", "quotations": "<blockquote>x</blockquote>",
    "tables": "<table><tr><td>x</td></tr></table>", "rows": "<tr><td>x</td></tr>", "cells": "<td>x</td>", "cells opened in tables": "<table><td>", "forms": "<form><input></form>", "inputs": "<input type=hidden value=x>", "options": "<option>x</option>", "option groups": "<optgroup label=x><option>x</option></optgroup>", "selects": "<select><option>x</option></select>", "buttons": "<button>x</button>", "labels": "<label>x</label>", "text areas": "<textarea>x</textarea>",
    "scripts": "<script>var x = 1;</script>", "styles": "<style>p{}</style>", "script heads": "<script", "comments": "<!-- x -->", "comment heads": "<!--", "comment ends": "-->", "comment dashes": "<!-->", "comment bangs": "--!>", "CDATA": "<![CDATA[x]]>", "CDATA heads": "<![CDATA[", "doctypes": "<!DOCTYPE html>", "processing instructions": "<?xml?>", "bogus comments": "</ >", "bogus declarations": "<!x>",
    "less-than signs": "<", "less-than signs and spaces": "< ", "greater-than signs": ">", "tags half open": "<a ", "tag heads": "<a", "end tag heads": "</a", "quotes in tags": '<a b="', "attributes in tags": '<a b="c" d>', "attributes": ' a="b"', "attribute quotes": '"<', "distinct tag names": "<ab><cd><ef>",
    "entities": "&amp;", "numeric entities": "&#65;", "entity heads": "&", "entities without end": "&amp", "long entities": "&CounterClockwiseContourIntegral;", "unknown entities": "&zzzz;", "big numeric entities": "&#99999999;", "hexadecimal entities": "&#x41", "no-break entities": "&nbsp;",
    "maths": "<math><mi>x</mi></math>", "maths fractions": "<math><mfrac><mi>x</mi><mn>2</mn></mfrac></math>", "maths annotations": '<math><annotation encoding="application/x-tex">x</annotation></math>', "TeX scripts": '<script type="math/tex">x</script>', "TeX dollars": "$x$ ", "TeX brackets": "\\(x\\) ", "TeX heads": "\\(", "maths images": '<img class="tex" alt="$x$">', "superscripts of HTML": "x<sup>2</sup>", "subscripts of HTML": "x<sub>2</sub>", "superscripts and subscripts": "x<sup>2</sup><sub>3</sub>", "KaTeX": '<span class="katex"><span class="katex-mathml">x</span></span>', "MathJax": '<span class="MathJax">x</span>',
    "SVG": "<svg><path d='M0'/></svg>", "frames": "<iframe src=x></iframe>", "objects": "<object><param></object>", "embeds": "<embed src=x>", "videos": "<video><source></video>", "no scripts": "<noscript><p>x</p></noscript>", "templates": "<template><p>x</p></template>", "rubies": "<ruby>x<rt>y</ruby>", "details": "<details><summary>x</summary>y</details>",
    "misnested formatting": "<b><p></b>", "misnested anchors": "<a><p></a>", "misnested in tables": "<table><b><tr>", "anchors in anchors": "<a><div>", "bodies": "<body class=a>", "htmls": "<html lang=en>", "heads": "<head></head>", "nobr in nobr": "<nobr><p>", "font and paragraphs": "<font color=red><p>x", "bold italics": "<b><i>x</i></b>", "code": "<pre><code>x</code></pre>", "preformatted lines": "<pre>\n</pre>", "times": "<time>2020</time>", "hidden": "<div hidden>x</div>", "comments of readers": '<div class="comment">x</div>', "footers": '<div class="footer"><a>x</a></div>', "article bodies": '<div class="article-body"><p>x</p></div>', "identities": '<div id="x">x</div>', "meta": '<meta name="a" content="b">', "base": "<base href=x>", "link": '<link rel="a" href="b">', "titles": "<title>x</title>", "JSON-LD": '<script type="application/ld+json">{"articleBody":"x"}</script>', "summaries": "<summary>x</summary>", "quotes of HTML": "<q>x</q>", "deleted": "<del>x</del>", "ordered lists": "<ol><li>x</ol>", "menus": "<menu><li>x</menu>",
    "words and bold": "word <b>word</b> ",
}  # fmt: skip

_WORDS: Final = "<p>Some words that stand at the page's beginning, so that there is a text to extract from it.</p>"

_AROUND: Final[dict[str, tuple[str, str, str]]] = {
    "options in a select": ("<select>", "<option>x", "</select>"),
    "closed options in a select": ("<select>", "<option>x</option>", "</select>"),
    "groups in a select": ("<select>", "<optgroup label=x>", "</select>"),
    "rows in a table": ("<table>", "<tr><td>x</td></tr>", "</table>"),
    "cells in a row": ("<table><tr>", "<td>x</td>", "</tr></table>"),
    "text in a table": ("<table>", "x<br>", "</table>"),
    "paragraphs in a table": ("<table>", "<p>x</p>", "</table>"),
    "columns in a table": ("<table><colgroup>", "<col>", "</table>"),
    "captions in a table": ("<table>", "<caption>x</caption>", "</table>"),
    "bodies of a table": ("<table>", "<tbody><tr><td>x", "</table>"),
    "items in a list": ("<ul>", "<li>an item</li>", "</ul>"),
    "items opened in a list": ("<ul>", "<li>x", "</ul>"),
    "items in an ordered list": ("<ol>", "<li>x</li>", "</ol>"),
    "terms in a list": ("<dl>", "<dt>x<dd>y", "</dl>"),
    "inputs in a form": ("<form>", "<input>", "</form>"),
    "words in bold": ("<b>", "<p>x", "</b>"),
    "words in a link": ("<a href=x>", "<p>x</p>", "</a>"),
    "breaks in a paragraph": ("<p>", "x<br>", "</p>"),
    "links in a paragraph": ("<p>", '<a href="x">word</a> ', "</p>"),
    "spans in a paragraph": ("<p>", "<span>x</span>", "</p>"),
    "lines in preformatted text": ("<pre>", "word\n", "</pre>"),
    "tags in a script": ("<script>", "<b>x</b>", "</script>"),
    "script heads in a script": ("<script><!--", "<script>", "</script>"),
    "tags in a title": ("<title>", "<b>x</b>", "</title>"),
    "tags in a text area": ("<textarea>", "<b>x</b>", "</textarea>"),
    "tags in a comment": ("<!--", "<b>x</b>", "-->"),
    "dashes in a comment": ("<!--", "-", "-->"),
    "dashes and spaces in a comment": ("<!--", "-- ", "-->"),
    "quotes in an attribute": ('<a href="', "'", '">x</a>'),
    "entities in an attribute": ('<a href="', "&amp;", '">x</a>'),
    "a long attribute": ('<a href="', "x", '">x</a>'),
    "a long class": ('<div class="', "x ", '">x</div>'),
    "a long style": ('<div style="', "a:b;", '">x</div>'),
    "a long address": ('<a href="http://', "a.", '">x</a>'),
    "a long name of a tag": ("<", "a", ">x"),
    "a long name of an attribute": ("<a ", "b", ">x</a>"),
    "elements in maths": ("<math>", "<mi>x</mi>", "</math>"),
    "rows in maths": ("<math><mtable>", "<mtr><mtd><mi>x</mi></mtd></mtr>", "</mtable></math>"),
    "elements in SVG": ("<svg>", "<path d='M0'/>", "</svg>"),
    "frames in a frame set": ("<frameset>", "<frame>", "</frameset>"),
    "templates in a template": ("<template>", "<p>x</p>", "</template>"),
    "scripts in a head": ("<head>", "<script>x</script>", "</head>"),
    "metas in a head": ("<head>", '<meta name="a" content="b">', "</head>"),
    "metas of one author": ("<head>", '<meta name="author" content="b">', "</head>"),
    "JSON in a script": ('<script type="application/ld+json">', '{"a":', "</script>"),
    "letters in TeX": ("<p>\\(", "x", "\\)</p>"),
    "brackets in TeX": ('<script type="math/tex">', "{", "</script>"),
    "fractions in TeX": ('<script type="math/tex">', "\\frac", "</script>"),
    "digits in a superscript": ("x<sup>", "2", "</sup>"),
    "words behind a doctype": ("<!DOCTYPE html><html><head><title>t</title></head><body><article>", "<p>Some words of text, and more of them here.</p>", "</article></body></html>"),
    "options behind a select": ("<select></select>", "<option>x</option>", ""),
    "buttons in a form": ("<form>", "<button>x</button>", "</form>"),
    "rubies in a ruby": ("<ruby>", "x<rt>y", "</ruby>"),
    "objects in an object": ("<object>", "<param name=a value=b>", "</object>"),
    "comments in a table": ("<table>", "<!-- x -->", "</table>"),
    "forms in a table": ("<table>", "<form></form>", "</table>"),
    "hidden inputs in a table": ("<table>", "<input type=hidden>", "</table>"),
    "comments behind the page": ("</body></html>", "<!-- x -->", ""),
    "paragraphs behind the page": ("</body></html>", "<p>x</p>", ""),
    "text in a select": ("<select>", "word ", "</select>"),
    "tags in a select": ("<select>", "<p>x</p>", "</select>"),
    "inputs in a select": ("<select>", "<input>", "</select>"),
}  # fmt: skip


def _around(begin: str, unit: str, end: str) -> Make:
    return lambda length: begin + unit * (length // len(unit)) + end


_DEPTH: Final = 300
"""What a page may nest to before `parse.max_depth` speaks: a family below it costs its full length."""


def _deep_in(tag: str) -> Make:
    """Groups of elements that nest, beside one another: as deep as a page may go."""
    group = f"<{tag}>" * _DEPTH + "x" + f"</{tag}>" * _DEPTH
    return lambda length: group * max(length // len(group), 1)


def _of_attributes(form: str) -> Make:
    """Tags of 500 attributes: as many as a page may have, nearly."""

    def make(length: int) -> str:
        tag = f"<p {' '.join(form.format(number) for number in range(500))}>x</p>"
        return tag * max(length // len(tag), 1)

    return make


PAGES: Final[dict[str, Make]] = (
    {name: (lambda make: lambda length: _WORDS + make(length))(_repeated(unit)) for name, unit in _HTML_UNITS.items()}
    | {
        name: (lambda make: lambda length: _WORDS + make(length))(_around(*parts)) for name, parts in _AROUND.items()
    }
    | {f"<{tag}> nested": _deep_in(tag) for tag in ("div", "span", "b", "a", "table", "ul", "blockquote", "font", "section")}
    | {
        "attributes of one tag": _of_attributes("a{}=b"),
        "attributes without values": _of_attributes("a{}"),
        "attributes alike": _of_attributes("a=b"),
        "distinct tags": _numbered("<t{}>x</t{0}>"),
        "distinct classes": _numbered('<p class="c{}">words</p>'),
        "distinct identities": _numbered('<p id="i{}">words</p>'),
        "distinct links": _numbered('<p><a href="/p{}">words of it</a></p>'),
        "distinct paragraphs of HTML": _numbered("<p>These are words of paragraph {}, and more of them.</p>"),
        "distinct items": _numbered("<li>an item {}</li>"),
        "distinct rows": _numbered("<tr><td>cell {}</td></tr>"),
        "distinct options": _numbered("<option>option {}"),
        "distinct entities": _numbered("&#{};"),
    }
)  # fmt: skip
"""Pages, by the family's name; behind some words, so that extractors find a text."""
