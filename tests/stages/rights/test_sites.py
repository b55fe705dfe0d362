"""Responses for robots.txt and tdmrep.json in WARC files: which one of a site counts, and files that hold none."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

import pytest

from lineage.pages import page_of
from lineage.recipe import RecipeError
from stages.rights.robots import MOST_BYTES
from stages.rights.sites import Sites, gathered_sites, path_of_page, site_files, site_of
from tests.support.inputs.site_files import SiteResponse, write_site_file

DENIES = "User-agent: GPTBot\nDisallow: /\n"
ALLOWS = "User-agent: GPTBot\nAllow: /\n"
AGENTS = ("GPTBot",)


def robots(host: str, text: str, date: str = "2026-01-05T00:00:00Z", **more: object) -> SiteResponse:
    return SiteResponse(url=f"{host}/robots.txt", text=text, date=date, **more)  # type: ignore[arg-type]


def kinds(sites: Sites, url: str) -> list[str]:
    page = page_of(url)
    assert page is not None
    return [signal.kind for signal in sites.signals(page, AGENTS)]


def read(path: Path, *responses: SiteResponse) -> Sites:
    return gathered_sites([write_site_file(path / "r.warc.gz", responses)], AGENTS)


def test_a_site_is_a_host_whatever_the_scheme_and_a_port_of_its_own_is_another(tmp_path: Path) -> None:
    sites = read(
        tmp_path, robots("https://a.example.org", DENIES), robots("http://b.example.org:8080", DENIES)
    )
    urls = (
        "http://A.example.org/x",
        "https://a.example.org:443/",
        "https://a.example.org:8443/",
        "http://b.example.org/",
    )
    assert [kinds(sites, url) for url in urls] == [["robots"], ["robots"], [], []]
    assert kinds(sites, "http://b.example.org:8080/x") == ["robots"]


def test_the_newest_response_counts_in_any_order(tmp_path: Path) -> None:
    old, new = (
        robots("https://a.example.org", text, date)
        for text, date in ((DENIES, "2026-01-05T00:00:00Z"), (ALLOWS, "2026-02-05T00:00:00Z"))
    )
    gone = robots("https://a.example.org", "", "2026-03-05T00:00:00Z", status="404 Not Found")
    broken = robots("https://a.example.org", "", "2026-04-05T00:00:00Z", status="503 Service Unavailable")
    for number, order in enumerate(itertools.permutations([old, new])):
        assert kinds(read(tmp_path / f"a{number}", *order), "https://a.example.org/") == []
    for number, order in enumerate(itertools.permutations([old, gone, broken])):
        assert kinds(read(tmp_path / f"b{number}", *order), "https://a.example.org/") == []
    for number, order in enumerate(itertools.permutations([old, broken])):
        assert kinds(read(tmp_path / f"c{number}", *order), "https://a.example.org/") == ["robots"]


def test_a_redirect_is_followed_to_another_site_and_no_further_than_five_times(tmp_path: Path) -> None:
    def moved(host: str, to: str) -> SiteResponse:
        return robots(host, "", status="301 Moved Permanently", headers=(("Location", to),))

    chain = [moved(f"https://h{n}.example.org", f"https://h{n + 1}.example.org/robots.txt") for n in range(6)]
    sites = read(
        tmp_path,
        *chain,
        robots("https://h6.example.org", DENIES),
        moved("https://loop.example.org", "/robots.txt"),
        moved("http://own.example.org", "https://own.example.org/robots.txt"),
        robots("https://own.example.org", DENIES),
    )
    found = {n: kinds(sites, f"https://h{n}.example.org/") for n in range(7)}
    assert found == {
        0: [],
        1: ["robots"],
        2: ["robots"],
        3: ["robots"],
        4: ["robots"],
        5: ["robots"],
        6: ["robots"],
    }
    assert kinds(sites, "https://loop.example.org/") == []
    assert kinds(sites, "https://own.example.org/") == ["robots"]


def test_a_redirect_to_another_page_gives_a_site_no_rules_of_that_pages_site(tmp_path: Path) -> None:
    to_front_page = robots(
        "https://gone.example.org",
        "",
        status="302 Found",
        headers=(("Location", "https://other.example.org/"),),
    )
    sites = read(tmp_path, to_front_page, robots("https://other.example.org", DENIES))
    assert kinds(sites, "https://gone.example.org/x") == []
    assert kinds(sites, "https://other.example.org/x") == ["robots"]


def test_a_response_that_says_not_modified_leaves_what_the_one_before_said(tmp_path: Path) -> None:
    same = robots("https://a.example.org", "", "2026-03-05T00:00:00Z", status="304 Not Modified")
    sites = read(tmp_path, robots("https://a.example.org", DENIES), same)
    assert kinds(sites, "https://a.example.org/") == ["robots"]


@pytest.mark.parametrize("line_end", ["\n", "\r", "\r\n"])
def test_a_rule_that_is_cut_off_with_a_long_file_is_none(line_end: str, tmp_path: Path) -> None:
    begin = f"User-agent: GPTBot{line_end}Disallow: /held{line_end}#"
    rule = "Disallow: /"
    filling = "x" * (MOST_BYTES - len(begin) - len(line_end) - len(rule))
    text = f"{begin}{filling}{line_end}{rule}private{line_end}"
    sites = read(tmp_path, robots("https://a.example.org", text))
    assert [kinds(sites, f"https://a.example.org/{path}") for path in ("", "held")] == [[], ["robots"]]


def test_of_a_packed_file_that_unfolds_without_end_the_begin_counts(tmp_path: Path) -> None:
    place = tmp_path / "r.warc"
    write_site_file(place, [robots("https://a.example.org", "")])
    packed = gzip.compress(f"{DENIES}#{'x' * (8 << 20)}".encode(), mtime=0)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: gzip\r\n\r\n"
    record = (
        b"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: https://b.example.org/robots.txt\r\n"
        b"WARC-Record-ID: <urn:uuid:b>\r\nWARC-Date: 2026-01-05T00:00:00Z\r\n"
        b"Content-Type: application/http; msgtype=response\r\n"
    )
    place.write_bytes(
        place.read_bytes()
        + record
        + f"Content-Length: {len(head) + len(packed)}\r\n\r\n".encode()
        + head
        + packed
        + b"\r\n\r\n"
    )
    assert kinds(gathered_sites([str(place)], AGENTS), "https://b.example.org/x") == ["robots"]


def test_a_tdmrep_file_of_a_million_bytes_is_read_whole(tmp_path: Path) -> None:
    entries = [{"location": f"/{number}/", "tdm-reservation": 1} for number in range(20_000)]
    place = "https://a.example.org/.well-known/tdmrep.json"
    sites = read(tmp_path, SiteResponse(url=place, text=json.dumps(entries)))
    page = page_of("https://a.example.org/19999/x")
    assert page is not None
    assert [signal.meaning for signal in sites.signals(page, AGENTS)] == ["denied"]


def test_a_tdmrep_file_lies_beside_robots(tmp_path: Path) -> None:
    place = "https://a.example.org/.well-known/tdmrep.json"
    sites = read(
        tmp_path,
        SiteResponse(url=place, text='[{"location": "/p*/", "tdm-reservation": 1}]'),
        SiteResponse(url=place.replace("a.", "b."), text="<html>soft 404</html>"),
        robots("https://a.example.org", DENIES),
    )
    assert kinds(sites, "https://a.example.org/press/x") == ["robots", "tdmrep"]
    assert kinds(sites, "https://a.example.org/x") == ["robots"]
    page = page_of("https://b.example.org/")
    assert page is not None
    assert [signal.meaning for signal in sites.signals(page, AGENTS)] == ["malformed"]


def test_the_path_is_that_of_the_url_as_it_stands() -> None:
    for url, path in {
        "https://a.example.org": "/",
        "https://a.example.org/A/%7eb?utm_source=x&a=1#top": "/A/%7eb?utm_source=x&a=1",
        "https://a.example.org?q": "/?q",
        "//a.example.org/x": "/x",
        "a.example.org/x": "/x",
        "view-source:https://a.example.org/x": "/x",
        "https://user@[::1]:80/x": "/x",
    }.items():
        page = page_of(url)
        assert page is not None
        assert path_of_page(page) == path, url
        assert site_of(page) in ("a.example.org", "[::1]:80")


def test_folders_give_their_files(tmp_path: Path) -> None:
    for name in ("b/2.warc", "a/1.warc.gz", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert [file.removeprefix(f"{tmp_path}/") for file in site_files([str(tmp_path)])] == [
        "a/1.warc.gz",
        "b/2.warc",
    ]
    with pytest.raises(RecipeError, match="holds none: expected files that end in"):
        site_files([str(tmp_path / "nowhere")])


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("pages.warc.gz", None, "4 records"),
        ("text.warc", b"User-agent: *\n", "there is no WARC record"),
        ("empty.warc", b"", "no record"),
        ("torn.warc.gz", gzip.compress(b"WARC/1.0\r\n", mtime=0)[:-6], "no response for /robots.txt"),
    ],
)
def test_a_file_without_such_a_response_is_refused_in_a_sentence(
    tmp_path: Path, name: str, data: bytes | None, words: str
) -> None:
    place = tmp_path / name
    if data is None:
        write_site_file(
            place, [robots("https://a.example.org/x", ""), SiteResponse(url="https://a.example.org/")][1:]
        )
        words = "3 records"
    else:
        place.write_bytes(data)
    with pytest.raises(RecipeError, match=words) as caught:
        gathered_sites([str(place)], AGENTS)
    assert "expected a WARC file of such responses" in str(caught.value) and "\n" not in str(caught.value)


def test_damage_within_a_file_is_counted_and_passed_over(tmp_path: Path) -> None:
    place = tmp_path / "r.warc.gz"
    write_site_file(place, [robots(f"https://h{n}.example.org", DENIES) for n in range(20)])
    data = place.read_bytes()
    middle = len(data) // 2
    place.write_bytes(data[:middle] + b"\xff" * 40 + data[middle + 40 :])
    sites = gathered_sites([str(place)], AGENTS)
    assert sites.num_unreadable >= 1
    assert kinds(sites, "https://h19.example.org/") == ["robots"]
    assert len(sites.hosts) >= 18
