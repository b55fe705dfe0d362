"""WARC files of responses for /robots.txt and the like, as Common Crawl's robotstxt files are."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteResponse:
    """A response for one URL."""

    url: str
    text: str = ""
    status: str = "200 OK"
    headers: tuple[tuple[str, str], ...] = ()
    date: str = "2026-01-05T00:00:00Z"


def write_site_file(path: Path, responses: Iterable[SiteResponse]) -> str:
    """A WARC file with a warcinfo, and a request beside each response, as Nutch writes them; its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = WARCWriter(file, gzip=path.name.endswith(".gz"))
        writer.write_record(writer.create_warcinfo_record(path.name, {"isPartOf": "CC-MAIN-2026-05"}))
        for each in responses:
            dated = {"WARC-Date": each.date}
            request = StatusAndHeaders("GET /robots.txt HTTP/1.1", [], is_http_request=True)
            writer.write_record(
                writer.create_warc_record(
                    each.url, "request", http_headers=request, warc_headers_dict=dict(dated)
                )
            )
            head = StatusAndHeaders(
                each.status, [("Content-Type", "text/plain"), *each.headers], protocol="HTTP/1.1"
            )
            payload = io.BytesIO(each.text.encode())
            writer.write_record(
                writer.create_warc_record(
                    each.url, "response", payload=payload, http_headers=head, warc_headers_dict=dict(dated)
                )
            )
    return str(path)
