"""Purges by URL, host and domain reach every document of a page, in whatever its URL is wrapped,
and leave nothing of it behind."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lineage.pages import page_of
from lineage.purge.plan import PurgeError, PurgeMatch, plan_purge
from lineage.purge.purge_filter import read_purged_sets
from lineage.storage.folder import Folder
from lineage.store.lookup import Lookup
from lineage.trace.tracer import Functions, Tracer
from stages.document import Document, Place
from stages.steps.purged import origin_in
from tests.support.outputs.byte_search import of_folder
from tests.support.outputs.lineage_query import query
from tests.support.outputs.purging import assert_gone, assert_whole, purge
from tests.support.outputs.small_out.hooks import plan_hooks
from tests.support.outputs.small_out.output import SmallOut, make_small_out
from tests.support.outputs.small_out.records import Record, make_records

URLS = (
    "urn:text:https://www.gone.example.org/1",
    "gone.example.org/2",
    "https://user@Gone.example.org.:443/3",
    "view-source:urn:view:http://a.b.gone.example.org/4",
    "https%3A%2F%2Fgone.example.org%2F5",
    "https://notgone.example.org/6",
    "https://example.org/7",
    "urn:uuid:8",
)
"""Of the first kept documents of a small OUT."""


def respelt() -> list[Record]:
    """The documents that have URLS."""
    kept = [r for r in make_records()[0] if r.status == "kept" and r.cluster_id is None]
    return kept[: len(URLS)]


def with_urls(table: str, rows: pa.Table) -> pa.Table:
    """`documents` in which these have the URLs."""
    if table != "documents":
        return rows
    urls = {record.doc_id: url for record, url in zip(respelt(), URLS, strict=True)}
    changed = rows.to_pylist()
    for row in changed:
        row["url"] = urls.get(row["doc_id"], row["url"])
        page = page_of(row["url"])
        row |= {"host": page and page.host, "domain": page and page.domain}
    return pa.Table.from_pylist(changed, schema=rows.schema)


@pytest.fixture
def small(tmp_path: Path) -> SmallOut:
    return make_small_out(str(tmp_path / "out"), tamper=with_urls)


def taken(small: SmallOut, kind: str, *values: str) -> set[str]:
    """The URLs among URLS that a purge would take as targets."""
    plan = plan_purge(small.folder, PurgeMatch(kind=kind, values=values), plan_hooks())  # type: ignore[arg-type]
    targets = {row.doc_id for row in plan.rows if row.role == "target"}
    assert targets <= {record.doc_id for record in respelt()}
    return {url for record, url in zip(respelt(), URLS, strict=True) if record.doc_id in targets}


def test_an_output_is_whole_and_shows_the_column(small: SmallOut) -> None:
    assert_whole(small.folder)
    rows = query(
        small.folder, "SELECT DISTINCT domain FROM documents WHERE url = 'https://notgone.example.org/6'"
    ).rows
    assert rows == [("example.org",)]


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        ("host", "gone.example.org", (1, 2, 4)),
        ("host", "urn:text:https://www.gone.example.org/x", (0,)),
        ("host", "A.B.gone.example.org.", (3,)),
        ("domain", "gone.example.org", (0, 1, 2, 3, 4)),
        ("domain", "b.gone.example.org", (3,)),
        ("domain", "https://example.org/", (0, 1, 2, 3, 4, 5, 6)),
        ("url", "https://www.gone.example.org/1", (0,)),
        ("url", "onreadydom:http://gone.example.org/2", (1,)),
        ("url", "gone.example.org/3", (2,)),
        ("url", "http://gone.example.org/5", (4,)),
        ("url", "urn:uuid:8", (7,)),
    ],
)
def test_every_document_of_the_page_is_a_target(
    small: SmallOut, kind: str, value: str, wanted: tuple[int, ...]
) -> None:
    assert taken(small, kind, value) == {URLS[number] for number in wanted}


def test_a_plan_says_how_many_documents_no_host_can_name(small: SmallOut) -> None:
    without = sum(page_of(url) is None for url in _urls(small))
    assert without == 1 + sum(record.url is None for record in small.records)
    for kind, value in (("host", "gone.example.org"), ("domain", "example.org")):
        plan = plan_purge(small.folder, PurgeMatch(kind=kind, values=(value,)), plan_hooks())  # type: ignore[arg-type]
        assert plan.num_without_page == without
    by_url = PurgeMatch(kind="url", values=("gone.example.org/2",))
    assert plan_purge(small.folder, by_url, plan_hooks()).num_without_page is None
    purge(small.folder, PurgeMatch(kind="url", values=("urn:uuid:8",)))
    left = query(small.folder, "SELECT count(*) FROM documents WHERE host IS NULL AND purged IS NULL").rows[
        0
    ][0]
    again = plan_purge(small.folder, PurgeMatch(kind="domain", values=("example.org",)), plan_hooks())
    assert again.num_without_page == left < without, "what is purged is not left to be named"


def _urls(small: SmallOut) -> list[str | None]:
    return [row[0] for row in query(small.folder, "SELECT url FROM documents").rows]  # type: ignore[misc]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("org", "is a public suffix"),
        ("co.uk", "is a public suffix"),
        ("10.0.0.1", "expected a registered domain"),
        ("localhost", "expected a registered domain"),
        ("nowhere.example.org", "has no domain"),
    ],
)
def test_what_is_no_domain_of_the_output_is_refused(small: SmallOut, value: str, why: str) -> None:
    with pytest.raises(PurgeError, match=why):
        plan_purge(small.folder, PurgeMatch(kind="domain", values=(value,)), plan_hooks())


def test_a_domain_is_purged_whole_and_stays_out(small: SmallOut) -> None:
    purge(small.folder, PurgeMatch(kind="domain", values=("Gone.Example.ORG",)))
    assert_whole(small.folder)
    assert_gone(small, of_folder(small.folder), *respelt()[:5])
    sets = read_purged_sets([small.folder.url])
    assert sets.domains == {"gone.example.org"} and not sets.hosts
    for url in (
        "new.gone.example.org/a",
        "urn:text:http://gone.example.org",
        "https://a.b.gone.example.org:8/",
    ):
        assert origin_in(sets, a_document(url))
    for url in ("https://notgone.example.org/a", "https://example.org/", "urn:uuid:9", None):
        assert not origin_in(sets, a_document(url))


def a_document(url: str | None) -> Document:
    place = Place(file="f", offset=0, length=1)
    return Document(doc_id=b"n" * 16, source="web", place=place, raw_hash=b"r" * 16, url=url)


def test_a_url_is_traced_however_it_is_wrapped(small: SmallOut) -> None:
    tracer = Tracer(small.folder, Functions())
    for record, url in zip(respelt(), URLS, strict=True):
        for spelt in (url, f"urn:text:{url}" if page_of(url) else url):
            assert [history.doc_id for history in tracer.by_url(spelt)] == [record.doc_id]


def test_a_domain_that_the_list_has_got_since_is_found_under_the_one_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = make_small_out(str(tmp_path / "out"), tamper=with_urls)
    monkeypatch.setattr("lineage.purge.plan.registered_domain", lambda host: "gone.example.org")
    found = Lookup(small.folder).ids_of_domain("gone.example.org")
    assert set(found) == {record.doc_id for record in respelt()[:5]}


def test_ids_that_begin_alike_are_the_nearest(small: SmallOut) -> None:
    lookup, wanted = Lookup(small.folder), respelt()[0].doc_id
    assert lookup.ids_beside(wanted[:15] + bytes([wanted[15] ^ 1]), 3) == [wanted]
    assert lookup.ids_beside(wanted[:5] + bytes(11), 3) == [wanted]
    assert lookup.ids_beside(bytes(b ^ 0xFF for b in wanted), 3) == []


FRAGMENTS = ("forum.example.net/t#1", "https://forum.example.net/t#2", "https://forum.example.net/t")


@pytest.mark.parametrize("kept_apart", [True, False])
def test_a_fragment_names_its_document_where_the_source_keeps_fragments(
    tmp_path: Path, kept_apart: bool
) -> None:
    records = respelt()[: len(FRAGMENTS)]
    urls = {record.doc_id: url for record, url in zip(records, FRAGMENTS, strict=True)}

    def tamper(table: str, rows: pa.Table) -> pa.Table:
        if table != "documents":
            return rows
        changed = [row | {"url": urls.get(row["doc_id"], row["url"])} for row in rows.to_pylist()]
        return pa.Table.from_pylist(changed, schema=rows.schema)

    out = make_small_out(str(tmp_path / "out"), tamper=tamper).folder
    names = sorted({record.source for record in records})
    sources = "".join(
        f'[[source]]\nname = "{name}"\nfragments = {str(kept_apart).lower()}\n' for name in names
    )
    out.publish("recipe.toml", sources.encode())
    ids = [record.doc_id for record in records]
    of_fragment = {row.doc_id for row in Lookup(out).of_url("https://forum.example.net/t#2")}
    assert of_fragment == ({ids[1]} if kept_apart else {*ids})
    assert {row.doc_id for row in Lookup(out).of_url("forum.example.net/t")} == {*ids}
    purge(out, PurgeMatch(kind="url", values=("forum.example.net/t#2",)))
    sets = read_purged_sets([out.url])
    assert [origin_in(sets, a_document(url)) for url in FRAGMENTS] == [not kept_apart, True, not kept_apart]


def test_an_output_whose_recipe_is_damaged_says_so(tmp_path: Path) -> None:
    out = Folder(str(tmp_path))
    from lineage.index.checksums import DamagedFileError
    from lineage.index.source_keys import sources_with_fragments

    assert sources_with_fragments(out) == frozenset()
    for damaged in (b"[[source", b"source = 3", b"\xff"):
        out.publish("recipe.toml", damaged)
        with pytest.raises(DamagedFileError, match="sluice verify"):
            sources_with_fragments(out)
