"""From a mail to a plan: what the basket reads, finds and offers instead, and what the plan says of it."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

import pytest

from lineage.storage.folder import Folder
from lineage.store.lookup import Lookup
from pipeline.page.render import basket_button
from tests.support.outputs.lineage_query import query
from tests.support.processes.served_page import Visitor, served

SITE = "https://web.example.org"
MAIL = f"""Dear Sir or Madam,

please take down
- <{SITE}/page-1/>,
- {SITE}/page-22.
web.example.org/page-2

Kind regards
"""


@pytest.fixture(scope="module")
def opened(made: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    """A page whose basket alone changes."""
    with served(made, state=str(tmp_path_factory.mktemp("state"))) as address:
        yield Visitor(address)


@pytest.fixture
def visitor(opened: Visitor) -> Visitor:
    """The page with an empty basket."""
    opened.post("basket", act="take", kind="all", value="")
    return opened


def ids(made: str) -> dict[str, str]:
    """The id of each document, by URL."""
    return {
        str(url): str(doc_id) for doc_id, url in query(Folder(made), "SELECT doc_id, url FROM documents").rows
    }


def text_of(page: str, start: str, end: str = "</table>") -> str:
    """What a part of a page says, a line for each row of a table."""
    begin = page.index(">", page.index(start)) + 1
    part = page[begin : page.index(end, begin)]
    return html.unescape(re.sub(r"<[^>]*>", " ", part.replace("</tr>", "\n")))


def planned(visitor: Visitor, **fields: str) -> str:
    plan = visitor.post("basket/plan", **fields)
    while "At work" in plan.text:
        plan = visitor.session.get(plan.url, timeout=60)
    return plan.text


def test_a_mail_is_read_and_each_item_says_what_it_finds(visitor: Visitor, made: str) -> None:
    answer = visitor.post("basket", act="put", kind="lines", value=MAIL)
    page = answer.text
    assert "3 items" in page and "3 URLs found in the text, 3 lines without any" in page
    assert "Dear Sir or Madam," in text_of(page, 'id="read"', "</section>")
    assert "Dear" not in text_of(page, 'id="basket"')
    rows = text_of(page, 'id="basket"').strip().splitlines()
    lines = [" ".join(row.split()) for row in rows if "URL" in row or "found" in row]
    assert f"found: {ids(made)[SITE + '/page-1']} kept" in " ".join(lines)
    assert f"found: {ids(made)[SITE + '/page-2']} kept" in " ".join(lines)
    assert "not found" in " ".join(lines) and page.count("not found") == 1
    visitor.post("basket", act="put", kind="lines", value=f"{SITE}/page-3 or {SITE}/page-3/")
    assert f"written {SITE}/page-3 and {SITE}/page-3/" in text_of(visitor.get("basket").text, 'id="basket"')
    visitor.post("basket", act="take", kind="url", value=f"{SITE}/page-3")
    again = visitor.session.get(answer.url, timeout=60)
    assert "3 items" in again.text, "a reload puts nothing in"


def test_the_nearest_is_taken_instead_by_a_form_of_the_page(visitor: Visitor) -> None:
    visitor.post("basket", act="put", kind="lines", value=f"- {SITE}/page-22.")
    page = visitor.get("basket").text
    form = re.search(r'<form[^>]*method="post">(?:(?!</form>).)*Take this instead', page, re.DOTALL)
    assert form is not None
    fields = dict(re.findall(r'name="([^"]*)" value="([^"]*)"', form[0]))
    assert (fields["act"], fields["value"], fields["instead"]) == (
        "instead",
        f"{SITE}/page-22",
        f"{SITE}/page-2",
    )
    visitor.get(f"basket?{'&'.join(f'{name}={value}' for name, value in fields.items())}")
    assert "not found" in visitor.get("basket").text, "nothing changes by a GET"
    fields.pop("form_secret")
    after = visitor.post("basket", **fields).text
    assert "not found" not in after and "1 item<" in after
    assert f"written {SITE}/page-22." in text_of(after, 'id="basket"')
    assert (
        visitor.post("basket", act="instead", kind="doc", value="0" * 32, instead="none").status_code == 409
    )


def test_a_plan_maps_what_was_written_to_documents_and_outcomes(visitor: Visitor, made: str) -> None:
    visitor.post("basket", act="put", kind="lines", value=MAIL)
    page = planned(visitor)
    rows = [" ".join(row.split()) for row in text_of(page, 'id="named-rows"').strip().splitlines()]
    rows = [row for row in rows if row]
    assert rows[0] == "as written found as document outcome"
    assert rows[1:] == [
        f"{SITE}/page-1/ {SITE}/page-1 {ids(made)[SITE + '/page-1']} goes ( kept )",
        f"{SITE}/page-22. not found passed over: no document has the URL {SITE}/page-22; nearest: "
        + rows[2].partition("nearest: ")[2],
        f"web.example.org/page-2 {SITE}/page-2 {ids(made)[SITE + '/page-2']} goes ( kept )",
    ]
    assert re.search(r'href="[^"]*search[?]q=url[^"]*page-2">https://web.example.org/page-2</a>', page)
    assert "3 items, of which 1 not found" in page and "1 item is not found" in page


def test_a_plan_of_misses_alone_offers_no_purge(visitor: Visitor) -> None:
    visitor.post("basket", act="put", kind="url", value="https://nowhere.example.org/")
    page = planned(visitor)
    assert "Nothing to purge." in page and "no document has the URL https://nowhere.example.org/" in page
    assert "danger" not in page and 'id="by"' not in page


def test_a_kept_copy_stands_on_top_of_the_plan_and_can_be_spared(visitor: Visitor, made: str) -> None:
    rows = query(
        Folder(made), "SELECT url, duplicate_of, similarity FROM documents WHERE similarity IS NOT NULL"
    ).rows
    ((copy, kept_id, similarity),) = rows
    visitor.post("basket", act="put", kind="lines", value=f"please: {copy}")
    page = planned(visitor)
    said = " ".join(text_of(page, 'id="kept-copies"', "</section>").split())
    assert f"kept copy {kept_id}" in said
    assert (
        f"the same text at another address, similarity {similarity:.3f}: kept in place of what is named"
        in said
    )
    assert page.index('id="kept-copies"') < page.index('id="named"') < page.index('id="planned"')
    assert f"and with it the kept copy {kept_id}" in " ".join(text_of(page, 'id="named-rows"').split())
    assert "<td>kept copy</td>" in page and "kept_copy" not in page and "1 named, 1 kept copy" in page
    spared = planned(visitor, promote_duplicates="yes")
    assert (
        str(kept_id) not in text_of(spared, 'id="plan-rows"').split() and "Only what is named goes" in spared
    )
    assert "Purge 1 document<" in spared and "Purge 2 documents<" in page
    assert Lookup(Folder(made)).purges() == []


def test_several_urls_of_a_search_are_a_list_that_goes_into_the_basket(visitor: Visitor, made: str) -> None:
    answer = visitor.get("search", params={"q": " ".join(MAIL.split("\n"))})
    assert answer.ok and "2 of 3 names found" in answer.text
    said = text_of(answer.text, 'id="names"')
    assert ids(made)[f"{SITE}/page-1"] in said and ids(made)[f"{SITE}/page-2"] in said and "not found" in said
    form = re.search(
        r'name="kind" value="lines"><input type="hidden" name="value" value="([^"]*)"', answer.text
    )
    assert form is not None and "Put these into the basket" in answer.text
    put = visitor.post("basket", act="put", kind="lines", value=html.unescape(form[1]))
    assert "3 items" in put.text and put.text.count("found: <a") == 2
    lost = visitor.get("search", params={"q": f"{SITE}/none-1 {SITE}/none-2"})
    assert lost.status_code == 404 and "0 of 2 names found" in lost.text
    one = visitor.get("search", params={"q": f"(see <{SITE}/page-1>)."})
    assert one.url.endswith(ids(made)[f"{SITE}/page-1"]), "what encloses a URL is no part of it"


def test_a_put_leads_back_to_its_button_which_undoes_it(visitor: Visitor, made: str) -> None:
    place = f"document/{ids(made)[SITE + '/page-1']}"
    doc_id = place.rpartition("/")[2]
    headers = {"Origin": visitor.origin, "Referer": visitor.base + place}
    for act, wanted in (("put", "Undo"), ("take", "Put this document into the basket")):
        form = {"form_secret": visitor.secret, "act": act, "kind": "doc", "value": doc_id}
        answer = visitor.session.post(
            f"{visitor.base}basket", data=form, headers=headers, timeout=60, allow_redirects=False
        )
        button = basket_button("doc", doc_id)
        assert answer.headers["Location"].endswith(f"{place}#{button}")
        page = visitor.get(place).text
        assert re.search(rf'<button class="quiet" id="{button}">{wanted}</button>', page)
        assert ("In the <a" in page) == (act == "put")


@pytest.mark.parametrize(
    "place", ["search?q=web.example.org", "search?q=seen:3", "sql?q=SELECT+doc_id+FROM+documents"]
)
def test_a_list_in_the_basket_can_be_taken_out_where_it_was_put_in(visitor: Visitor, place: str) -> None:
    page = visitor.get(place).text
    key = re.search(r'name="kind" value="list"><input type="hidden" name="value" value="([0-9a-f]*)"', page)
    assert key is not None and "Take these out" not in page
    visitor.post("basket", act="put", kind="list", value=key[1])
    assert "Take these out" in visitor.get(place).text
    assert "Empty." in visitor.post("basket", act="take", kind="list", value=key[1]).text


def test_planning_does_not_look_like_purging(visitor: Visitor) -> None:
    visitor.post("basket", act="put", kind="lines", value=f"{SITE}/page-1")
    page = visitor.get("basket").text
    assert '<button id="plan">Plan the purge</button>' in page and "danger" not in page
    assert '<button class="danger">Purge 1 document</button>' in planned(visitor)
