"""A page that takes long is answered at once: its head and a line that counts the seconds, and the rest when it
is there.

Only a browser that goes to a page gets it so. Whoever else asks, a script say, gets one answer with its status."""

from __future__ import annotations

import asyncio
import html
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web

from pipeline.page.guard import HEADERS, Handler

PATIENCE: Final = 0.7
"""Seconds that a page may take before its head is sent without it."""
_MAIN: Final = '<main id="main">'
_HERE: Final = "<!-- here -->"
_WHOLE: Final = ("/report", "/sql.csv", "/metrics.json")
"""What is no page of ours, although a browser goes to it."""


def waiting(head: Callable[[web.Request], str | None]) -> Any:
    """A middleware that sends the `head` of a page that is not there in time: all that stands before its main
    part and in it `<!-- here -->`; None where the request is for none of our pages."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not _is_visit(request):
            return await handler(request)
        answer = asyncio.ensure_future(handler(request))
        await asyncio.wait({answer}, timeout=PATIENCE)
        page = None if answer.done() else head(request)
        if page is None:
            return await answer
        return await _stream(request, page.partition(_HERE)[0], answer)

    return middleware


def _is_visit(request: web.Request) -> bool:
    return (
        request.method == "GET"
        and request.headers.get("Sec-Fetch-Mode") == "navigate"
        and not request.path.endswith(_WHOLE)
    )


async def _stream(
    request: web.Request, head: str, answer: asyncio.Future[web.StreamResponse]
) -> web.StreamResponse:
    response = web.StreamResponse(headers=HEADERS)
    response.content_type, response.charset = "text/html", "utf-8"
    # Whoever goes away ends no work that others may wait for; an error of it is then nobody's.
    answer.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        await response.prepare(request)
        await response.write(head.encode())
        seconds = 0
        while not answer.done():
            seconds += 1
            await response.write(f"<i>{seconds} s</i>\n".encode())
            await asyncio.wait({answer}, timeout=1.0)
        await response.write(b"</p>" + await _rest(answer))
        await response.write_eof()
    except ConnectionError:
        pass
    return response


async def _rest(answer: asyncio.Future[web.StreamResponse]) -> bytes:
    """What comes behind the head: the main part of the page and all that follows it."""
    try:
        page = await answer
    except web.HTTPRedirection as led:
        place = html.escape(led.headers["Location"])
        return (
            f'<meta http-equiv="refresh" content="0;url={place}"><p><a href="{place}">Go on</a></p>'.encode()
        )
    assert isinstance(page, web.Response) and page.text is not None
    return page.text.partition(_MAIN)[2].encode("utf-8", "replace")
