"""A page that takes long: its head comes at once, to a browser alone, and the rest behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestClient, TestServer

from pipeline.page.waiting import waiting
from tests.support.processes.served_page import Visitor

VISIT = {"Sec-Fetch-Mode": "navigate"}
HEAD = '<h1>Sluice</h1><main id="main"><p class="waiting">Working… <!-- here --></p></main>'


def ask(
    handler: Callable[[asyncio.Event], Awaitable[web.Response]],
    headers: dict[str, str],
    *,
    reads_head: bool,
    path: str = "/page",
) -> tuple[int, str, str]:
    """(status, head, rest) of a page whose handler may wait until the head was read."""

    async def visit() -> tuple[int, str, str]:
        seen = asyncio.Event()
        app = web.Application(middlewares=[waiting(lambda _: HEAD)])

        async def answer_it(_request: web.Request) -> web.Response:
            return await handler(seen)

        app.router.add_get(path, answer_it)
        async with TestClient[web.Request, web.Application](TestServer(app)) as client:
            assert isinstance(client.session, ClientSession)
            if not reads_head:
                seen.set()
            async with client.get(path, headers=headers, allow_redirects=False) as answer:
                head = await answer.content.readuntil(b"</i>") if reads_head else b""
                seen.set()
                return answer.status, head.decode(), (await answer.read()).decode()

    return asyncio.run(visit())


async def found(seen: asyncio.Event) -> web.Response:
    await seen.wait()
    return web.Response(text='<h1>Sluice</h1><main id="main"><p>found</p></main>', content_type="text/html")


async def led(seen: asyncio.Event) -> web.Response:
    await seen.wait()
    raise web.HTTPFound("/document/1?a=1&b=2")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.page.waiting.PATIENCE", 0.0)


@pytest.mark.usefixtures("impatient")
def test_the_head_comes_before_the_page_is_there() -> None:
    status, head, rest = ask(found, VISIT, reads_head=True)
    assert status == 200 and head == f"{HEAD.partition('<!--')[0]}<i>1 s</i>"
    assert rest.strip().endswith("</p><p>found</p></main>") and "Sluice" not in rest


@pytest.mark.usefixtures("impatient")
def test_a_page_that_leads_on_does_so_behind_its_head() -> None:
    status, _, rest = ask(led, VISIT, reads_head=True)
    place = "/document/1?a=1&amp;b=2"
    assert status == 200 and f'<meta http-equiv="refresh" content="0;url={place}">' in rest


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("headers", "path"), [({}, "/page"), (VISIT, "/report"), (VISIT, "/sql.csv")])
def test_whoever_is_no_browser_at_a_page_gets_one_answer(headers: dict[str, str], path: str) -> None:
    assert ask(led, headers, reads_head=False, path=path)[0] == 302
    assert ask(found, headers, reads_head=False, path=path)[2].count("Sluice") == 1


def test_a_page_that_is_there_in_time_has_its_own_status() -> None:
    assert ask(led, VISIT, reads_head=False)[0] == 302


@pytest.mark.usefixtures("own_notes")
def test_the_head_is_that_of_every_page(shared_page: str) -> None:
    visitor = Visitor(shared_page)
    page = visitor.session.get(f"{visitor.base}search?q=words:the", headers=VISIT, timeout=60).text
    assert page.count('<main id="main">') == 1 and page.count("</html>") == 1
