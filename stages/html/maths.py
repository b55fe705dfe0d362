"""Formulas of a page as LaTeX text, raised and lowered digits in a plain form: before any extractor sees the
page.

Extractors drop formulas ("and , e=mc^2"), write them twice, or run their digits together (10<sup>6</sup> as
106). So

- MathML becomes `$…$`, or `$$…$$` where it is displayed: its TeX annotation, else its `alttext`, else what
  `stages.html.mathml` makes of its presentation; so does a script of type math/tex, and an image that shows
  TeX (`mwe-math-fallback`, `tex`, `latex`) by its `alt`. What MathJax, KaTeX and Wikipedia wrap around a
  formula, with a second copy in it, goes.
- `10<sup>6</sup>` becomes `10^6`, `x<sub>1</sub>` `x_1`, `<sup>1</sup>⁄<sub>2</sub>` `1/2`. Marks of
  footnotes, ordinals (`1<sup>st</sup>`) and chemical formulas (`H<sub>2</sub>O`) stay as they are.

One pass over the page's characters, without a tree: linear, and what does not end is left as it stands.
"""

from __future__ import annotations

import re
from html import escape, unescape
from typing import Final, NamedTuple

from stages.html.mathml import latex_of_presentation

_FRACTION_ENTITY: Final = re.compile("&(?i:frasl|#8260|#x2044);")
_WRAPPING: Final = ("span", "div", "mjx-container")


_TAG_END: Final = re.compile(r"(?:[^>=]++|=\s*+(?:\"[^\"]*+\"|'[^']*+')?+)*+>")
_MATH_END: Final = re.compile(r"</(?i:(?:m:|mml:)?math)\s*>")
_SCRIPT_END: Final = re.compile(r"</(?ai:script)(?=[\s/>])")
_START_OR_END: Final = {name: re.compile(rf"<(/?)(?i:{name})(?=[\s/>])") for name in _WRAPPING}
_MAX_FORMULA: Final = 50_000
"""Characters of a formula or of what is wrapped around one; what is longer is no formula."""
_BUDGET: Final = 8
"""How many times a page's characters ends of formulas and wrappers are looked for: they may all be
missing."""
_CLASSES: Final = re.compile(r"""(?i)\bclass\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""")
_WRAPPERS: Final = frozenset({
    "katex", "katex-display", "mwe-math-element", "MathJax", "MathJax_Display", "MathJax_CHTML", "MathJax_SVG",
    "MathJax_SVG_Display", "MathJax_MathML", "MathJax_Preview", "MJXc-display",
})  # fmt: skip
_BLOCK: Final = re.compile(r"(?i)<(?:p|h[1-6]|li|td|article|section|blockquote)[\s>]")


def with_maths(html: str) -> str:
    """The page with its formulas as text; itself where it has none. Few pages have: `markup_bounds` tells
    which may."""
    # resiliparse drops a fraction slash that stands between two elements.
    return _PageRewriter(_FRACTION_ENTITY.sub("/", html).replace("\u2044", "/")).result()


_PLAIN: Final = ("script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes")
"""Elements that hold plain text, up to their end tag."""
_LOOKED_AT: Final = re.compile(
    rf"<(?=[!DIMNSTXdimnstx])(?:!--|((?ai:(?:m:|mml:)?math|su[bp]|img|span|div|mjx-container|{'|'.join(_PLAIN)}))(?=[\s/>]))"
)
_END_OF_PLAIN: Final = {name: re.compile(rf"</(?ai:{name})(?=[\s/>])") for name in _PLAIN}
_OF_WRAPPER: Final = 2_000
"""Characters of a tag in which the classes of what is wrapped around a formula are looked for."""
_UNQUOTED: Final = re.compile(r"""(?:[^>"']++|"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z))*+""")
_NAMES_WRAPPER: Final = re.compile(r"(?ai:katex|mathjax|mjx|mwe-math)")
_MAY_HOLD_TEX: Final = {"img": re.compile(r"(?ai:tex|mwe-math)"), "script": re.compile(r"(?ai:math/tex)")}


def _next_tag(html: str, at: int) -> tuple[str, int, int] | None:
    """The next start tag from `at` on that the rewriting looks at: its name in small letters, where its `<` is and
    where its name ends. These are formulas, raised text, images that may show TeX, scripts that may be some,
    `mjx-container`, and each `span` and `div` that may be wrapped around a formula by what its first 2,000 characters
    name. No tag is in a comment, in another script, or in another element that holds plain text."""
    while (found := _LOOKED_AT.search(html, at)) is not None:
        (begin, end), name = found.span(), (found[1] or "").lower()
        if not name:
            close = html.find("-->", begin + 2)
            at = len(html) if close < 0 else close + 3
        elif name in ("span", "div"):
            within = _UNQUOTED.match(html, end, end + _OF_WRAPPER)
            assert within is not None, "it matches nothing, too"
            named = _NAMES_WRAPPER.search(html, end, within.end() + len("mwe-math"))
            if named is not None and named.start() < within.end():
                return name, begin, end
            at = end  # a tag may begin in its attributes
        elif name == "img" or name in _PLAIN:
            tag = _TAG_END.match(html, end)
            at = len(html) if tag is None else tag.end()
            if name in _MAY_HOLD_TEX and _MAY_HOLD_TEX[name].search(html, end, at):
                return name, begin, end
            if name != "img" and at < len(html):
                closing = _END_OF_PLAIN[name].search(html, at)
                at = len(html) if closing is None else closing.end()
        else:
            return name, begin, end
    return None


class _Wrapper(NamedTuple):
    """What is wrapped around a formula, and the text that takes its place; None: it is not known."""

    begin: int
    end: int
    latex: str | None
    is_preview: bool


class _PageRewriter:
    """A page, how far it is rewritten (`_done`), and the wrappers of a formula behind that (previews, then
    its output): a script with its TeX may follow."""

    def __init__(self, html: str) -> None:
        self._html = html
        self._pieces: list[str] = []
        self._done = 0
        self._waiting: list[_Wrapper] = []
        self._budget = _BUDGET * len(html)

    def result(self) -> str:
        """The page anew."""
        html, at = self._html, 0
        while (found := _next_tag(html, at)) is not None:
            name, begin, end_of_name = found
            if self._waiting and (
                name not in (*_WRAPPING, "script") or html[self._waiting[-1].end : begin].strip()
            ):
                self._show_waiting()
            tag = _TAG_END.match(html, end_of_name)
            if tag is None:  # the rest of the page is in this tag
                break
            behind = self._element(name, begin, tag)
            if behind is None:  # in this element
                break
            at = behind
        self._show_waiting()
        return "".join((*self._pieces, html[self._done :]))

    def _element(self, name: str, begin: int, tag: re.Match[str]) -> int | None:
        """Look at an element whose start tag ends as `tag` does; where to go on, None at the end of the
        page."""
        if name in ("sup", "sub"):
            change = _raised_text(self._html, begin, tag.end(), name)
            return tag.end() if change is None else self._replace(begin, change.end, change.text)
        if name == "img":
            latex = _of_image(tag[0])
            return tag.end() if latex is None else self._replace(begin, tag.end(), latex)
        if name in _WRAPPING:
            return self._wrapper(name, begin, tag)
        if name == "script":
            return self._script(begin, tag)
        end = tag.end() if tag[0].endswith("/>") else self._end_of(_MATH_END, tag.end())
        latex = None if end is None else _of_mathml(self._html[begin:end])
        return tag.end() if end is None or latex is None else self._replace(begin, end, latex)

    def _replace(self, begin: int, end: int, text: str) -> int:
        self._pieces += (self._html[self._done : begin], text)
        self._done = end
        return end

    def _end_of(self, pattern: re.Pattern[str], at: int) -> int | None:
        if self._budget <= 0:
            return None
        found = pattern.search(self._html, at, at + _MAX_FORMULA)
        self._budget -= found.end() - at if found else _MAX_FORMULA
        return found.end() if found else None

    def _script(self, begin: int, tag: re.Match[str]) -> int | None:
        close = _SCRIPT_END.search(self._html, tag.end())
        if close is None:
            return None
        latex = _of_script(tag[0], self._html[tag.end() : close.start()])
        if latex is None:
            self._show_waiting()
            return close.end()
        end = _TAG_END.match(self._html, close.end())
        behind = self._replace(
            self._waiting[0].begin if self._waiting else begin, end.end() if end else len(self._html), latex
        )
        self._waiting = []
        return behind

    def _wrapper(self, name: str, begin: int, tag: re.Match[str]) -> int:
        classes = _wrapper_classes(name, tag[0])
        end = self._element_end(name, tag.end()) if classes else None
        if end is None:
            return tag.end()
        content = self._html[tag.end() : end]
        num_maths = len(_MATH_START.findall(content))
        mathml = _MATH.search(content) if num_maths == 1 else None
        if num_maths > 1 or _BLOCK.search(content):  # no single formula: what is in it is looked at
            return tag.end()
        is_mathjax = any(one.startswith(("MathJax", "MJX")) for one in classes)
        if mathml is None and not is_mathjax:
            return tag.end()
        is_display = any("isplay" in one or "block" in one for one in classes)
        latex = None if mathml is None else _of_mathml(mathml[0], is_display=is_display)
        if self._waiting and not self._waiting[-1].is_preview:  # the script is that of the last formula alone
            self._show_waiting()
        self._waiting.append(_Wrapper(begin, end, latex, "MathJax_Preview" in classes))
        return end

    def _element_end(self, name: str, at: int) -> int | None:
        if self._budget <= 0:
            return None
        depth = 1
        for tag in _START_OR_END[name].finditer(self._html, at, at + _MAX_FORMULA):
            depth += -1 if tag[1] else 1
            if not depth:
                self._budget -= tag.end() - at
                end = _TAG_END.match(self._html, tag.end())
                return end.end() if end else None
        self._budget -= _MAX_FORMULA
        return None

    def _show_waiting(self) -> None:
        """Wrappers that no script follows: their formulas; as they stand where none is known, but for a
        preview."""
        if not self._waiting:
            return
        is_known = any(wrapper.latex for wrapper in self._waiting)
        for wrapper in self._waiting:
            if wrapper.latex is not None or (wrapper.is_preview and is_known):
                self._replace(wrapper.begin, wrapper.end, wrapper.latex or "")
        self._waiting = []


def _wrapper_classes(name: str, attributes: str) -> frozenset[str]:
    """The classes of what is wrapped around formulas; none for another element."""
    classes = frozenset(_value(_CLASSES.search(attributes)).split())
    if name == "mjx-container":
        return classes | {"MathJax"}
    return classes if classes & _WRAPPERS else frozenset()


_MATH_START: Final = re.compile(r"(?i)<(?:m:|mml:)?math(?=[\s>])")
_MATH: Final = re.compile(r"(?is)<((?:m:|mml:)?math)(?=[\s>])(?:[^<]++|<(?!/\1\s*>))++</\1\s*>")
_ANNOTATION: Final = re.compile(
    r"(?is)<(?:m:|mml:)?annotation\s[^<>]{0,300}encoding\s*=\s*[\"']?(?:application/x-)?(?:la)?tex[\"'\s>][^<]*"
)
_ATTRIBUTE: Final = r"""(?is)\s{name}\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))"""
_ALT: Final = re.compile(_ATTRIBUTE.format(name="alt"))
_ALTTEXT: Final = re.compile(_ATTRIBUTE.format(name="alttext"))
_DISPLAY: Final = re.compile(r"""(?i)\s(?:display|mode)\s*=\s*["']?(?:block|display)\b""")
_SCRIPT_TYPE: Final = re.compile(r"""(?i)\stype\s*+=\s*+["']?\s*+math/tex""")
_IMAGE_CLASS: Final = re.compile(
    r"""(?i)\sclass\s*=\s*(?:"|')?(?:[^"'>]{0,200}\s)?(?:mwe-math-fallback|tex\b|latex\b)"""
)


def _of_mathml(element: str, *, is_display: bool = False) -> str | None:
    """A whole `math` element as text; None where it is none, or nests deeper than formulas do."""
    start = _TAG_END.match(element, 1)
    if start is None:
        return None
    head = start[0]
    is_display = is_display or _DISPLAY.search(head) is not None
    annotation = _ANNOTATION.search(element, start.end())
    alttext = _value(_ALTTEXT.search(head))
    source = unescape(annotation[0].partition(">")[2]).strip() if annotation else ""
    latex = source or alttext or latex_of_presentation(element[start.end() :])
    return None if latex is None else _delimited(latex, is_display=is_display)


def _of_image(attributes: str) -> str | None:
    if not _IMAGE_CLASS.search(attributes):
        return None
    alt = _value(_ALT.search(attributes))
    return _delimited(alt, is_display="display" in attributes or "-block" in attributes) if alt else None


def _of_script(attributes: str, source: str) -> str | None:
    if not _SCRIPT_TYPE.search(attributes) or len(source) > _MAX_FORMULA:
        return None
    source = source.replace("% <![CDATA[", "").replace("%]]>", "").replace("<![CDATA[", "").replace("]]>", "")
    return _delimited(source, is_display="mode=display" in attributes.replace(" ", "").lower())


def _value(found: re.Match[str] | None) -> str:
    return unescape(next(filter(None, found.groups()), "")).strip() if found else ""


_TEX_COMMENT: Final = re.compile(r"(?<!\\)%.*")
_STYLED: Final = re.compile(r"(?s)\{\\(?:display|text)style\b\s*(.*)\}")


def _delimited(latex: str, *, is_display: bool) -> str:
    """LaTeX between dollars as text of a page; nothing for an empty formula."""
    latex = " ".join(_TEX_COMMENT.sub("", latex).split())
    for opening, closing in (("$$", "$$"), ("\\[", "\\]"), ("\\(", "\\)"), ("$", "$")):
        if len(latex) > len(opening + closing) and latex.startswith(opening) and latex.endswith(closing):
            latex = latex[len(opening) : -len(closing)].strip()
            is_display = is_display or opening in ("$$", "\\[")
    styled = _STYLED.fullmatch(latex)
    if styled and _is_balanced(styled[1]):
        latex = styled[1].strip()
    if not latex:
        return ""
    sign = "$$" if is_display else "$"
    return escape(f"{sign}{latex}{sign}")  # its quotes too: it may stand in an attribute


def _is_balanced(latex: str) -> bool:
    """Whether no brace closes one that was opened before this text."""
    depth = 0
    for brace in re.findall(r"\\.|[{}]", latex, re.DOTALL):
        depth += (brace == "{") - (brace == "}")
        if depth < 0:
            return False
    return depth == 0


class _Change(NamedTuple):
    text: str
    end: int


_LOOK_BACK: Final = 120
_MAX_RAISED: Final = 200
_RAISED_END: Final = {name: re.compile(rf"(?i)</{name}\s*>") for name in ("sup", "sub")}
_INLINE: Final = r"(?:i|b|em|small|strong|var|span|font|big|sub|sup|u|tt|code)"
_NOTE: Final = re.compile(r"(?i)note|fnref|reference|cite")
_ANY_TAG: Final = re.compile(r"<[^<>]*>")
_INLINE_END: Final = re.compile(rf"(?i)</{_INLINE}\s*>")
_INLINE_TAG: Final = re.compile(rf"(?i)</?{_INLINE}(?:\s[^<>]*)?>")

_NUMBER: Final = re.compile(r"[-+\u2212]?[0-9]+(?:[.,][0-9]+)*[-+\u2212]?")
_NAME: Final = re.compile(r"[ijkmnpqxyz]|[\u03b1-\u03c9]")
_TERM: Final = r"[0-9a-z\u03b1-\u03c9]{1,4}"
_EXPRESSION: Final = re.compile(rf"(?=.*[-+\u2212*/,0-9])[-+\u2212]?{_TERM}(?:[-+\u2212*/,]{_TERM}){{0,5}}")
_UNITS: Final = "mm|cm|dm|km|m|in|ft|yd|mi|nm|\u00b5m|\u03bcm|s|sec|min|h"
_RAISED_BASE: Final = re.compile(
    rf"(?:[0-9]|(?<![^\W\d_])(?:[^\W\d_]|{_UNITS})|\([^()]{{0,40}}[-+\u2212*/^=0-9][^()]{{0,40}}\)|\([a-z]\))\Z"
)
_LOWERED_BASE: Final = re.compile(r"(?:[0-9]|(?<![^\W\d_])(?:[a-z\u0391-\u03c9]|log|lim|max|min|sup|inf))\Z")
_SLASH_AND_LOWERED: Final = re.compile(
    r"(?is)\s*(?:<span[^<>]*>\s*)?/\s*(?:</span>\s*)?<sub(?:\s[^<>]*)?>\s*([0-9]{1,9})\s*</sub\s*>"
)


def _text_before(html: str, end: int) -> str:
    """The text that ends there, in or behind inline elements that end there; a line's worth at most."""
    tail = html[max(0, end - _LOOK_BACK) : end]
    while tail.endswith(">"):
        begin = tail.rfind("<")
        if begin < 0 or not _INLINE_END.fullmatch(tail, begin):
            return ""
        tail = tail[:begin]
    return unescape(tail[max(tail.rfind(">"), tail.rfind("<")) + 1 :])


def _raised_text(html: str, begin: int, at: int, name: str) -> _Change | None:
    """What takes the place of a raised or lowered element whose content begins at `at`; None where it
    stays."""
    close = _RAISED_END[name].search(html, at, at + _MAX_RAISED)
    if close is None:
        return None
    markup, end = html[at : close.start()], close.end()
    unstripped = unescape(_INLINE_TAG.sub("", markup))
    text, is_spaced = unstripped.strip(), unstripped[-1:].isspace()
    before = _text_before(html, begin)
    is_followed = text[-1:].isdigit() and html[end : end + 1].isdigit()
    behind = " " if is_spaced or is_followed else ""
    if "<" in text or _NOTE.search(html, begin, at):  # the mark of a footnote, most often a link
        shown = unescape(_ANY_TAG.sub("", markup)).strip()
        fuses = shown[:1].isdigit() and before[-1:].isdigit()
        return _Change(" " + html[begin:at], at) if fuses else None
    if name == "sup" and text.isdigit() and (divided := _SLASH_AND_LOWERED.match(html, end)) is not None:
        apart = " " if before[-1:].isdigit() else ""
        behind = " " if html[divided.end() : divided.end() + 1].isdigit() else ""
        return _Change(f"{apart}{text}/{divided[1]}{behind}", divided.end())
    base, sign = (_RAISED_BASE, "^") if name == "sup" else (_LOWERED_BASE, "_")
    if base.search(before):
        if _NUMBER.fullmatch(text) or _NAME.fullmatch(text):
            return _Change(sign + text + behind, end)
        if _EXPRESSION.fullmatch(text):
            return _Change(f"{sign}({text}){behind}", end)
    if text[:1].isdigit() and before[-1:].isdigit() and not re.search(r"[^\W\d_]", text):
        return _Change(f" {escape(text)}{behind}", end)
    return _Change(f"{html[begin:end]} ", end) if is_followed else None
