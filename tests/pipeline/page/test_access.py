"""Who is answered by the lineage page: the token, links, other pages, other hosts, proxies."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from lineage.ids import content_hash
from lineage.storage.folder import Folder
from pipeline.cli.main import main
from pipeline.page.guard import make_access
from tests.support.outputs.lineage_query import query
from tests.support.processes.served_page import Visitor, form_secret, served
from tests.support.stores.loopback import Handler, serving

DOC = "document/" + "0" * 32


@contextmanager
def listening(answer: bytes = b"<title>heard</title>") -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Another server on this host: its address, and the headers of each request that it was sent."""
    heard: list[dict[str, str]] = []

    class Listener(Handler):
        protocol_version = "HTTP/1.0"

        def answer(self) -> None:
            heard.append({"path": self.path, **{name.lower(): value for name, value in self.headers.items()}})
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(answer)

    with serving(Listener) as url:
        yield f"{url}/", heard


def test_without_the_token_nothing_is_shown(shared_page: str) -> None:
    address, base = shared_page.split("?", maxsplit=1)[0], Visitor(shared_page).base
    for place in (
        address,
        f"{address}?token=guess",
        base,
        f"{base}{DOC}",
        f"{base}sql?q=SELECT+1",
        f"{base}nothing",
    ):
        answer = requests.get(place, timeout=30)
        assert answer.status_code == 401 and "opened with its token" in answer.text, place
    assert base.split("/")[3] not in requests.get(address, timeout=30).text, "the path is told to nobody"


def test_a_deep_link_leads_into_the_page_and_nowhere_else(shared_page: str) -> None:
    for wanted, end in (("report", "/report"), (DOC, f"/{DOC}"), ("sql?q=SELECT 1", "/sql?q=SELECT+1")):
        answer = requests.get(shared_page, params={"to": wanted}, allow_redirects=False, timeout=30)
        assert answer.headers["Location"].endswith(end)
    for wanted in (
        "//evil.example",
        "https://evil.example",
        "../x",
        "report/..",
        f"{DOC}\r\nx: y",
        "\\\\evil.example",
    ):
        answer = requests.get(shared_page, params={"to": wanted}, allow_redirects=False, timeout=30)
        assert answer.headers["Location"].count("/") == 2 and "evil" not in answer.headers["Location"]


def test_a_link_with_the_token_opens_its_own_place(shared_page: str) -> None:
    token, base = shared_page.partition("token=")[2], Visitor(shared_page).base
    answer = requests.get(f"{base}search?q=page-1&token={token}", allow_redirects=False, timeout=30)
    assert answer.status_code == 302 and answer.headers["Location"].endswith("/search?q=page-1")


def test_a_link_asks_whoever_opens_it_for_the_token_once(shared_page: str) -> None:
    token, base = shared_page.partition("token=")[2], Visitor(shared_page).base
    session = requests.Session()
    asked = session.get(f"{base}purges?a=b", timeout=30)
    assert asked.status_code == 401 and 'value="purges?a=b"' in asked.text
    headers = {"Origin": "/".join(base.split("/")[:3])}
    form = {"to": "purges?a=b", "token": "guess"}
    assert session.post(f"{base}login", data=form, headers=headers, timeout=30).status_code == 401
    opened = session.post(f"{base}login", data={**form, "token": token}, headers=headers, timeout=30)
    assert opened.ok and opened.url.endswith("/purges?a=b") and "Purges" in opened.text
    for to in ("//evil.example", "https://evil.example/"):
        form = {"to": to, "token": token}
        answer = session.post(f"{base}login", data=form, headers=headers, allow_redirects=False, timeout=30)
        assert "evil" not in answer.headers["Location"]


def test_a_link_out_of_a_ticket_opens_for_who_has_the_page_open(shared_page: str, browser: Any) -> None:
    from selenium.webdriver.common.by import By

    browser.get(shared_page)
    base = browser.current_url
    with listening(f'<title>a ticket</title><a href="{base}purges">the purges</a>'.encode()) as (other, _):
        browser.get(
            other.replace("127.0.0.1", "localhost")
        )  # of another site, so a strict cookie stays at home
        browser.find_element(By.LINK_TEXT, "the purges").click()
        assert browser.find_element(By.TAG_NAME, "h1").text == "Purges"
        assert browser.current_url == f"{base}purges"


def test_token_and_path_are_the_same_at_every_start(made: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    places = []
    for _ in range(2):
        with served(made, "--token-file", str(file)) as address:
            visitor = Visitor(address)
            places.append((address.partition("token=")[2], visitor.base.split("/")[3]))
    assert places[0] == places[1] and file.read_text().strip() == places[0][0]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with served(made, "--base", "a/b") as address:
        assert Visitor(address).base.endswith("/a/b/")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--base", "../x"], "--base"),
        (["--base", "a//b"], "--base"),
        (["--public-url", "ftp://x/"], "--public-url"),
        (["--public-url", "https://x/y", "--base", "z"], "--base does not go with it"),
    ],
)
def test_a_wrong_option_is_refused(
    made: str, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["page", made, *arguments]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("content", ["short", "a token with spaces in it", ""])
def test_a_token_file_without_a_good_token_is_refused(
    made: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    (tmp_path / "token").write_text(content)
    os.chmod(tmp_path / "token", 0o600)
    assert main(["page", made, "--token-file", str(tmp_path / "token")]) == 2
    assert "expected at least 16" in capsys.readouterr().err


def test_a_token_file_that_others_can_read_is_refused(
    made: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("a" * 32)
    os.chmod(tmp_path / "token", 0o644)
    assert main(["page", made, "--token-file", str(tmp_path / "token")]) == 2
    assert "chmod 600" in capsys.readouterr().err


def test_a_session_is_of_one_token_and_ends() -> None:
    access = make_access(1, "x", None, None)
    session = access.session(now=1000.0)
    assert access.is_session(session, now=1000.0)
    assert not access.is_session(session, now=1000.0 + 31 * 24 * 3600)
    assert not make_access(1, "x", None, None).is_session(session, now=1000.0)
    for wrong in ("", ".", "9" * 20 + session[10:], session + "a", "9999999999." + session.partition(".")[2]):
        assert not access.is_session(wrong, now=1000.0)


def test_another_name_for_this_host_is_refused(shared_page: str) -> None:
    for headers in (
        {"Host": "attacker.example.org"},
        {"Host": "attacker.example.org", "X-Forwarded-Host": "127.0.0.1"},
    ):
        assert requests.get(shared_page, headers=headers, timeout=30).status_code == 403


def test_behind_a_proxy_it_is_served_under_the_one_host_that_was_named(made: str) -> None:
    with served(made, "--public-url", "https://data.example.org/lineage/", "--port", "0") as url:
        assert url.startswith("https://data.example.org/lineage/?token=")


def test_a_proxy_keeps_the_host_or_forwards_it(made: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    (tmp_path / "token").write_text("t" * 32)
    os.chmod(file, 0o600)
    with listening() as (other, _):
        port = other.rpartition(":")[2].strip("/")
    with served(
        made, "--public-url", "https://data.example.org/lineage/", "--port", port, "--token-file", str(file)
    ):
        here = f"http://127.0.0.1:{port}/lineage/"
        for headers in (
            {"Host": "data.example.org"},
            {"X-Forwarded-Host": "data.example.org", "X-Forwarded-Proto": "https"},
        ):
            answer = requests.get(
                f"{here}?token={'t' * 32}", headers=headers, allow_redirects=False, timeout=30
            )
            assert answer.status_code == 302 and "Secure" in answer.headers["Set-Cookie"]
            cookie = answer.headers["Set-Cookie"].partition(";")[0]
            shown = requests.get(here, headers={**headers, "Cookie": cookie}, timeout=30)
            assert shown.ok
            form = {
                "form_secret": form_secret(shown.text),
                "act": "put",
                "kind": "host",
                "value": "a.example",
            }
            for origin, status in (("https://data.example.org", 303), ("https://evil.example", 403)):
                answer = requests.post(
                    f"{here}basket",
                    data=form,
                    headers={**headers, "Cookie": cookie, "Origin": origin},
                    allow_redirects=False,
                    timeout=30,
                )
                assert answer.status_code == status
        for headers in (
            {"X-Forwarded-Host": "evil.example.org"},
            {"Host": "evil.example.org", "X-Forwarded-Host": "data.example.org"},
            {"X-Forwarded-Host": "data.example.org", "X-Forwarded-Proto": "gopher"},
        ):
            assert requests.get(here, headers=headers, timeout=30).status_code == 403


def test_another_page_changes_nothing(page: tuple[str, str]) -> None:
    address, out = page
    visitor = Visitor(address)
    form = {"act": "put", "kind": "host", "value": "web.example.org", "form_secret": visitor.secret}
    own = {"Origin": visitor.origin}
    for headers, fields in (
        ({"Origin": "https://attacker.example.org"}, form),
        ({}, form),
        (own, {**form, "form_secret": ""}),
        (own, {**form, "form_secret": "a" + form["form_secret"][1:]}),
        (own, {name: value for name, value in form.items() if name != "form_secret"}),
    ):
        target = f"{visitor.base}basket"
        assert visitor.session.post(target, data=fields, headers=headers, timeout=30).status_code == 403
    assert "Empty." in visitor.get("basket").text
    assert query(Folder(out), "SELECT count(*) FROM purges").rows == [(0,)]


def test_a_page_is_read_only_where_that_was_asked_for(made: str) -> None:
    with served(made, "--read-only") as address:
        visitor = Visitor(address)
        front = visitor.get()
        assert front.ok and "basket" not in front.text.lower()
        for place, form in (
            ("basket", {"act": "put", "kind": "host", "value": "a.org"}),
            ("basket/plan", {}),
        ):
            answer = visitor.post(place, **form)
            assert answer.status_code == 409 and "--read-only" in answer.text


def test_two_pages_at_once_do_not_log_each_other_out(made: str, shared_page: str) -> None:
    with served(made) as second:
        session = requests.Session()
        bases = [session.get(address, timeout=30).url for address in (shared_page, second)]
        assert [session.get(base, timeout=30).status_code for base in (*bases, *bases)] == [200] * 4
        assert len({cookie.name for cookie in session.cookies}) == 2, (
            "one server's cookie took the other's place"
        )


def test_no_other_port_is_sent_what_opens_the_page(shared_page: str) -> None:
    """Browsers send a cookie to every port of its host: only its path keeps it from the servers of others."""
    session = requests.Session()
    base = session.get(shared_page, timeout=30).url
    token = shared_page.partition("token=")[2]
    secrets = {token, *(str(cookie.value) for cookie in session.cookies)}
    with listening() as (other, heard):
        for path in ("", "search?q=a", "purges"):
            assert session.get(other + path, headers={"Referer": base}, timeout=30).ok
        sent = json.dumps([{**request, "referer": ""} for request in heard])
    assert len(heard) == 3 and not [secret for secret in secrets if secret in sent]
    stolen = requests.get(base, cookies={"sluice": token}, timeout=30)
    assert stolen.status_code == 401, "the path alone, or the token as a cookie, opens nothing"


def test_a_browser_keeps_two_pages_open_and_tells_a_third_server_nothing(
    made: str, shared_page: str, browser: Any
) -> None:
    from selenium.webdriver.common.by import By

    with served(made) as second, listening() as (other, heard):
        browser.get(shared_page)
        first = browser.current_url
        browser.get(second)
        browser.get(other)
        assert browser.title == "heard"
        browser.get(first)
        assert browser.find_element(By.TAG_NAME, "h1").text == "The corpus"
    assert heard and not [request for request in heard if "cookie" in request]
    assert first.split("/")[3] not in json.dumps(heard), "the path that keeps the cookie is not told either"


def test_every_answer_bears_the_headers_that_keep_others_out(shared_page: str) -> None:
    visitor = Visitor(shared_page)
    for place in ("", "sql", "purges", "basket", DOC, "nothing", "static/page.js", "report"):
        headers = visitor.get(place).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy, place
        assert "unsafe-eval" not in policy and "script-src 'unsafe-inline'" not in policy, place
        assert (
            headers["X-Content-Type-Options"] == "nosniff" and headers["Referrer-Policy"] == "same-origin"
        ), place
    for name in ("../site.py", "..%2fsite.py", "licences", "nothing.js"):
        assert visitor.get(f"static/{name}").status_code == 404


def test_what_is_shipped_from_others_is_what_they_published_with_its_licence() -> None:
    """By the digests of the packages htmx.org 2.0.11 and uplot 1.6.32 on npm."""
    static = Path(__file__).parents[3] / "pipeline" / "page" / "static"
    for name, digest, licence in (
        ("htmx.min.js", "98d7746a22167eba8e4682122b18066b", "htmx.txt"),
        ("uplot.min.js", "ea2d16ff65797375a846049c0f0a17f6", "uplot.txt"),
        ("uplot.css", "70ead7542eab83ef6ff4269c1f139e3c", "uplot.txt"),
    ):
        assert content_hash((static / name).read_bytes()).hex() == digest, name
        assert "ermission" in (static / "licences" / licence).read_text(), licence
