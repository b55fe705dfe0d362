"""What the pages show of documents, and what is found, asked for and kept: over HTTP, without a browser."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from urllib.parse import urlencode

import pytest

from lineage.ids import content_hash
from lineage.index.output_index import read_index
from lineage.storage.folder import Folder
from lineage.store.lookup import Lookup
from pipeline.inspect.trace.tracing import make_tracer
from pipeline.page.views.batch_rows import documents_of, read_batch
from pipeline.page.views.words import FIRST_TEXT, TextPlace, find_words, words_of
from tests.pipeline.page.conftest import EMAIL, prose
from tests.support.outputs.lineage_query import query
from tests.support.processes.served_page import Visitor, served

PAGE_1 = "https://web.example.org/page-1"


@pytest.fixture(scope="module")
def visitor(shared_page: str) -> Visitor:
    return Visitor(shared_page)


def document(out: str, url: str) -> dict[str, object]:
    """What the store has of the page at a URL."""
    rows = query(Folder(out), "SELECT * FROM documents").objects()
    return next(row for row in rows if row["url"] == url)


def found(visitor: Visitor, wanted: str) -> tuple[int, str]:
    """Where a search ends: the document that it led to, or the text of the listing."""
    answer = visitor.get(f"search?{urlencode({'q': wanted})}")
    led = re.search(r"document/([0-9a-f]{32})", answer.url)
    return answer.status_code, led[1] if led else answer.text


def test_a_document_is_found_by_each_of_its_names(visitor: Visitor, made: str) -> None:
    row = document(made, PAGE_1)
    doc_id = str(row["doc_id"])
    names = [
        doc_id,
        doc_id.upper(),
        str(row["raw_hash"]),
        str(row["clean_hash"]),
        PAGE_1,
        PAGE_1 + "/",
        PAGE_1.removeprefix("https://"),
        "HTTPS://WEB.example.org:443/page-1#top",
        f"{row['warc_file']}@{row['warc_offset']}",
        f"{row['warc_file']}:{row['warc_offset']}",
        f"{row['source']}/{row['shard']}:{row['start']}",
        f"url:{PAGE_1}",
    ]
    assert {name: found(visitor, name) for name in names} == dict.fromkeys(names, (200, doc_id))
    people = document(made, "https://web.example.org/people/")
    assert found(visitor, "https://web.example.org/people") == (200, people["doc_id"]), "with a slash less"


def test_a_step_and_row_lead_to_what_they_read(visitor: Visitor, made: str) -> None:
    row = document(made, PAGE_1)
    page = visitor.get(f"document/{row['doc_id']}").text
    place = re.search(r"search\?q=(seen%3A\d+%3A\d+)", page)
    assert place is not None, "its readings lead to their steps"
    _, text = found(visitor, place[1].replace("%3A", ":"))
    assert str(row["doc_id"]) in text
    status, text = found(visitor, "seen:99999")
    assert status == 404 and "step 99999" in text


def test_a_row_says_what_stood_in_it(visitor: Visitor, made: str) -> None:
    row = document(made, PAGE_1)
    page = visitor.get(f"document/{row['doc_id']}").text
    # (step, row, positions) of a reading in the middle of the document, as its own page tells it.
    readings = re.findall(r"search\?q=seen%3A(\d+)%3A(\d+)\".*?<td class=\"n\">(\d+–\d+)</td>", page)
    step, number, positions = readings[1]
    text = visitor.get(f"search?q=seen:{step}:{number}").text
    cells = re.search(rf"<tr><td class=\"n\">{positions}</td>(.*?{row['doc_id']}.*?)</tr>", text)
    assert cells is not None, "the same positions"
    first, last = map(int, positions.split("–"))
    of_document = re.search(r"(\d+)–(\d+) of (\d+)", cells[1])
    assert of_document is not None and f'<td class="n">{last - first + 1}</td>' in cells[1]
    begin, end, whole = map(int, of_document.groups())
    assert end - begin == last - first and whole == row["num_tokens"]
    assert '<td class="n">1</td><td>yes</td>' in cells[1], "the attempt, and that it was applied"
    tokens = visitor.get(f"document/{row['doc_id']}/tokens").text
    pieces = re.findall(r"<code>([^<]*)</code></span>", tokens)[begin : end + 1]
    part = re.search(
        rf"{row['doc_id']}.*?<ins class=\"part\">([^<]*)</ins>", text.partition('id="texts"')[2], re.DOTALL
    )
    assert part is not None and part[1].replace("\n", "\\n") == "".join(pieces), "the text of these tokens"
    step_page = visitor.get(f"search?q=seen:{step}").text
    assert "The first" not in step_page
    assert 'class="part"' not in step_page and f"seen%3A{step}%3A{number}" in step_page


def test_a_row_has_its_losses_where_they_are_recorded(made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out, tracer = Folder(made), make_tracer(made)
    monkeypatch.setattr(
        "pipeline.page.views.batch_rows.row_losses", lambda _out, rows: dict.fromkeys(rows, 2.5)
    )
    monkeypatch.setattr("pipeline.page.views.batch_rows.step_losses", lambda *_: {(3, 1): 4.0})
    batch = read_batch(out, read_index(out), tracer, ("seen", 3, 1), None)
    assert batch.num == len(batch.parts) > 0
    assert {(part.row_loss, part.step_loss, part.text) for part in batch.parts} == {(2.5, 4.0, None)}
    places = [(part.exposure.first_token, part.exposure.num_tokens) for part in batch.parts]
    assert places == sorted(places) and {part.exposure.row for part in batch.parts} == {1}
    monkeypatch.setattr("pipeline.page.views.batch_rows.MOST_PARTS", 1)
    whole = read_batch(out, read_index(out), tracer, ("seen", 3, None), None)
    assert (
        whole.num > len(whole.parts) == 1
        and not whole.is_whole
        and documents_of(whole) == [whole.parts[0].row.doc_id]
    )


def test_of_a_step_of_many_documents_the_first_rows_are_looked_up(
    made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, tracer = Folder(made), make_tracer(made)
    whole = read_batch(out, read_index(out), tracer, ("seen", 3, None), None)
    assert whole.is_whole and whole.num_rows == 2 and {part.exposure.row for part in whole.parts} == {0, 1}
    monkeypatch.setattr("pipeline.page.views.batch_rows._MOST_OF_STEP", 1)
    first = read_batch(out, read_index(out), tracer, ("seen", 3, None), None)
    assert not first.is_whole and first.num_rows == 1
    assert first.parts == tuple(part for part in whole.parts if part.exposure.row == 0)


def test_the_nearest_rule_stands_on_top_and_the_rest_behind_it(visitor: Visitor, made: str) -> None:
    doc_id = document(made, PAGE_1)["doc_id"]
    findings = query(
        Folder(made),
        "SELECT rule, abs(value - threshold) / abs(threshold) AS margin FROM findings"
        f" WHERE doc_id = '{doc_id}' AND value IS NOT NULL AND threshold <> 0 ORDER BY margin",
    ).rows
    page = visitor.get(f"document/{doc_id}").text
    rules = page.partition('id="decisions"')[2].partition("</section>")[0]
    assert f"Nearest: <b><code>{findings[0][0]}</code></b>" in rules
    listed = re.findall(r'class="name"><code>([^<]*)</code>', rules)
    assert listed[0] == findings[0][0] and set(listed[:3]) <= {rule for rule, _ in findings[:4]}
    assert len(listed) == len(set(listed)), "no rule stands there twice"
    in_order = visitor.get(f"document/{doc_id}?order=catalogue").text
    listed_in_order = re.findall(
        r'class="name"><code>([^<]*)</code>', in_order.partition('id="decisions"')[2]
    )
    assert set(listed) <= set(listed_in_order) and listed_in_order != listed
    assert "Nearest: " in in_order and "<h3><code>quality</code>" in in_order
    assert 'hx-target="#decisions"' in page, "what is measured anew takes the list's place"
    explained = visitor.get(f"document/{doc_id}/explain").text
    assert f"Nearest: <b><code>{findings[0][0]}</code></b>" in explained


def test_hosts_and_domains_list_their_documents_and_lead_from_one_to_the_next(
    visitor: Visitor, made: str
) -> None:
    rows = query(
        Folder(made), "SELECT doc_id FROM documents WHERE host = 'web.example.org' ORDER BY url"
    ).rows
    page = visitor.get("search?q=web.example.org").text
    listed = re.findall(r"document/([0-9a-f]{32})\?list=([0-9a-f]+)", page)
    assert [doc_id for doc_id, _ in listed] == [row[0] for row in rows]
    second = visitor.get(f"document/{listed[1][0]}?list={listed[1][1]}").text
    assert (
        f'rel="prev" accesskey="p" href="{"/" + visitor.base.split("/", 3)[3]}document/{listed[0][0]}'
        in second
    )
    assert f"document/{listed[2][0]}?list={listed[2][1]}" in second and f"2 of {len(rows)} in" in second
    everything = visitor.get("search?q=domain:example.org").text
    assert f"{len(query(Folder(made), 'SELECT doc_id FROM documents').rows)} documents" in everything


def test_a_name_that_nothing_has_is_told_with_the_nearest(visitor: Visitor) -> None:
    status, text = found(visitor, "https://web.example.org/page-11")
    assert status == 404 and "https://web.example.org/page-1<" in text
    for wanted in ("0" * 32, "web.warc.gz@1", "nothing.example.com"):
        status, text = found(visitor, wanted)
        assert (status, "no document" in text.lower()) == (404, True) or "None." in text, wanted


def test_words_of_the_texts_are_found_with_their_passages(visitor: Visitor, made: str) -> None:
    status, text = found(visitor, '"take part" WRITE')
    assert status == 200 and str(document(made, "https://web.example.org/people/")["doc_id"]) in text
    assert "<mark>take part</mark>" in text and EMAIL not in text and "100% of all" in text
    assert "None." in found(visitor, "words: unheard-of-word")[1]
    assert found(visitor, "words: " + "a b c d e f g h i")[0] == 404


def test_a_word_that_names_hosts_or_domains_offers_them(visitor: Visitor) -> None:
    def offered(wanted: str) -> list[str]:
        page = visitor.get(f"search?q={wanted}").text.partition('id="named"')[2].partition("</p>")[0]
        return re.findall(r'href="[^"]*search\?q=([^"]*)"', page)

    assert offered("example") == ["domain%3Aexample.org"]
    assert offered("EVIL") == ["host%3Aevil.example.org"]
    assert offered("words:copy.example.org") == ["host%3Acopy.example.org"]
    assert offered("evi") == offered("unheard-of-word") == []
    assert "evil.example.org" in visitor.get(f"search?q={offered('evil')[0]}").text


def test_a_search_for_words_is_bounded_and_goes_on_where_it_ended(made: str) -> None:
    out = Folder(made)
    index = read_index(out)
    words = words_of("the")
    first = find_words(out, index, words, seconds=-1.0)
    ids = [find.doc_id for find in first.finds]
    place = first.next
    while place is not None:
        more = find_words(out, index, words, place, seconds=-1.0)
        assert more.share >= first.share
        ids += [find.doc_id for find in more.finds]
        place = more.next
    assert ids == [find.doc_id for find in find_words(out, index, words).finds]


def test_a_search_for_words_ends_at_so_many_finds_inside_a_row_group_too(
    made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Folder(made)
    index, words = read_index(out), words_of("the")
    every = [find.doc_id for find in find_words(out, index, words).finds]
    num_rows = sum(part.num_rows for part in index.documents)
    monkeypatch.setattr("pipeline.page.views.words.MOST_FINDS", 3)
    ids: list[bytes] = []
    looked, place = 0, FIRST_TEXT
    while place is not None:
        more = find_words(out, index, words, place)
        looked += more.num_looked
        assert len(more.finds) <= 3 and more.share == pytest.approx(looked / num_rows)
        ids += [find.doc_id for find in more.finds]
        place = more.next
    assert ids == every and len(every) > 3
    assert find_words(out, index, words, TextPlace(0, 10**9, 10**9)).finds == (), "a place that is none"


def test_a_document_shows_its_text_before_and_behind_the_steps_with_personal_data_masked(
    visitor: Visitor, made: str, tmp_path: Path
) -> None:
    row = document(made, "https://web.example.org/people/")
    place = f"document/{row['doc_id']}"
    page = visitor.get(place).text
    assert EMAIL not in page and page.count("&lt;EMAIL&gt;</mark>") == 2, (
        "in the parsed text and in the clean one"
    )
    assert "pii: email × 1" in page and prose(50)[:40] in html.unescape(page)
    assert visitor.post(place, by="").status_code == 409, "who looks gives a name"
    unmasked = visitor.post(place, by="a reader")
    assert EMAIL in unmasked.text and "Personal data is shown" in unmasked.text
    assert EMAIL not in visitor.get(place).text


def test_who_looked_at_personal_data_is_noted(made: str, tmp_path: Path) -> None:
    doc_id = str(document(made, "https://web.example.org/people/")["doc_id"])
    with served(made, state=str(tmp_path / "noted")) as address:
        Visitor(address).post(f"document/{doc_id}", by="a reader")
    (file,) = (tmp_path / "noted").rglob("unmasked.jsonl")
    noted = json.loads(file.read_text())
    assert (noted["by"], noted["doc_id"]) == ("a reader", doc_id)


def test_a_rejected_document_shows_the_text_that_the_extractor_gave_and_the_rule(
    visitor: Visitor, made: str
) -> None:
    page = visitor.get(f"document/{document(made, 'https://web.example.org/short')['doc_id']}").text
    assert "Too few words to be kept." in page and "gopher_quality.too_few_words" in page
    assert "a rule turned it down" in page


def test_a_duplicate_is_shown_beside_what_was_kept(visitor: Visitor, made: str) -> None:
    copy, kept = (
        document(made, url) for url in ("https://copy.example.org/of-3", "https://web.example.org/page-3")
    )
    if copy["status"] == "kept":
        copy, kept = kept, copy
    page = visitor.get(f"document/{copy['doc_id']}").text
    assert f"Jaccard similarity {copy['similarity']:.3f}" in page and "Cluster of 2" in page
    diff = visitor.get(f"document/{copy['doc_id']}/diff?with={kept['doc_id']}").text
    marked = re.findall(r"<(?:del|ins)>([^<]*)</(?:del|ins)>", diff)
    assert "One more word." in "".join(marked)


def test_what_is_unknown_is_a_page_that_says_so(visitor: Visitor) -> None:
    answer = visitor.get("document/" + "0" * 32)
    assert answer.status_code == 404 and "no document" in answer.text
    assert visitor.get("document/zzz").status_code == 404


def test_an_answer_comes_as_a_table_a_plot_and_a_csv_and_is_saved(visitor: Visitor) -> None:
    asked = "SELECT status, count(*) AS num, '=1+1' AS formula FROM documents GROUP BY 1 ORDER BY 2 DESC"
    page = visitor.get(f"sql?{urlencode({'q': asked})}").text
    assert "num by status" in page and page.count('class="bar out"') == 3
    lines = visitor.get(f"sql.csv?{urlencode({'q': asked})}").text.splitlines()
    assert lines[0] == "status,num,formula" and lines[1].endswith(",'=1+1"), (
        "a spreadsheet carries nothing out"
    )
    saved = visitor.post("sql", act="save", name="by status", q=asked).text
    assert "1 saved query" in saved
    assert "saved quer" not in visitor.post("sql", act="forget", name="by status", q="").text


def test_the_texts_of_a_purged_document_are_gone_from_its_page_too(page: tuple[str, str]) -> None:
    address, out = page
    visitor, doc_id = Visitor(address), str(document(out, PAGE_1)["doc_id"])
    visitor.post("basket", act="put", kind="lines", value=f"Please:\n- {PAGE_1}/,\n- {PAGE_1}1\n")
    plan = visitor.post("basket/plan")
    while "At work" in plan.text:
        plan = visitor.session.get(plan.url, timeout=60)
    place = plan.url.removeprefix(visitor.base)
    assert visitor.get(place).text.count("Carry it out") == 1
    assert visitor.post(place, by="tester", reason=" ").status_code == 409
    assert Lookup(Folder(out)).purges() == [], "without a reason nothing is carried out"
    before = content_hash(Folder(out).read("index.json"))
    visitor.get(f"{place}?by=tester&reason=none")
    assert content_hash(Folder(out).read("index.json")) == before, "nothing is carried out by a GET"
    first, second = (visitor.post(place, by="tester", reason="takedown") for _ in range(2))
    work = first
    while "At work" in work.text:
        work = visitor.session.get(work.url, timeout=60)
    assert [purge.reason for purge in Lookup(Folder(out)).purges()] == ["takedown"], (
        "twice sent, once carried out"
    )
    assert second.ok and "All checks passed." in work.text
    asked = work.text[work.text.index("What was written") : work.text.index('id="proof"')]
    assert f"{PAGE_1}/,</td>" in asked and "purged (" in asked and doc_id in asked
    assert f"{PAGE_1}1</td>" in asked and "not found" in asked and "Please" not in asked
    assert "tokens (1 named)" in work.text and "<td>named</td>" in work.text and "1 document, " in work.text
    visitor.post("basket", act="take", kind="all", value="")
    assert "purged already" in visitor.post("basket", act="put", kind="lines", value=doc_id).text
    assert ">purged</td>" in visitor.get(f"search?{urlencode({'q': f'{PAGE_1} {PAGE_1}1'})}").text
    page_after = visitor.get(f"document/{doc_id}").text
    assert 'id="purged">purged (named)' in page_after and 'id="status"' not in page_after
    assert "(before it was kept)" in page_after and '<b class="kept"' not in page_after
    assert "It was purged: its text is gone." in page_after and prose(1)[:40] not in html.unescape(page_after)
    listed = visitor.get("search?q=web.example.org").text
    assert re.search(
        rf"{doc_id}</code></a></td><td[^>]*>[^<]*</td><td class=\"rejected\">purged</td>", listed
    )
    reading = re.search(r"search\?q=(seen%3A\d+%3A\d+)", page_after)
    assert reading is not None, "that it was read before stays"
    row = visitor.get(f"search?q={reading[1]}").text
    assert f"{doc_id}</code>" in row and '<td class="rejected">purged</td>' in row
    assert prose(1)[:40] not in html.unescape(row) and "its text is gone" in row
    assert visitor.get(f"document/{doc_id}/record").status_code == 404
    again = visitor.post(place, by="tester", reason="takedown")
    assert again.url == work.url or "All checks passed." in again.text


def test_a_basket_outlives_the_page_and_tells_what_it_does_not_find(out: str) -> None:
    with served(out) as address:
        visitor = Visitor(address)
        visitor.post("basket", act="put", kind="lines", value=f"{PAGE_1}/\nhttps://nowhere.example.org/\n\n")
        visitor.post("basket", act="put", kind="where", value="url LIKE '%/page-2'")
        visitor.post("basket", act="put", kind="host", value="copy.example.org")
        assert visitor.post("basket", act="put", kind="doc", value="no id").status_code == 409
    with served(out) as address:
        visitor = Visitor(address)
        assert "4 items" in visitor.get("basket").text
        plan = visitor.post("basket/plan")
        while "At work" in plan.text:
            plan = visitor.session.get(plan.url, timeout=60)
        assert "no document has the URL https://nowhere.example.org/" in plan.text
        assert "3 purges, one after the other" in plan.text or "2 purges" in plan.text
        visitor.post("basket", act="take", kind="where", value="url LIKE '%/page-2'")
        assert "3 items" in visitor.get("basket").text
        assert "Empty." in visitor.post("basket", act="take", kind="all", value="").text


def test_what_the_corpus_is_made_of_leads_to_its_documents(visitor: Visitor, made: str) -> None:
    shape = visitor.get("shape").text
    base = "/" + visitor.base.split("/", 3)[3]
    places = dict(re.findall(rf'href="{base}([^"]*)">([^<]*)</a>', shape))
    by_name = {name: html.unescape(place) for place, name in places.items()}
    assert by_name["web.example.org"] == "search?q=host%3Aweb.example.org", "by the index"
    assert by_name["example.org"] == "search?q=domain%3Aexample.org"
    power = int(str(document(made, PAGE_1)["num_chars"])).bit_length() - 1
    for name in ("web.example.org", "example.org", "en", f"{2**power:,} to {2 ** (power + 1) - 1:,}"):
        page = visitor.get(by_name[name])
        assert page.status_code == 200 and str(document(made, PAGE_1)["doc_id"]) in page.text, name
