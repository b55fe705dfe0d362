"""What an earlier output purged stays out of a later run, however it was named and whatever it comes back as."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from lineage.storage.folder import Folder
from lineage.store.sql import query
from pipeline.cli.main import main
from pipeline.demo.pages import write_article
from tests.support.outputs.runs import recipe, run

pytestmark = pytest.mark.usefixtures("small_ray")
BY = ("--reason", "a takedown", "--by", "a test", "--apply")


def write_pages(path: Path, pages: dict[str, str]) -> str:
    path.write_text("".join(json.dumps({"id": url, "url": url, "text": text}) + "\n" for url, text in pages.items()))
    return str(path)


def ends(out: str) -> dict[str, str]:
    """What became of each URL: its rule, or kept."""
    rows = query(Folder(out), "SELECT url, coalesce(rule, status) FROM documents").rows
    return {str(url): str(become) for url, become in rows}


def test_hosts_urls_and_texts_purged_from_an_earlier_output_stay_out(tmp_path: Path) -> None:
    rng = random.Random(7)
    texts = [write_article("en", rng).text for _ in range(8)]
    old = [
        "https://gone.example/1",
        "https://xn--bcher-kva.example/1",
        "https://page.example/1",
        "https://text.example/1",
        "https://stays.example/1",
    ]
    earlier, later = str(tmp_path / "earlier"), str(tmp_path / "later")
    pages = dict(zip(old, texts[:5], strict=True))
    run(tmp_path / "a", recipe(earlier, {"web": (write_pages(tmp_path / "a.jsonl", pages),)}))
    ((doc_id,),) = query(Folder(earlier), "SELECT doc_id FROM documents WHERE host = 'text.example'").rows
    assert main(["purge", earlier, "--host", "GONE.Example.", "Bücher.example", *BY]) == 0
    assert main(["purge", earlier, "--url", "http://page.example:80/1#top", *BY]) == 0
    assert main(["purge", earlier, "--doc", str(doc_id), *BY]) == 0
    again = {
        "http://gone.example/new": texts[5],
        "https://bücher.example/new": texts[6],
        "http://page.example/1?utm_x=1": texts[7],
        "https://elsewhere.example/1": texts[3],
        "https://stays.example/1": texts[4],
    }
    inputs = {"web": (write_pages(tmp_path / "b.jsonl", again),)}
    run(tmp_path / "b", recipe(later, inputs, purges={"honour": [earlier]}))
    assert ends(later) == {**dict.fromkeys(again, "purged"), "https://stays.example/1": "kept"}


def test_a_host_is_found_however_a_person_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pages = {"https://xn--bcher-kva.example/1": write_article("en", random.Random(8)).text}
    out = str(tmp_path / "out")
    run(tmp_path / "a", recipe(out, {"web": (write_pages(tmp_path / "a.jsonl", pages),)}))
    for name in ("bücher.example", "XN--BCHER-KVA.example.", "https://bücher.example/another"):
        assert main(["trace", out, "--host", name, "--json"]) == 0
        (told,) = json.loads(capsys.readouterr().out)["documents"]
        assert told["url"] == "https://xn--bcher-kva.example/1"
    assert main(["trace", out, "--host", "other.example"]) == 1
    assert "other.example" in capsys.readouterr().err
