"""What an earlier output purged stays out of a later run, however it was named and whatever it comes back
as."""

from __future__ import annotations

import errno
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from lineage.purge import execution
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from pipeline import process
from pipeline.cli.main import main
from pipeline.demo.pages import write_article
from pipeline.plan import RunPlan, plan_run
from pipeline.recipe.tables import PipelineRecipe
from sluice.output import open_output
from tests.support.outputs.byte_search import everything, of_folder
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import ON_RAY, recipe, run

CLASS_STEP = "tests.support.steps.model_steps:Shout"
BY = ("--reason", "a takedown", "--by", "a test", "--apply")


def write_pages(path: Path, pages: dict[str, str]) -> str:
    path.write_text(
        "".join(json.dumps({"id": url, "url": url, "text": text}) + "\n" for url, text in pages.items())
    )
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
    purged = [text[:80].encode() for text in (*texts[5:], texts[3])]
    held = [part for part in everything(of_folder(Folder(later))) if any(text in part for text in purged)]
    assert not held, "in the report's examples neither"


def test_a_purge_that_ends_while_a_run_lists_its_inputs_keeps_its_documents_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier, later = str(tmp_path / "earlier"), str(tmp_path / "later")
    pages = {"https://gone.example/1": write_article("en", random.Random(1)).text}
    inputs = {"web": (write_pages(tmp_path / "a.jsonl", pages),)}
    run(tmp_path / "a", recipe(earlier, inputs))

    def purged_meanwhile(loaded: PipelineRecipe) -> RunPlan:
        assert main(["purge", earlier, "--host", "gone.example", *BY]) == 0
        return plan_run(loaded)

    monkeypatch.setattr(process, "plan_run", purged_meanwhile)
    summary = run(tmp_path / "b", recipe(later, inputs, purges={"honour": [earlier]}))
    (held,) = summary["identity"]["outputs"].values()
    assert held.endswith(" version 2") and ends(later) == {"https://gone.example/1": "purged"}


def test_a_purge_that_did_not_end_is_not_honoured_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier, later = str(tmp_path / "earlier"), str(tmp_path / "later")
    texts = [write_article("en", random.Random(number)).text for number in range(3)]
    pages = {"https://gone.example/1": texts[0]}
    run(tmp_path / "a", recipe(earlier, {"web": (write_pages(tmp_path / "a.jsonl", pages),)}))
    again = {"https://gone.example/new": texts[1], "https://stays.example/1": texts[2]}
    plain = recipe(later, {"web": (write_pages(tmp_path / "b.jsonl", again),)}, purges={"honour": [earlier]})

    def full(out: Folder) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), out.url)

    with monkeypatch.context() as disk:
        disk.setattr(execution, "erase_old_versions", full)
        assert main(["purge", earlier, "--host", "gone.example", *BY]) == 1
    with pytest.raises(RecipeError, match=r"purges\.honour: .* did not end: call the same `sluice purge`"):
        run(tmp_path / "b", plain)
    assert main(["purge", earlier, "--host", "gone.example", *BY]) == 0
    run(tmp_path / "b", plain)
    assert ends(later) == {"https://gone.example/new": "purged", "https://stays.example/1": "kept"}


def test_a_page_is_blocked_purged_and_kept_out_whatever_its_url_is_wrapped_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(11)
    texts = [write_article("en", rng).text for _ in range(9)]
    blocked = [
        "urn:text:https://www.blocked.example.org/a",
        "blocked.example.org/b",
        "http:/blocked.example.org/c",
    ]
    gone = ["onreadydom:https://a.gone.example.org/1", "gone.example.org/2"]
    posts = [f"https://forum.example.net/t#{number}" for number in range(3)]
    pages = dict(zip([*blocked, *gone, *posts, "urn:uuid:9"], texts, strict=True))
    (tmp_path / "hosts.txt").write_text("blocked.example.org\n")
    web = {url: pages[url] for url in (*blocked, *gone, "urn:uuid:9")}
    inputs = {"web": (write_pages(tmp_path / "web.jsonl", web),)}
    inputs["posts"] = (write_pages(tmp_path / "posts.jsonl", {url: pages[url] for url in posts}),)
    out, later = str(tmp_path / "out"), str(tmp_path / "later")
    plain = recipe(out, inputs, url={"block_hosts": [str(tmp_path / "hosts.txt")]})
    summary = run(tmp_path / "a", plain)
    assert ends(out) | dict.fromkeys(posts) == {
        **dict.fromkeys(blocked, "url.blocked_host"),
        **dict.fromkeys([*gone, "urn:uuid:9"], "kept"),
        **dict.fromkeys(posts),
    }
    assert sorted(ends(out)[url] for url in posts) == ["dedup.url", "dedup.url", "kept"]
    assert (summary["num_without_page"], summary["unlike_pages"]) == (1, {"posts": 2})
    assert b"2 documents of source &#39;posts&#39;" in Folder(out).read("report.html")
    capsys.readouterr()
    assert main(["purge", out, "--domain", "gone.example.org", *BY, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["match"]["kind"], plan["num_documents"], plan["num_without_page"]) == ("domain", 2, 1)
    assert main(["verify", out]) == 0
    lost = [pages[url][:80].encode() for url in gone]
    held = [part for part in everything(of_folder(Folder(out))) if any(text in part for text in lost)]
    assert not held
    plain["source"][1]["fragments"] = True
    plain |= {"run": {"name": "later", "output": later}, "purges": {"honour": [out]}}
    assert run(tmp_path / "b", plain)["unlike_pages"] == {}
    assert ends(later) == {
        **dict.fromkeys(blocked, "url.blocked_host"),
        **dict.fromkeys(gone, "purged"),
        **dict.fromkeys([*posts, "urn:uuid:9"], "kept"),
    }


def test_a_host_is_found_however_a_person_writes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = {"https://xn--bcher-kva.example/1": write_article("en", random.Random(8)).text}
    out = str(tmp_path / "out")
    run(tmp_path / "a", recipe(out, {"web": (write_pages(tmp_path / "a.jsonl", pages),)}))
    for name in ("bücher.example", "XN--BCHER-KVA.example.", "https://bücher.example/another"):
        assert main(["trace", out, "--host", name, "--json"]) == 0
        (told,) = json.loads(capsys.readouterr().out)["documents"]
        assert told["url"] == "https://xn--bcher-kva.example/1"
    assert main(["trace", out, "--host", "other.example"]) == 1
    assert "other.example" in capsys.readouterr().err


def test_a_purge_of_one_copy_lets_the_next_run_keep_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(9)
    text, other = (write_article("en", rng).text for _ in range(2))
    pages = {"https://a.example/1": text, "https://b.example/1": text, "https://c.example/1": other}
    earlier = str(tmp_path / "earlier")
    inputs = {"web": (write_pages(tmp_path / "a.jsonl", pages),)}
    run(
        tmp_path / "a",
        recipe(earlier, inputs) | {"run": {"name": "test", "output": earlier, "keep_text": True}},
    )
    before = ends(earlier)
    (kept,) = (url for url, become in before.items() if become == "kept" and url != "https://c.example/1")
    (copy,) = pages.keys() - {kept, "https://c.example/1"}
    ((doc_id, copy_id),) = query(
        Folder(earlier),
        f"SELECT min(doc_id) FILTER (url = '{kept}'), min(doc_id) FILTER (url = '{copy}') FROM documents",
    ).rows
    assert main(["purge", earlier, "--doc", str(doc_id), "--promote-duplicates", *BY]) == 0
    assert "1 document, and no copy of the texts" in capsys.readouterr().out
    assert ask_purged(earlier) == {str(doc_id): "target"}
    assert main(["verify", earlier]) == 0
    assert open_output(earlier).text(str(copy_id)) == text
    for name, from_output in (("from-texts", earlier), ("from-inputs", None)):
        later = str(tmp_path / name)
        plain = recipe(later, inputs) if from_output else recipe(later, inputs, purges={"honour": [earlier]})
        run(tmp_path / f"run-{name}", plain, from_output=from_output)
        assert ends(later) == {kept: "purged", copy: "kept", "https://c.example/1": "kept"}


def test_a_text_of_which_one_copy_was_purged_goes_when_all_copies_are(tmp_path: Path) -> None:
    text = write_article("en", random.Random(10)).text
    pages = {"https://a.example/1": text, "https://b.example/1": text}
    earlier, later = str(tmp_path / "earlier"), str(tmp_path / "later")
    inputs = {"web": (write_pages(tmp_path / "a.jsonl", pages),)}
    run(tmp_path / "a", recipe(earlier, inputs))
    ids = [str(row[0]) for row in query(Folder(earlier), "SELECT doc_id FROM documents ORDER BY status").rows]
    assert main(["purge", earlier, "--doc", ids[1], "--promote-duplicates", *BY]) == 0
    assert main(["purge", earlier, "--doc", *ids, *BY]) == 0
    assert set(ask_purged(earlier)) == set(ids)
    assert main(["verify", earlier]) == 0
    run(tmp_path / "b", recipe(later, inputs, purges={"honour": [earlier]}))
    assert ends(later) == dict.fromkeys(pages, "purged")


@pytest.mark.parametrize("way", ["inputs", "texts", "models"])
def test_no_text_is_kept_of_what_a_later_step_made_equal_to_a_purged_one(
    tmp_path: Path, way: str, small_ray: None
) -> None:
    article = write_article("en", random.Random(11)).text
    first, second = f"{article} Write to ann@one.example.", f"{article} Write to bob@two.example."
    steps = [
        "url",
        "parse",
        "language",
        *([CLASS_STEP] if way == "models" else []),
        "pii",
        "identity",
        "dedup.exact",
    ]

    def run_over(
        out: str, url: str, text: str, *, from_output: str | None = None, **tables: dict[str, Any]
    ) -> str:
        inputs = {"web": (write_pages(tmp_path / "pages.jsonl", {url: text}),)}
        plain = recipe(str(tmp_path / out), inputs, **tables, **({"ray": ON_RAY} if way == "models" else {}))
        plain["source"][0]["steps"] = steps
        run(tmp_path / f"run-{out}", plain, from_output=from_output)
        return str(tmp_path / out)

    earlier = run_over("earlier", "https://a.example/1", first)
    assert main(["purge", earlier, "--host", "a.example", *BY]) == 0
    keeping = {"keep_text": True}
    before = run_over("before", "https://b.example/1", second, run=keeping) if way == "texts" else None
    honour = {"honour": [earlier]}
    later = run_over("later", "https://b.example/1", second, from_output=before, run=keeping, purges=honour)
    assert ends(later) == {"https://b.example/1": "purged"}
    gone = (article[:80].encode(), article[:80].upper().encode())
    assert not [part for part in everything(of_folder(Folder(later))) if any(text in part for text in gone)]
    assert main(["verify", later]) == 0


def ask_purged(out: str) -> dict[str, str]:
    return {
        str(doc_id): str(role) for doc_id, role in query(Folder(out), "SELECT doc_id, role FROM purged").rows
    }
