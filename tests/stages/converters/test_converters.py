"""Converters turn payloads into texts within bounds, or a rule rejects the document and says why."""

from __future__ import annotations

import itertools
import json
import random
import time
from pathlib import Path

import pytest

from stages.converters.converter import MAX_MARKUP, Converted, Converter, Refused, convert
from stages.document import Document, Rejection
from stages.html.extraction_child import IsolatedExtraction, processor_seconds
from stages.html.page import PageReader
from stages.reading.content_types import EPUB, LATEX, PDF, wikitext_type
from stages.steps.parse import ParseStep, ParseTable
from tests.support.inputs.document_files import LOCKED, epub, paper, pdf, tar

WIKI = wikitext_type(["file", "image", "datei"], ["category"])
SENTENCE = "The quick brown fox jumps over the lazy dog while the cat looks on in silence."


def converted(payload: bytes, content_type: str, **more: int) -> Converted | Refused:
    bounds = {"max_bytes": 10**6, "max_pages": 100} | more
    return convert(payload, Converter(content_type=content_type, timeout_seconds=60.0, **bounds))


def text_of(payload: bytes, content_type: str) -> str:
    found = converted(payload, content_type)
    assert isinstance(found, Converted), found
    return found.text


def parse(make_document, payload: bytes, content_type: str, **keys) -> Document | Rejection:
    table = ParseTable(extractor="resiliparse", **keys)
    step = ParseStep(table, PageReader(table.bounds(10**6), table.timeout_seconds))
    document = make_document(payload=payload, content_type=content_type, num_bytes=len(payload))
    return step(document)


def rule(outcome: Document | Rejection) -> str:
    return outcome.finding.rule if isinstance(outcome, Rejection) else "kept"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("'''Ada''' (''née'' Byron) was [[England|English]].", "Ada (née Byron) was English."),
        ("Ada ({{IPA|x}}; born 1815) and Bo ({{lang|x}}) met.", "Ada (born 1815) and Bo met."),
        ("A<ref name=x>{{cite|a}}</ref> b<!-- c -->.", "A b."),
        (
            "[[Datei:a.jpg|thumb|of [[b]]]]Text[[Category:C]] [[:Category:D]] [[de:Ada]] [[a:b|c]]",
            "Text Category:D c",
        ),
        ("[[Re:Zero]], [[AC: x]] and [[WP:A]]; [[zh-min-nan:Ada]]", "Re:Zero, AC: x and WP:A;"),
        ("__TOC__<code>__init__</code> and __FILE__ __INHALTSVERZEICHNIS__", "__init__ and __FILE__"),
        (";Term:meaning", "Term meaning"),
        ("A " + "{{t|" * 50 + "x" + "}}" * 50 + " B {{{1|c}}} D", "A B D"),
        ("See [http://a.example b], [http://c.example] and http://d.example", "See b, and http://d.example"),
        ("Area&nbsp;is <math>x^2</math>&mdash;so.", "Area\xa0is $x^2$—so."),
        ("* one\n* two\n# three", "- one\n- two\n- three"),
        ("a\n{| class=x\n| cell\n|}\nb", "a\n\nb"),
        ("__NOTOC__\nlead\n== A ==\n=== B ===\n{{x}}\n== C ==\n=== D ===\ntext", "lead\n\nC\n\nD\n\ntext"),
        ("<nowiki>[[a]]</nowiki> a<br/>b", "[[a]] a\nb"),
        ("{{unclosed [[and <b>so", "{{unclosed [[and <b>so"),
        ("", ""),
    ],
)
def test_wikitext_becomes_prose(source: str, text: str) -> None:
    assert text_of(source.encode(), WIKI) == text


@pytest.mark.parametrize("opened", ["<ref>", "{|\n| a\n", "{{a|", "[[File:a|", "<b a=", "[http://a ", "<!--"])
def test_wikitext_whose_cost_grows_with_its_square_is_turned_down_by_its_markup(
    make_document, opened: str
) -> None:
    outcome = parse(make_document, (opened * 20_000).encode(), WIKI)
    assert rule(outcome) == "parse.too_much_markup"
    assert isinstance(outcome, Rejection) and (outcome.finding.value or 0) > MAX_MARKUP
    assert rule(parse(make_document, (f"{SENTENCE} {opened}" * 20).encode(), WIKI)) == "kept"


def test_a_pdf_has_the_text_of_its_pages_with_a_line_for_each_paragraph() -> None:
    lines = ["A paragraph begins in this line and goes", "on in the next one, where", "Another one (short)"]
    found = converted(pdf("\n".join(lines), "Page two", title="A title"), PDF)
    assert found == Converted(
        text="A paragraph begins in this line and goes on in the next one, where\nAnother one (short)\n\nPage two",
        title="A title",
    )


def test_lines_of_a_page_on_its_side_do_not_run_into_one_another() -> None:
    page = "A long line of some words that goes on\nand ends here.\nShort\nlines"
    assert text_of(pdf(page, upwards=True), PDF).split() == page.split()


@pytest.mark.parametrize(
    ("payload", "kind", "wanted"),
    [
        (pdf("a", trailer=LOCKED), PDF, "parse.encrypted"),
        (pdf("a")[:300], PDF, "parse.damaged"),
        (b"no PDF at all", PDF, "parse.damaged"),
        (pdf(*["a"] * 30), PDF, "parse.too_many_pages"),
        (pdf(""), PDF, "parse.empty"),
        (b"%PDF-" + b"a" * 1_100_000, PDF, "parse.too_large"),
        (b"no zip", EPUB, "parse.damaged"),
        (epub({"a": "x"}, spine=[]), EPUB, "parse.damaged"),
        (epub({"a": "x"}, spine=["b"]), EPUB, "parse.damaged"),
        (epub({"a": "<p> </p>"}), EPUB, "parse.empty"),
        (epub({"a": f"<p>{SENTENCE * 20_000}</p>"}), EPUB, "parse.too_large"),
        (epub({"a": "<div>" * 2_000}), EPUB, "parse.too_deep"),
        (epub({"a": "x"})[:-40], EPUB, "parse.damaged"),
        (tar({"a.tex": b"no document"}), LATEX, "parse.damaged"),
        (tar({"a.png": b"x"}), LATEX, "parse.damaged"),
        (paper(SENTENCE)[:-60] + b"{" * 3_000, LATEX, "parse.damaged"),
        (paper(r"\cite{a}"), LATEX, "parse.empty"),
    ],
    ids=itertools.count(),
)
def test_what_gives_no_text_is_turned_down_by_name(
    make_document, payload: bytes, kind: str, wanted: str
) -> None:
    assert rule(parse(make_document, payload, kind, max_pages=20)) == wanted


def test_pages_of_a_pdf_have_no_more_text_than_a_document_may() -> None:
    book = pdf(*["The boats came home."] * 90, packed=True)
    assert converted(book, PDF, max_bytes=1_800) == Converted(text="\n\n".join(["The boats came home."] * 90))
    assert converted(book, PDF, max_bytes=1_799) == Refused(refusal="too_large")


def test_chapters_of_an_epub_stand_in_the_order_of_its_spine(make_document) -> None:
    bodies = {name: f"<h1>{name}</h1><p>{SENTENCE * 3}</p>" for name in ("two", "one", "beside")}
    outcome = parse(make_document, epub(bodies, title="A & B", spine=["one", "two"]), EPUB)
    assert isinstance(outcome, Document)
    assert [line for line in outcome.text.split("\n") if line in bodies] == ["one", "two"]
    assert json.loads(outcome.metadata or "") == {"title": "A & B"}


@pytest.mark.parametrize(
    ("item", "more"),
    [
        ('id="a" href="text/a.xhtml" media-type="Application/xhtml+xml; charset=utf-8"', ""),
        ('id="a" href="text/a.xhtml" media-type="application/xml"', ""),
        ('id="a" href="/OEBPS/text/a.xhtml" media-type="application/xhtml+xml"', ""),
        ('id="a" href="../OEBPS/text/%61.xhtml#b" media-type="application/xhtml+xml"', ""),
        ('id="a" href="a.svg" media-type="image/svg+xml" fallback="b"', '<item id="b" href="text/a.xhtml"/>'),
    ],
)
def test_a_chapter_is_read_however_the_manifest_names_it(item: str, more: str) -> None:
    package = (
        '<package xmlns="http://www.idpf.org/2007/opf"><metadata/>'
        f'<manifest><item {item}/>{more}</manifest><spine><itemref idref="a"/></spine></package>'
    )
    found = converted(epub({"a": "<p>one</p>"}, more={"OEBPS/book.opf": package.encode()}), EPUB)
    assert isinstance(found, Converted) and ["one" in page for page in found.pages] == [True]


def _encryption(path: str) -> bytes:
    return (
        '<encryption xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><EncryptedData'
        ' xmlns="http://www.w3.org/2001/04/xmlenc#"><CipherData><CipherReference'
        f' URI="{path}"/></CipherData></EncryptedData></encryption>'
    ).encode()


def test_an_encrypted_chapter_turns_a_book_down_and_a_mangled_font_does_not() -> None:
    for path, is_refused in (("OEBPS/text/a.xhtml", True), ("OEBPS/font.otf", False)):
        found = converted(epub({"a": "x"}, more={"META-INF/encryption.xml": _encryption(path)}), EPUB)
        assert (found == Refused(refusal="encrypted")) == is_refused


LAUGHS = (
    '<!DOCTYPE a [<!ENTITY a "ha">'
    + "".join(f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 10}">' for n in range(9))
    + "]><a>&j;</a>"
)


def test_entities_unfold_to_no_bomb_and_read_no_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hidden")
    outside = f'<!DOCTYPE a [<!ENTITY x SYSTEM "{secret.as_uri()}">]><a>&x;</a>'
    for xml in (LAUGHS, outside):
        found = converted(epub({"a": "x"}, more={"META-INF/encryption.xml": xml.encode()}), EPUB)
        assert found == Refused(refusal="damaged")


def test_a_zip_bomb_unfolds_no_further_than_a_document_may() -> None:
    bomb = epub({"a": "a" * 50_000_000})
    assert len(bomb) < 60_000
    assert converted(bomb, EPUB) == Refused(refusal="too_large")


def test_a_name_in_an_epub_is_that_of_a_member_and_of_no_file() -> None:
    book = epub({"../../../../../../etc/passwd": "x"})
    found = converted(book, EPUB)
    assert isinstance(found, Refused) or "root:" not in "".join(found.pages)


MAIN = paper(r"Begin \input{sec/a} middle \include{b} end. % \input{c}" + "\n" + r"\input{../../etc/passwd}")


def test_a_paper_is_its_main_file_with_what_it_inputs_from_the_archive() -> None:
    files = {
        "p/main.tex": MAIN,
        "p/sec/a.tex": b"first",
        "p/b.tex": b"second \\input{main}",
        "p/c.tex": b"unread",
        "p/other.tex": paper("A supplement."),
        "etc/passwd": b"root:",
        "passwd.tex": b"root:",
    }
    assert text_of(tar(files, links={"p/d.tex": "/etc/passwd"}), LATEX) == "Begin first middle second end."


def test_a_paper_whose_archive_is_damaged_within_is_no_shorter_paper() -> None:
    whole = tar({"main.tex": paper(r"Begin \input{b}"), "b.tex": b"second"})
    at = whole.index(b"b.tex\0")
    assert converted(whole[:at] + b"\xff" * 400 + whole[at + 400 :], LATEX) == Refused(refusal="damaged")
    assert converted(whole[: at + 512 + 3], LATEX) == Refused(refusal="damaged")


def test_files_that_input_one_another_unfold_no_further_than_a_document_may() -> None:
    files = {f"f{n}.tex": f"\\input{{f{n + 1}}}".encode() * 10 for n in range(15)}
    files |= {"main.tex": paper(r"\input{f0}"), "f15.tex": b"ha" * 100}
    assert converted(tar(files), LATEX) == Refused(refusal="too_large")


def test_latex_becomes_prose_with_its_formulas() -> None:
    source = paper(
        r"\maketitle \section{Ebb} As~\cite{a}, Schr\"odinger's \emph{``cat''} costs 5\% in Figure~\ref{f}. % hidden"
        "\n\n" + r"So $a<b$ and \begin{equation}E=mc^2\end{equation} on \today."
        r"\begin{thebibliography}{9}\bibitem{a} Gone.\end{thebibliography}",
        preamble=r"\title{Ebb \& \emph{flow}}\author{Me}",
    )
    found = converted(source, LATEX)
    assert isinstance(found, Converted)
    assert found.title == "Ebb & flow"
    assert found.text.startswith(
        "Ebb & flow\n\nEbb\n\nAs, Schrödinger's “cat” costs 5% in Figure.\n\nSo $a<b$ and"
    )
    assert "E=mc^2" in found.text and "Gone" not in found.text and found.text.endswith("on."), (
        "no day, no hour"
    )


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            r"see \href{./a.tex}{the file} and \url{http://a.example/b_c}",
            "see the file and <http://a.example/b_c>",
        ),
        (
            "one\n  % a note\ntwo three%\n  four \\% % it\n\nfive\\LaTeX%\nsix",
            "one\ntwo threefour %\n\nfiveLaTeXsix",
        ),
        ("one % a note\r\rtwo", "one\n\ntwo"),
        (
            r"call \verb|f(a % b)| or \verb+\input{x}+, and \lstinline!g{}! too",
            r"call f(a % b) or \input{x}, and g{} too",
        ),
        (
            r"at \url{http://a.example/~b%20c} and \href{./a%20b}{there} on",
            "at <http://a.example/~b%20c> and there on",
        ),
        (
            "a\n\\begin{verbatim}\nx = {100 % 7} -- \\end{document}\n\\end{verbatim}\nb",
            "a\n\nx = {100 % 7} -- \\end{document}\n\nb",
        ),
        ("a\n\\begin{minted}{c}\nx%d\n\\end{minted}\nb", "a\n\nx%d\n\nb"),
        ("a \\begin{comment} not { this \\end{comment} b", "a b"),
        ("a \\begin{comment} b", "a b"),
        (r"\paragraph{Setup.} We \textcolor{red}{boldly} go.", "Setup.\n\nWe boldly go."),
        (r"a\thanks{b}\nocite{*}\pagestyle{empty}\footcite[p.~3]{c} d", "a d"),
        (r"\begin{tabular}{l}\multicolumn{2}{c}{Wide} & one\\ two\end{tabular}", "Wide one\ntwo"),
        (r"\mine{kept} \begin{mine}kept too\end{mine}", "kept kept too"),
        (r"x \href", "x"),
    ],
)
def test_macros_give_the_text_that_a_reader_sees(source: str, text: str) -> None:
    assert text_of(paper(source), LATEX) == text


BOOK = epub({"a": f"<p>{SENTENCE}</p>", "b": "<p>b</p>"}, title="t")
WHOLE = {
    PDF: pdf(SENTENCE, "b"),
    EPUB: BOOK,
    LATEX: tar({"main.tex": paper(SENTENCE + r"\input{b}"), "b.tex": b"b"}),
    WIKI: f"== a ==\n{SENTENCE} {{{{a|b}}}} [[c|d]]\n* <ref>x</ref>".encode(),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_damage_anywhere_gives_a_text_or_a_reason_and_never_ends_a_run(make_document, kind: str) -> None:
    chance = random.Random(kind)
    for _ in range(60):
        data = bytearray(WHOLE[kind])
        for _ in range(chance.randint(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        outcome = parse(
            make_document, bytes(data[: chance.choice([len(data), chance.randrange(len(data))])]), kind
        )
        assert rule(outcome) in (
            "kept",
            "parse.empty",
            "parse.damaged",
            "parse.encrypted",
            "parse.too_large",
        ), outcome


def test_a_library_that_hangs_or_dies_costs_its_document_alone(make_document, tmp_path, monkeypatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, stages.converters.pdf as pdf\nreal = pdf.pdf_text\n"
        "def fake(payload, *given):\n"
        "    if b'hang' in payload:\n        while True: pass\n"
        "    if b'die' in payload:\n        os._exit(139)\n"
        "    return real(payload, *given)\n"
        "pdf.pdf_text = fake\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("stages.html.extraction_child._GRACE_SECONDS", 0.3)
    child = IsolatedExtraction()
    try:
        table = ParseTable(timeout_seconds=0.5)
        pages = PageReader(table.bounds(10**6), table.timeout_seconds)
        pages.isolation = child
        step = ParseStep(table, pages)
        found = [
            rule(step(make_document(payload=pdf(word), content_type=PDF, num_bytes=1)))
            for word in ("hang", "die", "a")
        ]
    finally:
        child.close()
    assert found == ["parse.timeout", "parse.crashed", "kept"]


def test_the_processor_time_of_a_child_counts_as_that_of_its_caller(make_document) -> None:
    parse(make_document, WHOLE[PDF], PDF)
    before = processor_seconds() - time.process_time()
    for _ in range(20):
        parse(make_document, WHOLE[WIKI] * 50, WIKI)
    assert processor_seconds() - time.process_time() > before
