"""On every page of a real crawl, in two extractions: our verdict, reason and text beside datatrove's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stages.document import Document, Rejection
from stages.quality.options import QualityTable
from stages.quality.step import quality_step
from tests.support.inputs.quality_texts import document, peer_verdict

pytestmark = pytest.mark.slow


def pages(folder: Path) -> Iterator[str]:
    """The HTML of every response in the crawl files."""
    from fastwarc.warc import ArchiveIterator, WarcRecordType
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding

    for path in sorted(folder.glob("*.warc.gz")):
        with path.open("rb") as file:
            for record in ArchiveIterator(file, record_types=WarcRecordType.response):
                payload = record.reader.read()
                yield bytes_to_str(payload, detect_encoding(payload))


def by_resiliparse(html: str) -> str:
    from resiliparse.extract.html2text import extract_plain_text

    text: str = extract_plain_text(html, main_content=True, alt_texts=False)
    return text


def by_trafilatura(html: str) -> str:
    import trafilatura

    return trafilatura.extract(html, favor_precision=True, include_comments=False) or ""


@pytest.fixture(scope="module", params=[by_resiliparse, by_trafilatura], ids=["resiliparse", "trafilatura"])
def texts(request: pytest.FixtureRequest, real_data: Path) -> list[str]:
    return [request.param(html) for html in pages(real_data / "crawl")]


@pytest.mark.parametrize(
    ("rules", "keys"),
    [
        ("gopher_quality", {}),
        ("gopher_repetition", {}),
        ("c4", {}),
        ("c4", {"c4_terminal_punctuation": False}),
        ("fineweb", {}),
    ],
    ids=["gopher_quality", "gopher_repetition", "c4", "c4 as FineWeb has it", "fineweb"],
)
def test_every_page_of_the_crawl_gets_datatroves_verdict_reason_and_text(
    texts: list[str], rules: str, keys: dict[str, Any]
) -> None:
    pytest.importorskip("datatrove")
    step = quality_step(QualityTable(rules=(rules,), **keys))
    disagreements = []
    for text in texts:
        theirs, left = peer_verdict(rules, text, **keys)
        outcome = step(document(text))
        ours = outcome.finding.rule if isinstance(outcome, Rejection) else None
        if ours != theirs or (isinstance(outcome, Document) and outcome.text != left):
            disagreements.append((ours, theirs, text[:80]))
    assert len(texts) > 100
    assert disagreements == []
