"""Small files of the formats that are documents by themselves, written from their specifications."""

from __future__ import annotations

import io
import tarfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

SITE = (
    '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="de">\n'
    "  <siteinfo>\n    <base>https://de.wikipedia.org/wiki/Wikipedia:Hauptseite</base>\n    <namespaces>\n"
    '      <namespace key="-2" case="first-letter">Medium</namespace>\n'
    '      <namespace key="0" case="first-letter" />\n'
    '      <namespace key="6" case="first-letter">Datei</namespace>\n'
    '      <namespace key="14" case="first-letter">Kategorie</namespace>\n'
    "    </namespaces>\n  </siteinfo>\n"
)
"""What a dump begins with (https://www.mediawiki.org/xml/export-0.11.xsd)."""
END = "</mediawiki>\n"


def wiki_page(number: int, title: str, text: str, *, namespace: int = 0, redirect: str | None = None) -> str:
    """A page of a dump, with one revision."""
    to = "" if redirect is None else f'    <redirect title="{escape(redirect)}" />\n'
    return (
        f"  <page>\n    <title>{escape(title)}</title>\n    <ns>{namespace}</ns>\n    <id>{number}</id>\n{to}"
        f"    <revision>\n      <id>{number * 10}</id>\n      <timestamp>2026-01-02T03:04:05Z</timestamp>\n"
        "      <model>wikitext</model>\n      <format>text/x-wiki</format>\n"
        f'      <text bytes="{len(text)}" xml:space="preserve">{escape(text)}</text>\n    </revision>\n  </page>\n'
    )


def dump(*pages: str) -> bytes:
    """A whole dump of these pages."""
    return (SITE + "".join(pages) + END).encode()


def pdf(
    *pages: str, title: str = "", trailer: str = "", packed: bool = False, upwards: bool = False
) -> bytes:
    """A PDF 1.4 whose pages have these lines, in Helvetica (ISO 32000-1, annex H.3); `packed`: by Flate; `upwards`: on
    pages that are turned by 90 degrees, as those with wide tables are."""
    matrix, turned = ("0 1 -1 0 72 72 Tm", "/Rotate 90") if upwards else ("72 720 Td", "")
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Count {len(pages)} /Kids [{' '.join(f'{4 + 2 * n} 0 R' for n in range(len(pages)))}] >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, page in enumerate(pages):
        lines = "".join(f"({_escaped(line)}) Tj 0 -14 Td " for line in page.split("\n"))
        content = f"BT /F1 12 Tf {matrix} {lines}ET"
        objects.append(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources << /Font << /F1 3 0 R >> >>"
            f" /Contents {5 + 2 * number} 0 R {turned} >>"
        )
        filtered = ""
        if packed:
            content, filtered = zlib.compress(content.encode(), 9).decode("latin-1"), "/Filter /FlateDecode"
        objects.append(f"<< /Length {len(content)} {filtered} >>\nstream\n{content}\nendstream")
    objects.append(f"<< /Title ({_escaped(title)}) >>")
    out, offsets = io.BytesIO(b""), []
    out.write(b"%PDF-1.4\n")
    for number, each in enumerate(objects, 1):
        offsets.append(out.tell())
        out.write(f"{number} 0 obj\n{each}\nendobj\n".encode("latin-1"))
    begin = out.tell()
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    out.write(
        f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer\n<< /Size {len(objects) + 1} /Root 1 0 R"
        f" /Info {len(objects)} 0 R {trailer} >>\nstartxref\n{begin}\n%%EOF\n".encode("latin-1")
    )
    return out.getvalue()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")


LOCKED = (
    "/Encrypt << /Filter /Standard /V 1 /R 2 /Length 40 /P -4"
    f" /O <{'28' * 32}> /U <{'28' * 32}> >> /ID [<00112233445566778899aabbccddeeff> <00112233445566778899aabbccddeeff>]"
)
"""A trailer's entry of a document that the empty password does not open (ISO 32000-1, 7.6.3)."""


def epub(
    chapters: Mapping[str, str],
    *,
    title: str = "",
    more: Mapping[str, bytes] | None = None,
    spine: Sequence[str] | None = None,
) -> bytes:
    """An EPUB 3 of these chapters, which are bodies of XHTML by their names; `spine` names others in its order."""
    items = "".join(
        f'<item id="{name}" href="text/{name}.xhtml" media-type="application/xhtml+xml"/>'
        for name in chapters
    )
    order = "".join(f'<itemref idref="{name}"/>' for name in (chapters if spine is None else spine))
    members = {
        "mimetype": b"application/epub+zip",
        "META-INF/container.xml": (
            b'<?xml version="1.0"?><container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container">'
            b'<rootfiles><rootfile full-path="OEBPS/book.opf" media-type="application/oebps-package+xml"/></rootfiles>'
            b"</container>"
        ),
        "OEBPS/book.opf": (
            '<?xml version="1.0"?><package version="3.0" xmlns="http://www.idpf.org/2007/opf">'
            f'<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{escape(title)}</dc:title></metadata>'
            f"<manifest>{items}</manifest><spine>{order}</spine></package>"
        ).encode(),
    }
    for name, body in chapters.items():
        html = f'<html xmlns="http://www.w3.org/1999/xhtml"><head><title>{name}</title></head><body>{body}</body></html>'
        members[f"OEBPS/text/{name}.xhtml"] = html.encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as book:
        for name, data in {**members, **(more or {})}.items():
            book.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def tar(files: Mapping[str, bytes], *, links: Mapping[str, str] | None = None) -> bytes:
    """A tar archive of these files, and of symbolic links behind them."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return out.getvalue()


def paper(body: str, *, preamble: str = "") -> bytes:
    """A LaTeX source."""
    return (
        f"\\documentclass{{article}}\n{preamble}\n\\begin{{document}}\n{body}\n\\end{{document}}\n".encode()
    )
