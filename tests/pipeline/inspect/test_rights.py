"""`[rights]` in a run and `sluice rights` after it: 1,000 hosts with robots.txt before and after, beside verdicts
that are written down."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from pipeline.cli.main import main
from pipeline.inspect.rights import rights_changes
from tests.support.inputs.site_files import SiteResponse, write_site_file
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import recipe, run

NUM_HOSTS = 1000
PATHS = ("/private/page", "/public/page")
TEXTS: dict[str, tuple[str, str, str]] = {
    # text of robots.txt: what it comes to for each of PATHS, and the kind that denies
    "": ("unknown", "unknown", ""),
    "User-agent: *\nDisallow: /\n": ("unknown", "unknown", ""),
    "User-agent: GPTBot\nDisallow: /private/\n": ("denied", "unknown", "robots"),
    "User-agent: gptbot\nUser-agent: other\nDisallow: /\nAllow: /private/\n": ("unknown", "denied", "robots"),
    "User-agent: *\nContent-Usage: / train-ai=n\nContent-Usage: /public/ train-ai=y\n": (
        "denied",
        "allowed",
        "content_usage",
    ),
    "User-agent: *\nContent-Usage: / train-ai=y\n": ("allowed", "allowed", ""),
    "User-agent: *\nContent-Usage: / TRAIN-AI=n\n": ("unknown", "unknown", ""),
    "Content-Signal: search=yes,ai-train=no\nUser-agent: *\nAllow: /\n": (
        "denied",
        "denied",
        "content_signal",
    ),
    "User-agent: *\nContent-Signal: ai-train=yes\nDisallow: /private/\n": ("allowed", "allowed", ""),
    "User-agent: CCBot\nDisallow: /public/*$\nDisallow:\n": ("unknown", "denied", "robots"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sites:
    """A run over two pages of each host, and what its site said then and says later (None: no later response)."""

    out: str
    later: str
    before: dict[str, str]
    after: dict[str, str | None]

    def denied_now(self) -> dict[str, str]:
        """By brute force, the URLs that are to be found, with the kind of signal."""
        found = {}
        for host, text in self.after.items():
            for at, path in enumerate(PATHS):
                is_new = (
                    text is not None
                    and TEXTS[text][at] == "denied"
                    and TEXTS[self.before[host]][at] != "denied"
                )
                if is_new:
                    found[f"https://{host}{path}"] = TEXTS[text or ""][2]
        return found


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    folder = tmp_path_factory.mktemp("sites")
    rng = random.Random(57)
    hosts = [f"h{number}.example{number % 7}.org" for number in range(NUM_HOSTS)]
    before = {host: rng.choice(list(TEXTS)) for host in hosts}
    after = {host: rng.choice([None, *TEXTS]) for host in hosts}
    rows = [
        {"url": f"https://{host}{path}", "text": f"A text of {host} {path}."}
        for host in hosts
        for path in PATHS
    ]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    early = write_site_file(folder / "early" / "0.warc.gz", _responses(before, "2026-01-05T00:00:00Z"))
    for part in range(3):
        of_part = {
            host: text
            for host, text in after.items()
            if text is not None and int(host[1:].split(".")[0]) % 3 == part
        }
        write_site_file(folder / "later" / f"{part}.warc.gz", _responses(of_part, "2026-06-05T00:00:00Z"))
    plain = recipe(
        str(folder / "out"),
        {"web": (str(folder / "rows.jsonl"),)},
        rights={"robots": [early]},
        dedup={"near": False},
        tokenize={"shard_tokens": 20_000_000},
    )
    plain["source"][0] |= {"steps": ["url", "parse"], "language": "en"}
    run(folder, plain)
    return Sites(out=str(folder / "out"), later=str(folder / "later"), before=before, after=after)


def _responses(texts: dict[str, str], date: str) -> list[SiteResponse]:
    return [
        SiteResponse(url=f"https://{host}/robots.txt", text=text, date=date) for host, text in texts.items()
    ]


def test_the_columns_are_those_of_the_verdicts_written_down(sites: Sites) -> None:
    rows = query(Folder(sites.out), "SELECT url, training_use, training_use_by, status FROM documents").rows
    expected = {
        f"https://{host}{path}": TEXTS[text][at]
        for host, text in sites.before.items()
        for at, path in enumerate(PATHS)
    }
    assert {str(url): use for url, use, _, _ in rows} == expected
    assert {status for *_, status in rows} == {"kept"}
    by = {str(url): kind for url, use, kind, _ in rows if use == "denied"}
    assert all(kind == TEXTS[sites.before[url.split("/")[2]]][2] for url, kind in by.items())


def test_what_is_denied_now_and_was_not_equals_brute_force(sites: Sites) -> None:
    (change,) = rights_changes([sites.out], [sites.later]).outs
    expected = sites.denied_now()
    assert len(expected) > 200
    assert {each.url: each.signal for each in change.documents} == expected
    assert change.num_compared == 2 * sum(text is not None for text in sites.after.values())
    tokens = dict(query(Folder(sites.out), "SELECT url, num_tokens FROM documents").rows)
    for host in change.hosts:
        urls = [
            url for url, kind in expected.items() if (url.split("/")[2], kind) == (host.host, host.signal)
        ]
        assert (host.num_documents, host.num_tokens) == (len(urls), sum(int(tokens[url]) for url in urls))
    assert sum(host.num_documents for host in change.hosts) == len(expected)


def test_agents_and_signals_may_be_others_than_the_recipes(sites: Sites) -> None:
    (change,) = rights_changes([sites.out], [sites.later], signals=["content_signal"]).outs
    assert {each.signal for each in change.documents} == {"content_signal"}
    (change,) = rights_changes([sites.out], [sites.later], agents=["NoBot"], signals=["robots"]).outs
    assert change.documents == () and change.purge is None


def test_the_plan_is_what_a_purge_takes_and_then_nothing_is_left(
    sites: Sites, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, plan = str(tmp_path / "out"), str(tmp_path / "plan.json")
    shutil.copytree(sites.out, out)
    call = ["rights", out, "--robots", sites.later, "--to", plan]
    assert main(call) == 0
    told = capsys.readouterr().out
    expected = sites.denied_now()
    assert f"denied now: {len(expected):,} documents" in told and f"--from {plan}" in told
    assert main(["purge", out, "--from", plan, "--reason", "robots", "--by", "a tester", "--apply"]) == 0
    capsys.readouterr()
    assert main(["verify", out]) == 0
    capsys.readouterr()
    purged = query(Folder(out), "SELECT url FROM documents WHERE purged IS NOT NULL").rows
    assert {str(url) for (url,) in purged} == expected.keys()
    assert main([*call, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_documents"] == 0
    assert json.loads(Path(plan).read_text()) == []
    assert main(["purge", out, "--from", plan, "--reason", "robots", "--by", "a tester", "--apply"]) == 0
    assert "names no document" in capsys.readouterr().out


def test_a_header_of_the_page_supersedes_a_later_tdmrep_file(tmp_path: Path) -> None:
    crawl = [
        SiteResponse(
            url=f"https://a.example.org/{value}", text=f"Text {value}.", headers=(("tdm-reservation", value),)
        )
        for value in ("0", "x")
    ]
    pages = write_site_file(tmp_path / "pages.warc.gz", crawl)
    place = "https://a.example.org/.well-known/tdmrep.json"
    later = write_site_file(
        tmp_path / "l.warc.gz", [SiteResponse(url=place, text='[{"location":"/","tdm-reservation":1}]')]
    )
    plain = recipe(str(tmp_path / "out"), {"web": (pages,)}, dedup={"near": False})
    plain["source"][0] |= {"steps": ["url", "parse"], "language": "en"}
    run(tmp_path, plain)
    (change,) = rights_changes([str(tmp_path / "out")], [later]).outs
    assert [each.url for each in change.documents] == ["https://a.example.org/x"]


def test_deny_rejects_by_its_rule_and_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pages = write_site_file(
        tmp_path / "pages.warc.gz",
        [
            SiteResponse(
                url="https://a.example.org/1", text="One.", headers=(("Content-Usage", "train-ai=n"),)
            ),
            SiteResponse(
                url="https://a.example.org/2", text="Two.", headers=(("Content-Usage", "train-ai==n"),)
            ),
            SiteResponse(
                url="https://a.example.org/3", text="Three.", headers=(("X-Robots-Tag", "noindex"),)
            ),
            SiteResponse(url="https://a.example.org/4", text="Four."),
        ],
    )
    plain = recipe(
        str(tmp_path / "out"),
        {"web": (pages,)},
        rights={"deny": ["content_usage", "noindex"]},
        quality={"ledger": "all"},
        dedup={"near": False},
    )
    plain["source"][0] |= {"steps": ["url", "parse"], "language": "en"}
    run(tmp_path, plain)
    out = Folder(str(tmp_path / "out"))
    rows = query(out, "SELECT url, status, stage, rule, malformed_signals FROM documents ORDER BY url").rows
    assert [row[1:] for row in rows] == [
        ("rejected", "url", "rights.content_usage", 0),
        ("kept", None, None, 1),
        ("rejected", "url", "rights.noindex", 0),
        ("kept", None, None, 0),
    ]
    assert query(out, "SELECT rule, num FROM step_rules ORDER BY rule").rows == [
        ("rights.content_usage", 1),
        ("rights.noindex", 1),
    ]
    ledger = query(
        out,
        "SELECT rule, verdict, count(*) FROM findings WHERE rule LIKE 'rights.%' GROUP BY ALL ORDER BY ALL",
    ).rows
    assert ledger == [
        ("rights.content_usage", "keep", 3), ("rights.content_usage", "reject", 1),
        ("rights.noindex", "keep", 3), ("rights.noindex", "reject", 1),
    ]  # fmt: skip
    report = out.read("report.html").decode()
    assert "say nothing on it for 2." in report and "could not be parsed, and count as unknown: 1." in report
    assert main(["trace", out.url, "--url", "https://a.example.org/1", "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)["documents"]
    assert ("rights.content_usage", "reject") in {
        (each["rule"], each["verdict"]) for each in document["decisions"]
    }
    assert main(["explain", str(tmp_path / "recipe.toml"), "--warc", pages, "--offset", "0"]) in (0, 1)


def test_nothing_is_recorded_where_the_recipe_says_so(tmp_path: Path) -> None:
    pages = write_site_file(
        tmp_path / "pages.warc.gz", [SiteResponse(url="https://a.example.org/1", text="One.")]
    )
    plain = recipe(str(tmp_path / "out"), {"web": (pages,)}, rights={"record": []}, dedup={"near": False})
    plain["source"][0] |= {"steps": ["url", "parse"], "language": "en"}
    run(tmp_path, plain)
    columns = query(Folder(str(tmp_path / "out")), "SELECT * FROM documents").columns
    assert not {"signals", "training_use", "training_use_by"} & set(columns)
    later = write_site_file(
        tmp_path / "l.warc.gz",
        [SiteResponse(url="https://a.example.org/robots.txt", text="User-agent: GPTBot\nDisallow: /")],
    )
    (change,) = rights_changes([str(tmp_path / "out")], [later]).outs
    assert [each.signal for each in change.documents] == ["robots"]


def test_an_output_without_hosts_is_refused_in_a_sentence(tmp_path: Path, sites: Sites) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": "A text."}))
    plain = recipe(str(tmp_path / "out"), {"web": (str(tmp_path / "rows.jsonl"),)}, dedup={"near": False})
    plain["source"][0] |= {"steps": ["url", "parse"], "language": "en"}
    run(tmp_path, plain)
    with pytest.raises(RecipeError, match="1 kept documents and none with a host"):
        rights_changes([str(tmp_path / "out")], [sites.later])


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"deny": ["noai"], "record": ["robots"]}, "rights.deny names 'noai', which rights.record does not"),
        ({"deny": ["license"]}, "license"),
        ({"agents": ["GPT Bot"]}, "expected a product token"),
        ({"robots": ["/nowhere/robots.warc.gz"]}, "rights.robots"),
        ({"robots": ["/nowhere"]}, "holds none"),
    ],
)
def test_a_wrong_table_is_refused_by_its_key(
    tmp_path: Path, tables: dict[str, list[str]], words: str
) -> None:
    pages = write_site_file(
        tmp_path / "pages.warc.gz", [SiteResponse(url="https://a.example.org/1", text="One.")]
    )
    with pytest.raises(RecipeError, match=words):
        run(tmp_path, recipe(str(tmp_path / "out"), {"web": (pages,)}, rights=tables))
