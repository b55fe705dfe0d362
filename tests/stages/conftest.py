"""What the tests of the steps share: documents made of a few words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lineage.ids import content_hash
from stages.document import Document, Place

MakeDocument = Callable[..., Document]


@pytest.fixture(scope="session")
def make_document() -> MakeDocument:
    """Documents from what a test cares about: `html=` for a page, `text=` for a text, or any field."""

    def make(*, html: str | bytes | None = None, text: str = "", **fields: Any) -> Document:
        payload = html.encode("utf-8") if isinstance(html, str) else html or b""
        defaults: dict[str, Any] = {
            "doc_id": content_hash(payload + text.encode("utf-8", "surrogatepass")),
            "source": "web",
            "place": Place(file="a.warc.gz", offset=0, length=1),
            "raw_hash": content_hash(payload),
            "num_bytes": len(payload),
            "payload": payload,
            "is_html": html is not None,
            "text": text,
            "url": "https://example.com/page",
        }
        return Document(**(defaults | fields))

    return make
