"""Formulas and raised digits: in the text of both extractors, once, and unable to bring markup in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.document import Document, Place
from stages.html.extraction import Extractor, extract
from stages.html.markup_bounds import markup_bounds
from stages.html.mathml import latex_of_presentation
from stages.html.maths import with_maths
from stages.html.page import Bounds, read_page

SENTENCE = "The quick brown fox jumps over the lazy dog while the cat looks on in silence. "


def text_of(markup: str, name: str) -> str:
    """What an extractor makes of a piece of a page, white space as one space."""
    page = (
        f"<html><head><title>A page</title></head><body><article><p>{SENTENCE * 4}</p><p>{SENTENCE * 2} Begin"
        f" {markup} end. {SENTENCE * 2}</p><p>{SENTENCE * 4}</p></article></body></html>"
    )
    extractor = Extractor(name=name, favor="precision", fast=False, timeout_seconds=60.0)  # type: ignore[arg-type]
    bounds = Bounds(num_bytes=1_000_000, num_tags=1_000, depth=100, num_options=10)
    document = Document(
        doc_id=b"",
        source="",
        place=Place(file="", offset=0, length=0),
        raw_hash=b"",
        payload=page.encode(),
        is_html=True,
    )
    text = extract(read_page(document, bounds).html, extractor)
    assert isinstance(text, str)
    return " ".join(text.split("Begin")[1].split(" end.")[0].split())


ANNOTATED = (
    "<math{attributes}><semantics><mrow><mi>E</mi><mo>=</mo><mi>m</mi><msup><mi>c</mi><mn>2</mn></msup></mrow>"
    '<annotation encoding="application/x-tex">E = mc^{{2}}</annotation></semantics></math>'
)
MATHML, DISPLAYED = ANNOTATED.format(attributes=""), ANNOTATED.format(attributes=' display="block"')
KATEX = (
    f'<span class="katex"><span class="katex-mathml">{MATHML}</span><span class="katex-html"'
    f' aria-hidden="true">'
    '<span class="base"><span class="mord mathnormal">E</span><span class="mrel">=</span><span>m</span>'
    '<span class="mord"><span>c</span><span class="msupsub"><span>2</span></span></span></span></span></span>'
)
MATHJAX_2 = (
    '<span class="MathJax_Preview">[formula]</span><span class="MathJax" id="MathJax-Element-1-Frame"'
    ' tabindex="0">'
    '<nobr aria-hidden="true"><span class="math"><span>E=mc2</span></span></nobr>{assistive}</span>{script}'
)
ASSISTIVE = f'<span class="MJX_Assistive_MathML" role="presentation">{MATHML}</span>'
SCRIPT = '<script type="math/tex" id="MathJax-Element-1">E = mc^{2}</script>'
WIKIPEDIA = (
    '<span class="mwe-math-element mwe-math-element-inline"><span class="mwe-math-mathml-inline"'
    ' style="display: none">'
    '<math xmlns="http://www.w3.org/1998/Math/MathML" alttext="{\\displaystyle'
    ' E=mc^{2}}"><semantics><mi>E</mi>'
    '<annotation encoding="application/x-tex">{\\displaystyle'
    " E=mc^{2}}</annotation></semantics></math></span>"
    '<img src="https://wikimedia.example/svg/1" class="mwe-math-fallback-image-inline" aria-hidden="true"'
    ' alt="{\\displaystyle E=mc^{2}}"></span>'
)

FORMULAS = [
    ("annotation", MATHML, "$E = mc^{2}$"),
    ("annotation, displayed", DISPLAYED, "$$E = mc^{2}$$"),
    (
        "alttext",
        '<math alttext="\\frac{a}{b} &lt; 1"><mfrac><mi>a</mi><mi>b</mi></mfrac></math>',
        "$\\frac{a}{b} < 1$",
    ),
    ("presentation", "<math><msqrt><mi>x</mi><mo>+</mo><mn>10</mn></msqrt></math>", "$\\sqrt{x+10}$"),
    ("prefixed", "<m:math><m:mfrac><m:mn>1</m:mn><m:mi>n</m:mi></m:mfrac></m:math>", "$\\frac{1}{n}$"),
    ("upper case", "<MATH><MSUP><MI>x</MI><MN>2</MN></MSUP></MATH>", "$x^2$"),
    ("script", '<script type="math/tex">\\sum_{i<n} a_i</script>', "$\\sum_{i<n} a_i$"),
    ("script, displayed", "<script type='math/tex; mode=display'>a % why\n + c</script>", "$$a + c$$"),
    ("script, CDATA", "<script type=math/tex>% <![CDATA[\na < b %]]></script>", "$a < b$"),
    ("KaTeX", KATEX, "$E = mc^{2}$"),
    ("KaTeX, displayed", f'<span class="katex-display">{KATEX}</span>', "$$E = mc^{2}$$"),
    ("MathJax 2", MATHJAX_2.format(assistive="", script=SCRIPT), "$E = mc^{2}$"),
    ("MathJax 2 with MathML", MATHJAX_2.format(assistive=ASSISTIVE, script=SCRIPT), "$E = mc^{2}$"),
    ("MathJax 2 without its script", MATHJAX_2.format(assistive=ASSISTIVE, script=""), "$E = mc^{2}$"),
    (
        "MathJax 3",
        '<mjx-container class="MathJax" jax="SVG" display="true"><svg><g></g></svg><mjx-assistive-mml'
        ' display="block">'
        f"{DISPLAYED}</mjx-assistive-mml></mjx-container>",
        "$$E = mc^{2}$$",
    ),
    (
        "MathJax 2, of two formulas one with a script",
        MATHJAX_2.format(assistive=ASSISTIVE.replace("mc^", "nd^"), script="")
        + MATHJAX_2.format(assistive="", script=SCRIPT),
        "$E = nd^{2}$$E = mc^{2}$",
    ),
    ("Wikipedia", WIKIPEDIA, "$E=mc^{2}$"),
    ("an image of TeX", '<img src="x.png" class="latex" alt="a^2+b^2">', "$a^2+b^2$"),
    ("dollars of its own", '<img class="tex" alt="$$a^2$$">', "$$a^2$$"),
    ("two in a row", MATHML + " and " + KATEX, "$E = mc^{2}$ and $E = mc^{2}$"),
]

RAISED = [
    ("power of ten", "10<sup>6</sup> m", "10^6 m"),
    ("negative power", "10<sup>\u22123</sup>", "10^\u22123"),
    ("a digit behind", "10<sup>6</sup>20", "10^6 20"),
    ("white space in it", "15 m<sup>3 </sup>oil", "15 m^3 oil"),
    ("expression", "2<sup>n+1</sup>", "2^(n+1)"),
    ("variable", "<i>x</i><sub>1</sub><sup>2</sup>", "x_1^2"),
    ("index", "x<sub>i</sub> + log<sub>2</sub> 8", "x_i + log_2 8"),
    ("in brackets", "(a+b)<sup>2</sup>", "(a+b)^2"),
    ("fraction with the slash of fractions", "<sup>1</sup>\u2044<sub>2</sub> cup", "1/2 cup"),
    ("fraction behind a number", "2<sup>1</sup>&frasl;<sub>2</sub> cups", "2 1/2 cups"),
    ("fraction with a plain slash", "1<sup>3</sup>/<sub>4</sub>", "1 3/4"),
    ("fraction of spans", '<span class="num">1</span>&frasl;<span class="den">2</span>', "1/2"),
    ("charge", "SO<sub>4</sub><sup>2-</sup>", "SO4^2-"),
    ("a note behind a number", 'in 2020<sup><a href="#n3">3</a></sup>', "in 2020 3"),
    ("a note that is no link", 'in 2020<sup class="footnote">3</sup>', "in 2020 3"),
]

STAYS = [
    ("a note", 'word<sup class="reference"><a href="#n1">[1]</a></sup> more', "word[1] more"),
    ("a note behind a number", 'in 2020<sup><a href="#n1">[1]</a></sup>', "in 2020[1]"),
    ("a note of a word", "word<sup>1</sup> more", "word1 more"),
    ("ordinals", "the 1<sup>st</sup>, 19<sup>th</sup> and 2<sup>e</sup>", "the 1st, 19th and 2e"),
    ("abbreviations", "N<sup>o</sup> and M<sup>me</sup>", "No and Mme"),
    ("chemistry", "H<sub>2</sub>O, C<sub>6</sub>H<sub>12</sub>O<sub>6</sub>", "H2O, C6H12O6"),
    ("trade mark", "Name<sup>TM</sup> and 3M<sup>\u00ae</sup>", "NameTM and 3M\u00ae"),
    ("prices and TeX in the text", "$5 and \\(a_b\\)", "$5 and \\(a_b\\)"),
]


@pytest.mark.parametrize("extractor", ["trafilatura", "resiliparse"])
@pytest.mark.parametrize(
    ("markup", "expected"), [pytest.param(*case[1:], id=case[0]) for case in (*FORMULAS, *RAISED, *STAYS)]
)
def test_what_a_reader_sees_is_in_the_text_once(extractor: str, markup: str, expected: str) -> None:
    assert text_of(markup, extractor) == expected


@pytest.mark.parametrize("extractor", ["trafilatura", "resiliparse"])
def test_a_formula_brings_no_markup_in(extractor: str) -> None:
    evil = "a </p><script>x</script><p>Injected & \" ' b"
    markup = (
        f"<math><annotation encoding='application/x-tex'>{evil.replace('<', '&lt;')}</annotation></math>"
        f' <i title="<math><annotation'
        f" encoding='application/x-tex'>&quot;>out</annotation></math>\">title</i>"
    )
    assert text_of(markup, extractor) == f"${evil}$ title"


def test_a_page_without_any_is_the_same_object() -> None:
    page = (
        f"<html><body><p>{SENTENCE * 50} 5 &lt; 6, <b>bold</b> <img class='text' alt='a'></p></body></html>"
    )
    assert with_maths(page) is page


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        ("<p>plain <b>bold</b> &frac12; &amp; <suppose> <subject> <mathx>", False),
        ("<img class='context text-center' src='text/texture.png?latexx'><script>math/tex</script>", False),
        ("<!-- <math> --><script>'<sup>'</script><title><sub></title>", False),
        *((markup, True) for markup in (
            "<SUP>2</SUP>", "<sub class=a>", "<math>", "<m:math>", "<MML:MATH display='block'>", "1&frasl;2",
            "1&#X2044;2",
            "1&#8260;2", "1\u20442", "<script type='math/tex; mode=display'>", "<img class='a tex' alt='x'>",
            "<img alt='x' class=latex>", "<img class='mwe-math-fallback-image-inline'>", "<svg><title><sup>",
        )),
    ],
)  # fmt: skip
def test_which_pages_may_hold_any_is_told_with_their_bounds(markup: str, expected: bool) -> None:
    assert markup_bounds(markup.encode())[-1] is expected
    assert markup_bounds(f"<p>\u201cbefore\u201d {markup} behind".encode())[-1] is expected
    assert expected or with_maths(markup) is markup


@pytest.mark.parametrize(
    "page",
    [
        "<math><mi>never closed <p>and so it stays</p>",
        "<!-- <math> --> text <!-- </math> -->",
        "<!-- <math><mi>x</mi></math> 10<sup>6</sup> and no end",
        "<script>var a = '<math>x</math>';</script><style><sup></style>",
        "<textarea>10<sup>6</sup></textarea><title>10<sup>6</sup></title>",
        '<sup class="a',
        "<math " + "a=" * 10,
        '<span class="katex"><math>' * 50,
        "<math>" + "<msqrt>" * 200 + "x" + "</msqrt>" * 200 + "</math>",  # deeper than formulas are
        "<math>" + "x" * 60_000 + "</math>",  # longer than formulas are
        "10<sup>" + "6" * 500 + "</sup>",
        '<div class="katex"><p>A whole article about <math><mi>x</mi></math',
    ],
)
def test_what_is_no_formula_or_has_no_end_stays_as_it_stands(page: str) -> None:
    assert with_maths(page) == page


@pytest.mark.parametrize(
    "passed",
    [
        "<!-- > -- -> <math><mi>y</mi></math> -->", "<!-->", "<!--->",
        "<script src='a>b'>'</scripts>' < </SCRIPT/>", "<script>10<sup>6</sup></script >", "<style>x-->1</style\n>",
        "<textarea a=>10<sup>6</sup></textareas></textarea>", "<title>a</titl></title>",
        "<iframe src=\"></iframe>\"></iframe>",
        "<img alt='10<sup>6</sup>' src=a>", "<img alt=\"a>b", "<img alt==' >", "<IMG SRC='a.png' ALT=x>",
    ],
)  # fmt: skip
@pytest.mark.parametrize("wide", ["", "\u0416", "\U0001f600"], ids=["one byte", "two bytes", "four bytes"])
def test_a_formula_is_found_behind_what_holds_none(passed: str, wide: str) -> None:
    before = f"{wide} {passed * 3} " + "a" * 70
    assert with_maths(f"{before} 10<sup>6</sup>") == f"{before} 10^6"


def test_what_is_wrapped_around_more_than_a_formula_is_looked_into() -> None:
    page = '<div class="MathJax"><p>One <math><mi>x</mi></math></p><p><math><mi>y</mi></math> 10<sup>6</sup></p></div>'
    assert with_maths(page) == '<div class="MathJax"><p>One $x$</p><p>$y$ 10^6</p></div>'


def test_looking_for_ends_that_never_come_has_an_end() -> None:
    """Each of these would be looked for over the next 50,000 characters: five billion characters in all."""
    page = '<span class="katex"><math>x' * 100_000
    assert with_maths(page) == page
    assert with_maths(page + "</math>").endswith("</math>"), "and then nothing more is looked for"


PIECES = st.sampled_from(
    [MATHML, KATEX, WIKIPEDIA, SCRIPT, "<math>", "</math>", "<sup>", "</sup>", "<sub>", "</sub>", "1", "x", "/",
     "\u2044", " ", "<!--", "-->", '<span class="katex">', '<span class="MathJax">', "</span>", "<script>", "</script>",
     '"', "'", "<a>", "</a>", "<mfrac>", "<mi>", "<", ">", "=", "&lt;", "<img class=tex alt=",
     "<mjx-container>", "\\", "{", "$"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=30))
def test_any_markup_is_rewritten_without_a_fault_and_no_tag_is_made(pieces: list[str]) -> None:
    page = "".join(pieces)
    found = with_maths(page)
    assert found.count("<") <= page.count("<")
    assert with_maths(f"<p>{SENTENCE}</p>{page}").startswith(f"<p>{SENTENCE}</p>")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("<mi>sin</mi><mo>&#x2061;</mo><mi>x</mi>", "\\sin x"),
        ("<mi>abc</mi><mo>%</mo>", "\\mathrm{abc}\\%"),
        ("<msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup>", "x_i^2"),
        ("<msup><mrow><mi>a</mi><mo>+</mo><mi>b</mi></mrow><mn>12</mn></msup>", "{a+b}^{12}"),
        ("<munderover><mo>\u2211</mo><mrow><mi>i</mi><mo>&lt;</mo></mrow><mi>n</mi></munderover>", "\u2211_{i<}^n"),
        ("<mover><mi>v</mi><mo>\u2192</mo></mover><mroot><mi>x</mi><mn>3</mn></mroot>", "\\vec{v}\\sqrt[3]{x}"),
        ("<mfenced open='[' close=\"]\" separators=';'><mi>a</mi><mi>b</mi></mfenced>", "[a; b]"),
        (
            "<mtable><mtr><mtd><mn>1</mn></mtd><mtd><mn>2</mn></mtd></mtr><mtr><mtd><mn>3</mn></mtd></mtr></mtable>",
            "\\begin{matrix} 1 & 2 \\\\ 3 \\end{matrix}",
        ),
        ("<mtext>if </mtext><mi>x</mi><mspace/><mphantom><mi>y</mi></mphantom>", "\\text{if}x"),
        ("<semantics><mi>x</mi><annotation-xml><ci>x</ci></annotation-xml></semantics>", "x"),
        ("<mfrac><mn>1</mn></mfrac></mi></mrow><mn>2", "12"),  # what is broken is read as a row
        ("", ""),
    ],
)  # fmt: skip
def test_presentation_mathml_is_readable(content: str, expected: str) -> None:
    assert latex_of_presentation(content) == expected
