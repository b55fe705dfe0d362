"""Wikitext to plain text, by the syntax tree of mwparserfromhell.

Prose, headings, list items, captions of links and formulas stay. Templates, tables, references, files, categories,
comments and headings without a text are left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from stages.converters.converter import MAX_MARKUP, Converted, RefusedError

_LEFT_OUT: Final = frozenset({
    "categorytree", "gallery", "graph", "hiero", "imagemap", "includeonly", "inputbox", "mapframe", "maplink", "ref",
    "references", "score", "script", "section", "style", "table", "templatedata", "templatestyles", "timeline",
})  # fmt: skip
"""Tags of which nothing is prose."""
_LINES: Final = frozenset(("p", "div", "blockquote", "center", "poem", "pre", "syntaxhighlight", "source"))
_MAGIC_WORD: Final = re.compile(
    r"__(?!(?:FILE|LINE|DATE|TIME|DIR|CLASS|FUNCTION|METHOD|NAMESPACE)__)(?:(?![a-z])[^\W\d_])+__"
)
"""As __NOTOC__, in any language; no names of programming languages, as __init__."""
_BRACKET_BEGINS: Final = re.compile(r"\([ ,;:\xa0]+")
_EMPTY_BRACKETS: Final = re.compile(r"[ \xa0]?\(\)")
"""What templates leave of `({{IPA|…}}; born …)`."""
_LANGUAGE: Final = re.compile(r"[a-z]{2,3}(?:-[a-z-]+)?")
"""Written so before a title; of "Re:Zero" it is a part of it."""
_BRACES: Final = re.compile(r"\{\{|\}\}")
_DEEPEST_TEMPLATE: Final = 15
_BLANK_LINES: Final = re.compile(r"\n\s*\n")
_OPENS_OR_CLOSES: Final = re.compile(
    r"<(?P<end>/?)(?!(?:br|hr|wbr)\b)(?P<tag>[a-zA-Z]+)|(?P<empty>/>)|(?P<comment><!--)|(?P<end_comment>-->)"
    r"|(?P<template>\{\{)|(?P<end_template>\}\})|(?P<table>\{\|)|\n\s*(?P<end_table>\|\})"
    r"|(?P<link>\[\[)|(?P<end_link>\]\])|(?P<url>\[(?:https?:|ftp:|mailto:|//))|(?P<end_url>\])"
)
_ALWAYS: Final = 20
"""A text of nothing but closed markup takes as long as if so many were open. 2.5 million characters are allowed of one
in which nothing is: MediaWiki saves 2 MiB at most ($wgMaxArticleSize)."""
_HEADING: Final = re.compile(r"\0([1-6])")


def wiki_text(payload: bytes, media: frozenset[str], categories: frozenset[str]) -> Converted:
    """The text of a page in UTF-8, whose wiki calls the namespaces of files and of categories so (in lower case).
    RefusedError if too much of it is open."""
    import mwparserfromhell

    source = payload.decode("utf-8", "replace").replace("\0", "")
    if (markup := (_ALWAYS + _num_open(source)) * len(source)) > MAX_MARKUP:
        raise RefusedError("too_much_markup", float(markup))
    tree = mwparserfromhell.parse(_without_deep_templates(source))
    text = _MAGIC_WORD.sub("", "".join(_texts(tree, media | categories)))
    text = _EMPTY_BRACKETS.sub("", _BRACKET_BEGINS.sub("(", text))
    lines = (re.sub(r"[ \t]+", " ", line).strip(" ") for line in text.split("\n"))
    text = _BLANK_LINES.sub("\n\n", "\n".join(lines)).strip()
    return Converted(text=_without_bare_headings(text))


def _without_deep_templates(source: str) -> str:
    """The source without templates that stand in many others, and so are left out with them: the library does not see
    where the outer ones end."""
    opened, pieces, at = list[int](), list[str](), 0
    for found in _BRACES.finditer(source):
        if found[0] == "{{":
            opened.append(found.start())
        elif opened and (begin := opened.pop()) >= at and len(opened) == _DEEPEST_TEMPLATE:
            pieces.append(source[at:begin])
            at = found.end()
    return "".join([*pieces, source[at:]])


def _num_open(source: str) -> int:
    """How many tags, tables, templates, links and comments are not closed."""
    num_open = Counter[str]()
    last_tag = ""
    for found in _OPENS_OR_CLOSES.finditer(source):
        kind = found.lastgroup or ""
        if kind == "tag":
            kind = last_tag = f"<{found['tag'].lower()}"
        elif kind == "empty":
            kind = last_tag
        if found["end"] or found["empty"] or kind.startswith("end_"):
            kind = kind.removeprefix("end_")
            num_open[kind] = max(num_open[kind] - 1, 0)
        else:
            num_open[kind] += 1
    return num_open.total()


def _texts(tree: Any, without: frozenset[str]) -> Iterator[str]:
    """What each node gives. The library nests at most 40 deep (MAX_DEPTH of its tokenizer)."""
    from mwparserfromhell import nodes

    for node in tree.nodes:
        match node:
            case nodes.Text():
                yield node.value
            case nodes.Wikilink():
                yield from _of_link(str(node.title).strip(), node.text, without)
            case nodes.ExternalLink():
                if node.title is not None or not node.brackets:
                    yield from _texts(node.url if node.title is None else node.title, without)
            case nodes.Heading():
                yield f"\n\n\0{node.level}"
                yield from _texts(node.title, without)
                yield "\n\n"
            case nodes.HTMLEntity():
                yield _character(node)
            case nodes.Tag():
                yield from _of_tag(node, without)


def _of_tag(tag: Any, without: frozenset[str]) -> Iterator[str]:
    name = str(tag.tag).strip().lower()
    if name in ("math", "chem"):
        yield f"${str(tag.contents or '').strip()}$"
    elif name == "li" and tag.wiki_markup:
        yield "- "
    elif name == "dd" and tag.wiki_markup:
        yield " "
    elif name in ("br", "hr"):
        yield "\n"
    elif name not in _LEFT_OUT and tag.contents is not None:
        border = "\n" if name in _LINES else ""
        yield border
        yield from _texts(tag.contents, without)
        yield border


def _of_link(target: str, text: Any, without: frozenset[str]) -> Iterator[str]:
    """The text of a link, or its target. A link with a prefix is no link in the text where that is one of `without`,
    or the code of another language's wiki; with a colon before it, it is."""
    prefix = target.partition(":")[0].replace("_", " ").strip() if ":" in target else ""
    if prefix.lower() in without or (text is None and _LANGUAGE.fullmatch(prefix)):
        return
    yield from [target.removeprefix(":")] if text is None else _texts(text, without)


def _character(entity: Any) -> str:
    try:
        return str(entity.normalize())
    except (ValueError, OverflowError):
        return "\ufffd"


def _without_bare_headings(text: str) -> str:
    """The text without the headings that nothing stands under but headings of a lower level, if anything."""
    kept: list[str] = []
    open_headings: list[tuple[int, str]] = []
    for paragraph in text.split("\n\n"):
        if heading := _HEADING.match(paragraph):
            level = int(heading[1])
            while open_headings and open_headings[-1][0] >= level:
                open_headings.pop()
            open_headings.append((level, paragraph[heading.end() :].strip()))
        elif paragraph.strip():
            kept += (title for _, title in open_headings)
            open_headings = []
            kept.append(paragraph)
    return "\n\n".join(kept)
