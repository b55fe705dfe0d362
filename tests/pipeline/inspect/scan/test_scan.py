"""Twenty-five benchmark items planted in five ways: a scan finds all of them and nothing else."""

from __future__ import annotations

import io
import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from lineage.index.output_index import Index, read_index
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from pipeline.cli.main import main
from pipeline.demo.pages import Article, drop_words, render_page, write_article
from pipeline.demo.questions import question
from pipeline.demo.warcs import DemoPage, write_source
from pipeline.inspect.scan.evidence import ScanEvidence, write_evidence
from pipeline.inspect.scan.scan import ScanRequest, scan
from pipeline.phases.progress import ProgressReporter
from stages.tokens.tokenizer import load_tokenizer
from tests.support.outputs.byte_search import everything, of_folder
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import recipe, run

EACH = 5
WAYS = ("verbatim", "edited", "inside", "twice", "scrubbed")
NUM_CONTROLS = 1000


def own_words(rng: random.Random) -> Article:
    """An article no 13 words of which stand in any other: its words are drawn one by one. (The demo's
    articles repeat whole sentences of one another.)"""
    article = write_article("en", rng, 14)
    known = sorted(
        {word.strip(".,:;") for _ in range(5) for word in write_article("en", rng).text.lower().split()}
    )
    sentences = [
        f"{' '.join(rng.choices(known, k=7))} of the {' '.join(rng.choices(known, k=5))}." for _ in range(14)
    ]
    return replace(article, paragraphs=tuple(" ".join(sentences[at : at + 3]) for at in range(0, 14, 3)))


def other_words(text: str, every: int) -> str:
    """The text with one word in `every` replaced."""
    words = text.split(" ")
    return " ".join("altogether" if place % every == every - 1 else word for place, word in enumerate(words))


def inside(article: Article, text: str) -> Article:
    middle = len(article.paragraphs) // 2
    return replace(article, paragraphs=(*article.paragraphs[:middle], text, *article.paragraphs[middle:]))


def plant(rng: random.Random) -> tuple[list[str], dict[str, Article], dict[str, str]]:
    """The items; web pages by URL; posts by URL. A URL says which items it holds: `/<way>/<item>/<copy>`."""
    items, web, posts = [], {}, {}
    for number, way in enumerate(way for way in WAYS for _ in range(EACH)):
        article, url = own_words(rng), f"https://plant.example.com/{way}/{number}"
        asked = question(number, rng)
        if way == "inside":
            web[f"{url}/0"] = inside(article, asked)
            items.append(asked)
        elif way == "scrubbed":
            asked += f" Send what you find to solver{number}@mail.example.com before the end of the week."
            web[f"{url}/0"] = inside(article, asked)
            items.append(asked)
        elif way == "twice":
            posts |= {
                f"{url}/{copy}": "\n".join(drop_words(article.paragraphs, random.Random(copy), 2))
                for copy in (0, 1)
            }
            items.append(article.text)
        else:
            posts[f"{url}/0"] = article.text if way == "verbatim" else other_words(article.text, 25)
            items.append(article.text)
    return items, web, posts


def write_lines(path: Path, rows: list[dict[str, str]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A finished run among whose documents the items are planted, with the benchmark and control files beside
    it."""
    folder = tmp_path_factory.mktemp("scan")
    rng = random.Random(3)
    items, web, posts = plant(rng)
    web |= {f"https://clean.example.com/{number}": write_article("en", rng) for number in range(60)}
    posts |= {
        f"https://clean.example.com/post/{number}": write_article("en", rng).text for number in range(60)
    }
    pages = [DemoPage(url=url, html=render_page(article, "example.com", rng)) for url, article in web.items()]
    write_source(folder, "web", pages, 2, rng)
    write_lines(
        folder / "posts-0.jsonl", [{"id": url, "url": url, "text": text} for url, text in posts.items()]
    )
    write_lines(folder / "benchmark.jsonl", [{"question": item} for item in items])
    write_lines(
        folder / "control.jsonl", [{"question": write_article("en", rng).text} for _ in range(NUM_CONTROLS)]
    )
    run(
        folder,
        recipe(str(folder / "out"), {"web": (str(folder / "web-*"),), "posts": (str(folder / "posts-*"),)}),
    )
    return folder, sorted(
        [*(url for url in web if "plant" in url), *(url for url in posts if "plant" in url)]
    )


def scanned(folder: Path, **request: Any) -> dict[str, Any]:
    asked = ScanRequest(
        against=(str(folder / "benchmark.jsonl"),), field="question", max_share=0.5, **request
    )
    return scan(Folder(str(folder / "out")), asked, ProgressReporter(quiet=True)).to_json()


@pytest.fixture(scope="module")
def by_words(planted: tuple[Path, list[str]]) -> dict[str, Any]:
    return scanned(planted[0], control=str(planted[0] / "control.jsonl"))


def test_every_planted_item_is_found_in_exactly_the_pages_that_hold_it(
    planted: tuple[Path, list[str]], by_words: dict[str, Any]
) -> None:
    assert by_words["found_items"] == list(range(EACH * len(WAYS)))
    assert sorted(document["url"] for document in by_words["documents"]) == planted[1]
    for document in by_words["documents"]:
        assert str(document["matches"][0]["item"]) == document["url"].split("/")[-2]
        assert len(document["matches"]) == 1


def test_no_control_text_is_called_contaminated(by_words: dict[str, Any]) -> None:
    assert (by_words["control"]["num"], by_words["control"]["flagged"]) == (NUM_CONTROLS, 0)


def test_a_control_text_that_holds_an_item_is_counted(
    planted: tuple[Path, list[str]], tmp_path: Path
) -> None:
    item = json.loads((planted[0] / "benchmark.jsonl").read_text().splitlines()[0])["question"]
    control = write_lines(
        tmp_path / "control.jsonl", [{"question": f"See: {item}"}, {"question": "Nothing to see."}]
    )
    assert scanned(planted[0], control=control)["control"] | {"file": ""} == {
        "file": "",
        "num": 2,
        "flagged": 1,
        "rate": 0.5,
    }


def test_the_way_it_was_planted_shows_in_the_evidence(by_words: dict[str, Any]) -> None:
    kinds: dict[str, set[str]] = {}
    for document in by_words["documents"]:
        (match,) = document["matches"]
        kinds.setdefault(document["url"].split("/")[3], set()).add(match["kind"])
        if match["kind"] == "ngram":
            assert match["longest"] >= 13
            assert len(match["text"].split()) >= 13
            assert 0 < match["overlap"] <= 1
    assert kinds["verbatim"] == {"exact"}
    assert kinds["twice"] == {"near"}
    assert kinds["inside"] == kinds["scrubbed"] == {"ngram"}


def test_an_item_is_found_where_its_personal_data_was_scrubbed(by_words: dict[str, Any]) -> None:
    scrubbed = [document for document in by_words["documents"] if "/scrubbed/" in document["url"]]
    assert len(scrubbed) == EACH
    for document in scrubbed:
        (match,) = document["matches"]
        assert match["overlap"] == 1, "the item as scrubbed is there whole"
        assert "mail.example.com" not in match["text"]


def test_n_grams_of_tokens_are_found_in_the_shards(
    planted: tuple[Path, list[str]], by_words: dict[str, Any]
) -> None:
    by_tokens = scanned(planted[0], ngram="8t", control=str(planted[0] / "control.jsonl"))
    kept = {row[0] for row in query(Folder(str(planted[0] / "out")), "SELECT doc_id FROM placements").rows}
    assert by_tokens["num_documents"] == len(kept)
    assert {document["doc_id"] for document in by_tokens["documents"]} == kept & {
        document["doc_id"] for document in by_words["documents"]
    }
    assert by_tokens["found_items"] == by_words["found_items"]
    assert by_tokens["control"]["flagged"] == 0


def test_evidence_of_tokens_names_the_span_of_the_shard_that_reads_so(
    planted: tuple[Path, list[str]],
) -> None:
    out = Folder(str(planted[0] / "out"))
    tokenizer, files = (
        load_tokenizer("cl100k_base"),
        {(s.source, s.shard): s.file for s in read_index(out).shards},
    )
    told = [d for d in scanned(planted[0], ngram="8t")["documents"] if d["matches"][0]["unit"] == "tokens"]
    assert len(told) >= 2 * EACH
    for document in told:
        ((source, shard, start),) = query(
            out, f"SELECT source, shard, start FROM placements WHERE doc_id = '{document['doc_id']}'"
        ).rows
        tokens = np.frombuffer(out.read(files[str(source), int(str(shard))]), "<u4")
        first, last = (int(str(start)) + place for place in document["matches"][0]["spans"][0])
        assert tokenizer.decode(tokens[first:last]) == document["matches"][0]["text"]


def test_an_n_gram_of_many_documents_counts_for_nothing(tmp_path: Path) -> None:
    rng = random.Random(5)
    notice = (
        "All of the content on this page is licensed to the reader under the usual terms of the publisher"
    )
    rows = [
        {"id": str(n), "text": "\n".join([*write_article("en", rng).paragraphs, notice])} for n in range(11)
    ]
    write_lines(tmp_path / "posts.jsonl", rows)
    write_lines(tmp_path / "benchmark.jsonl", [{"question": notice}])
    run(tmp_path, recipe(str(tmp_path / "out"), {"posts": (str(tmp_path / "posts.jsonl"),)}))
    evidence = scanned(tmp_path)
    assert (evidence["num_documents"], evidence["num_found"]) == (11, 0)
    assert evidence["common_ngrams"] == len(notice.split()) - 12


def test_evidence_is_not_written_into_the_output_that_it_quotes(planted: tuple[Path, list[str]]) -> None:
    with pytest.raises(RecipeError, match="lies under"):
        write_evidence({"documents": []}, str(planted[0] / "out" / "scan.json"))


def test_a_file_that_is_not_there_is_named_by_the_flag_that_names_it(
    planted: tuple[Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, nowhere = str(planted[0] / "out"), str(tmp_path / "nope.json")
    assert main(["scan", out, "--against", nowhere, "--to", str(tmp_path / "scan.json")]) == 2
    assert f"--against: '{nowhere}' cannot be read" in capsys.readouterr().err
    assert main(["purge", out, "--from", nowhere, "--reason", "leak", "--by", "me"]) == 2
    assert f"--from: '{nowhere}' cannot be read" in capsys.readouterr().err


def test_too_large_a_share_is_refused_unless_told(planted: tuple[Path, list[str]]) -> None:
    asked = ScanRequest(against=(str(planted[0] / "benchmark.jsonl"),), field="question")
    assert scan(Folder(str(planted[0] / "out")), asked, ProgressReporter(quiet=True)).refused


def test_a_few_documents_are_no_large_share_of_a_small_corpus(
    planted: tuple[Path, list[str]], tmp_path: Path
) -> None:
    first = (planted[0] / "benchmark.jsonl").read_text().splitlines()[:2]
    (tmp_path / "two.jsonl").write_text("\n".join(first))
    asked = ScanRequest(against=(str(tmp_path / "two.jsonl"),), field="question")
    evidence = scan(Folder(str(planted[0] / "out")), asked, ProgressReporter(quiet=True))
    assert evidence.num_found == 2 and evidence.share > 0.01 and not evidence.refused
    strict = scan(
        Folder(str(planted[0] / "out")), replace(asked, max_share=0.01), ProgressReporter(quiet=True)
    )
    assert strict.refused and strict.max_share == 0.01


def tokens_of(out: Folder, index: Index) -> dict[bytes, bytes]:
    """The bytes of each document's tokens in the shards."""
    found = {}
    for shard in index.shards:
        data = out.read(shard.file)
        for row in pq.read_table(io.BytesIO(out.read(shard.index_file))).to_pylist():
            found[row["doc_id"]] = data[row["start"] * 4 : (row["start"] + row["num_tokens"]) * 4]
    return found


def test_what_the_scan_found_is_purged_and_nothing_of_it_is_left(
    planted: tuple[Path, list[str]], by_words: dict[str, Any], tmp_path: Path
) -> None:
    shutil.copytree(planted[0] / "out", tmp_path / "out")
    out, tokenizer = Folder(str(tmp_path / "out")), load_tokenizer("cl100k_base")
    before, found = read_index(out), {bytes.fromhex(document["doc_id"]) for document in by_words["documents"]}
    old = tokens_of(out, before)
    texts = {tokenizer.decode(np.frombuffer(old[doc_id], "<u4")[:-1]) for doc_id in found & set(old)}
    matched = [match["text"] for document in by_words["documents"] for match in document["matches"]]
    needles = [text.encode() for text in [*texts, *matched]]
    needles += [old[doc_id][40:-40] for doc_id in found & set(old)]

    def left() -> list[bytes]:
        return [needle for data in everything(of_folder(out)) for needle in needles if needle in data]

    assert set(needles) == set(left()), "the search finds what is there"
    write_evidence(ScanEvidence.from_json(by_words), str(tmp_path / "scan.json"))
    command = [
        "purge",
        out.url,
        "--from",
        str(tmp_path / "scan.json"),
        "--by",
        "test",
        "--reason",
        "leaked",
        "--apply",
    ]
    assert main(command) == 0
    assert left() == []
    assert main(["verify", out.url]) == 0
    after = read_index(out)
    assert after.order_fingerprint == before.order_fingerprint
    new = tokens_of(out, after)
    assert {doc_id: data for doc_id, data in new.items() if doc_id not in found} == {
        doc_id: data for doc_id, data in old.items() if doc_id not in found
    }
    for doc_id in found & set(old):
        assert set(np.frombuffer(new[doc_id], "<u4").tolist()) == {tokenizer.eot_id}
