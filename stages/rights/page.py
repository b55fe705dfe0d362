"""The signals in the response headers and the HTML of a page."""

from __future__ import annotations

import html as entities
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import re2

from stages.nesting import read_json
from stages.rights.preferences import content_signal_meaning, usage_meaning
from stages.rights.signal import Signal, Where
from stages.rights.tdmrep import POLICY, RESERVATION, reservation_meaning, shown_reservation

MOST_SIGNALS: Final = 50
"""Of one kind and meaning, of the headers and of the HTML of a page each: a hostile page may hold a million licences,
and none of them hides a reservation."""

_DIRECTIVES: Final = {"noai": "noai", "noimageai": "noimageai", "noindex": "noindex", "none": "noindex"}
_WITH_VALUE: Final = frozenset({"max-snippet", "max-image-preview", "max-video-preview", "unavailable_after"})
"""Directives with a colon, which is no product token's (Google's "Robots meta tag" documentation)."""
_FOR_ALL: Final = frozenset({"robots", "*"})
_WORDS = re.compile(r"[\s,]+")
_LICENSE_LINK = re.compile(r"""<([^<>]{1,2000})>((?:"[^"]*"|[^,<"])*)""")
_REL = re.compile(r"""\brel\s*=\s*(?:"([^"]*)"|([^\s;,"]+))""", re.IGNORECASE)
_CREATIVE_COMMONS = re.compile(r"//creativecommons\.org/(?:licenses|publicdomain)/", re.IGNORECASE)

_META: Final = rb"<meta[\s/][^<]*(?:tdm-|noai|noimageai|noindex|none)"
_LINK: Final = rb"<(?:link|area|a)[\s/][^<]*(?:license|creativecommons)"
_META_OF_SIGNAL: Final = re2.compile(b"(?i)" + _META)
_LICENSE_WORD: Final = re2.compile(b"(?i)license")
_PUBLIC_DOMAIN: Final = re2.compile(rb"(?i)creativecommons\.org/publicdomain/")
_JSON_LD: Final = re2.compile(rb"(?i)ld\+json")
_LOOKED_BACK: Final = 200
"""Bytes before the word in which the name of the attribute stands whose value holds it."""
_LOOKED_AHEAD: Final = 32 << 10
"""Bytes behind an end of the head in which a second one makes it doubtful."""

_WITH_TEXT: Final = ("script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes")
"""Elements whose content is text, and no markup (HTML standard, 13.2.5)."""
_TAG: Final = re2.compile(
    b"(?i)<!--|<(?:" + "|".join(_WITH_TEXT).encode() + rb")[\s/>]|" + _META + b"|" + _LINK
)
"""Comments, elements with text, and tags that go on with a word of a signal."""
_HEAD_END: Final = re2.compile(
    b"(?i)<!--|<(?:" + "|".join(_WITH_TEXT).encode() + rb")[\s/>]|</head[\s/>]|<body[\s/>]"
)
"""The end of the head, or what may hold the same letters as text."""
_BETWEEN_TAGS = re.compile(rb"</head>\s*<")
_NAME = re.compile(rb"<([A-Za-z]+)")
_ENDS: Final = {name.encode(): re2.compile(f"(?i)</{name}".encode()) for name in _WITH_TEXT}
_ATTRIBUTE = re.compile(
    rb"""[\s/]*+([^\s/>=][^\s/>=]*+)(?:\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s>]*+)))?+"""
)


def header_signals(headers: Iterable[tuple[str, str]], agents: Sequence[str]) -> Iterator[Signal]:
    """The signals of response headers, given as lower-case names and values; lines of one name are joined by line
    ends."""
    yield from _bounded(_header_signals(dict(headers), agents))


def _bounded(signals: Iterable[Signal]) -> Iterator[Signal]:
    """Each signal once, and no more than MOST_SIGNALS of one kind and meaning."""
    seen: dict[tuple[str, str], set[Signal]] = defaultdict(set)
    for signal in signals:
        alike = seen[signal.kind, signal.meaning]
        if signal not in alike and len(alike) < MOST_SIGNALS:
            alike.add(signal)
            yield signal


def _header_signals(fields: Mapping[str, str], agents: Sequence[str]) -> Iterator[Signal]:
    if (usage := fields.get("content-usage")) is not None:
        joined = ", ".join(usage.split("\n"))  # one field in several lines (RFC 9651, 4.2)
        yield Signal("content_usage", "header", joined, usage_meaning(joined))
    for value in fields.get("content-signal", "").split("\n"):
        if value:
            yield Signal("content_signal", "header", value, content_signal_meaning(value))
    policy = fields.get(POLICY, "").split("\n")[0] or None
    for value in fields.get(RESERVATION, "").split("\n"):
        if value:
            yield Signal("tdmrep", "header", shown_reservation(value, policy), reservation_meaning(value))
    for value in fields.get("x-robots-tag", "").split("\n"):
        yield from _directives(value, "header", {agent.lower() for agent in agents})
    for target, parameters in _LICENSE_LINK.findall(fields.get("link", "")):
        rel = _REL.search(parameters)
        if rel is not None and "license" in (rel[1] or rel[2] or "").lower().split():
            yield Signal("license", "header", target.strip(), "unknown")


def _directives(value: str, where: Where, agents: set[str]) -> Iterator[Signal]:
    """The signals of a line of X-Robots-Tag, or of the content of a meta element. In a line, `token:` makes what
    follows count for that product token alone."""
    applies = True
    for item in value.split(","):
        name, colon, rest = (part.strip() for part in item.lower().partition(":"))
        # The date of `unavailable_after` may contain a comma; the words before a colon behind it are no product token.
        is_token = bool(colon) and name not in _WITH_VALUE and not _WORDS.search(name)
        words = rest if is_token else f"{name} {rest}"
        if is_token:
            applies = name in _FOR_ALL or name in agents
        if not applies:
            continue
        for word in _WORDS.split(words):
            if word in _DIRECTIVES:
                yield Signal(
                    _DIRECTIVES[word],
                    where,
                    value.strip(),
                    "denied" if _DIRECTIVES[word] == "noai" else "unknown",
                )


def part_with_signals(body: bytes) -> Literal["none", "head", "page"]:
    """Which part of a page's markup may hold any signal, by its bytes in an encoding that ASCII is a part of: none in
    nearly nine of ten pages. It looks for words, which takes a third of the time of looking at tags."""
    if _PUBLIC_DOMAIN.search(body) is not None:
        return "page"
    if any(_may_be_license(body, word.start(), word.end()) for word in _LICENSE_WORD.finditer(body)):
        return "page"
    return "none" if _META_OF_SIGNAL.search(body[: _first_end_of_head(body)]) is None else "head"


def _may_be_license(body: bytes, begin: int, end: int) -> bool:
    """Whether the word "license" at a place may name a licence: as a value of `rel`, in an address of Creative
    Commons, or as a name in JSON-LD."""
    if body[begin - 1 : begin] == b'"' == body[end : end + 1] and _JSON_LD.search(body) is not None:
        return True
    before = body[max(begin - _LOOKED_BACK, 0) : begin].lower()
    return before.endswith(b"creativecommons.org/") or before.rpartition(b"=")[0].rstrip().endswith(b"rel")


def _first_end_of_head(body: bytes) -> int:
    """`_end_of_head`, without a look at each script where an end tag stands between two tags and no other near it. One
    that a script writes is followed by the page's own."""
    at = body.find(b"</head>")
    if at < 0 or body.find(b"</head>", at + 1, at + _LOOKED_AHEAD) >= 0 or not _BETWEEN_TAGS.match(body, at):
        return _end_of_head(body)
    return at if body[max(at - _LOOKED_BACK, 0) : at].rstrip().endswith(b">") else _end_of_head(body)


def _end_of_head(body: bytes) -> int:
    """Where the head of a page ends; of one without, the page. What a comment or a script says is no end."""
    at = 0
    while (found := _HEAD_END.search(body, at)) is not None:
        name = found[0][1:-1].lower()
        if name not in _ENDS and not name.startswith(b"!"):
            return int(found.start())
        at = _after_text(body, found.end(), name)
    return len(body)


def _after_text(body: bytes, at: int, name: bytes) -> int:
    """Where a comment ends, or the text of an element of this name, of which `at` is behind the begin."""
    if name.startswith(b"!"):
        end = body.find(b"-->", at - 2)  # also of `<!-->`, which is empty
        return len(body) if end < 0 else end + 3
    found = _ENDS[name].search(body, at)
    return len(body) if found is None else found.start()


def html_signals(html: str, agents: Sequence[str], *, head_only: bool = False) -> Iterator[Signal]:
    """The signals of a page's markup, in its order: of meta elements in its head, and of links and JSON-LD. What
    stands in comments, scripts and titles is none. Linear in the page. Ask `part_with_signals` first, which takes a
    fifth of the time."""
    body = html.encode("utf-8", "replace")
    end_of_head = None
    if head_only:
        end_of_head = _end_of_head(body)
        body = body[:end_of_head]
    yield from _bounded(_html_signals(body, end_of_head, {agent.lower() for agent in agents}))


def _html_signals(body: bytes, end_of_head: int | None, agents: set[str]) -> Iterator[Signal]:
    """`end_of_head`: None where it is not known, as few pages have a meta element that asks for it."""
    reservations: list[str] = []
    policy: str | None = None
    for name, at, attributes, text in _tags(body):
        if name == b"meta":
            said, content = attributes.get("name", "").strip().lower(), attributes.get("content", "").strip()
            if end_of_head is None:
                end_of_head = _end_of_head(body)
            if at > end_of_head:
                continue
            if said == RESERVATION:
                reservations.append(content)
            elif said == POLICY:
                policy = policy or content
            elif said in _FOR_ALL or said in agents:
                yield from _directives(content, "html", agents)
        elif name == b"script":
            if attributes.get("type", "").partition(";")[0].strip().lower() == "application/ld+json":
                for value in _licenses_of_json(text.decode("utf-8", "replace")):
                    yield Signal("license", "html", value, "unknown")
        else:
            href = attributes.get("href", "").strip()
            is_license = "license" in attributes.get("rel", "").lower().split()
            if href and (is_license or _CREATIVE_COMMONS.search(href)):
                yield Signal("license", "html", href, "unknown")
    for value in reservations:
        yield Signal("tdmrep", "html", shown_reservation(value, policy), reservation_meaning(value))


def _tags(body: bytes) -> Iterator[tuple[bytes, int, dict[str, str], bytes]]:
    """The start tags that may bear a signal, and those of scripts that are JSON: name, place, attributes (of a
    repeated one the first), and for script its text."""
    at = 0
    while (found := _TAG.search(body, at)) is not None:
        begin = found.start()
        named = _NAME.match(body, begin)
        if named is None:
            at = _after_text(body, found.end(), b"!")
            continue
        if _is_in_tag(body, at, begin):
            at = named.end()
            continue
        name, at = named[1].lower(), named.end()
        if name not in _ENDS:
            attributes, at = _attributes(body, at)
            yield name, begin, attributes, b""
            continue
        # Of dozens of scripts one may be JSON-LD: the others are passed over without their attributes.
        attributes = {}
        if name == b"script" and b"json" in body[at : body.find(b">", at) + 1].lower():
            attributes, at = _attributes(body, at)
        end_tag = _ENDS[name].search(body, at)
        if end_tag is None:
            return
        if attributes:
            yield name, begin, attributes, body[at : end_tag.start()]
        at = end_tag.end()


def _is_in_tag(body: bytes, begin: int, at: int) -> bool:
    """Whether what stands at `at` is within a tag that began before it, as in an attribute's value. (One whose value
    has a `>` before it is taken for an element.)"""
    before = body.rfind(b"<", begin, at)
    return before >= 0 and body[before + 1 : before + 2].isalpha() and body.find(b">", before, at) < 0


def _attributes(body: bytes, at: int) -> tuple[dict[str, str], int]:
    """The attributes of the tag whose name ends at `at`, and where the tag ends."""
    found: dict[str, str] = {}
    while (one := _ATTRIBUTE.match(body, at)) is not None:
        value = next((value for value in one.groups()[1:] if value is not None), b"").decode(
            "utf-8", "replace"
        )
        name = one[1].decode("utf-8", "replace").lower()
        found.setdefault(name, entities.unescape(value) if "&" in value else value)
        at = one.end()
    end = body.find(b">", at)
    return found, len(body) if end < 0 else end + 1


def _licenses_of_json(text: str) -> Iterator[str]:
    """The licences of a JSON-LD text that are URLs: schema.org's `license` is one, or an object with one."""
    if '"license"' not in text:
        return
    try:
        left: list[Any] = [read_json(text)]
    except ValueError:
        return
    while left:
        value = left.pop()
        if isinstance(value, list):
            left += reversed(value)
        elif isinstance(value, dict):
            given = value.get("license")
            for one in given if isinstance(given, list) else [given]:
                url = (one.get("@id") or one.get("url")) if isinstance(one, dict) else one
                if isinstance(url, str) and "/" in url and not any(map(str.isspace, url.strip())):
                    yield url.strip()
            left += reversed(list(value.values()))
