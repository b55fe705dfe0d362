"""Who is answered: whoever has the page's token, from the page itself, under the address that it is served
at.

The token of the address that is printed becomes a cookie that no other site can send. Browsers send a cookie
to every port of a host: so this one has its port in its name, and a path that no other server has. A request
is refused unless its Host is the address served (so no other name can be bound to it) and, where it changes
something, its Origin too and the secret of the form that it comes from. Everything shown is escaped; the page
loads its own files and nothing else."""

from __future__ import annotations

import base64
import hmac
import os
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from aiohttp import web

from lineage.recipe import RecipeError
from pipeline.report.render import escaping

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self';"
    " style-src-attr 'unsafe-inline'; img-src 'self' data:; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
ALONE: Final = {
    **HEADERS,
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'",
}
"""Headers of a page that has its style sheet in it, as the report has."""

FORM_SECRET: Final = web.RequestKey("form_secret", str)
"""Where a request that was let in bears the secret of its session's forms."""

_SESSION_SECONDS: Final = 30 * 24 * 3600
_LEAST_TOKEN: Final = 16
_RETRIED: Final = "from-a-link"
_BASE: Final = re.compile(r"/?[A-Za-z0-9._~-]+(/[A-Za-z0-9._~-]+)*/?")
_FOREIGN: Final = re.compile(r"(^|/)\.\.?(/|$)|//|\\|[\x00-\x20\x7f]")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where the page is served and what opens it: `address` as host:port on loopback, `base` the path that
    every page lies below, with a slash at both ends. `public`: the origin at which a proxy serves it too
    (https://host), or None."""

    address: str
    base: str
    token: str = field(repr=False)
    public: str | None = None

    @property
    def hosts(self) -> frozenset[str]:
        """What a request's Host may be."""
        own = {self.address, self.address.replace("127.0.0.1", "localhost")}
        return frozenset(own | ({urlsplit(self.public).netloc} if self.public else set()))

    @property
    def origins(self) -> frozenset[str]:
        """What the Origin of a request that changes something may be."""
        own = {f"http://{self.address}", f"http://{self.address.replace('127.0.0.1', 'localhost')}"}
        return frozenset(own | ({self.public} if self.public else set()))

    @property
    def url(self) -> str:
        """What a person opens: the token is in it."""
        return f"{self.public}{self.base}?token={self.token}" if self.public else self._local_url

    @property
    def _local_url(self) -> str:
        return f"http://{self.address}/?token={self.token}"

    @property
    def cookie(self) -> str:
        """The cookie's name keeps servers apart that a browser holds cookies of."""
        return f"sluice-{self.address.rpartition(':')[2]}"

    def _sign(self, *words: str) -> str:
        digest = hmac.digest(self.token.encode(), "\0".join(words).encode(), "sha256")
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def session(self, now: float) -> str:
        """The cookie of somebody who has given the token."""
        ends = str(int(now) + _SESSION_SECONDS)
        return f"{ends}.{self._sign('session', self.base, ends)}"

    def is_session(self, given: str, now: float) -> bool:
        """Whether a cookie is one that we gave, and holds yet."""
        ends, _, signature = given.partition(".")
        signed = hmac.compare_digest(signature.encode(), self._sign("session", self.base, ends).encode())
        return signed and ends.isdecimal() and now < int(ends)

    def form_secret(self, session: str) -> str:
        """What every form of this session's pages bears, and no other site can read."""
        return self._sign("form", session)

    def is_token(self, given: str) -> bool:
        """Whether it is the page's token."""
        return hmac.compare_digest(given.encode(), self.token.encode())


def make_access(port: int, base: str | None, token_file: str | None, public_url: str | None) -> Access:
    """Where a page on `port` of loopback is served. Without a `token_file` the token is a new one, and the
    path too unless it is given; with one both are the same at every start. RecipeError for a value that is
    none."""
    token = secrets.token_urlsafe(24) if token_file is None else read_token(token_file)
    public = None
    if public_url is not None:
        parts = urlsplit(public_url)
        if base is not None:
            raise RecipeError("--public-url has the path of the page, so --base does not go with it")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise RecipeError(
                f"--public-url {public_url!r}: expected where a proxy serves the page, as in"
                f" https://data.example.org/lineage/"
            )
        public, base = f"{parts.scheme}://{parts.netloc}", parts.path.strip("/")
    if base is None:
        made = secrets.token_urlsafe(12)
        if token_file is not None:
            made = base64.urlsafe_b64encode(hmac.digest(token.encode(), b"path", "sha256")).decode()[:16]
        base = made
    if not _BASE.fullmatch(base) or _FOREIGN.search(base):
        what = "--base" if public_url is None else "the path of --public-url"
        raise RecipeError(f"{what} {base!r}: expected a path of letters, digits and . _ ~ -, as in /lineage/")
    return Access(address=f"127.0.0.1:{port}", base=f"/{base.strip('/')}/", token=token, public=public)


def read_token(path: str) -> str:
    """The token in a file that only its owner may read; it is made with a new one where there is none.
    RecipeError for a file that others can read, or that holds no token."""
    file = Path(path)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    except OSError as error:
        raise RecipeError(f"--token-file {path} cannot be made: {error}") from error
    else:
        with os.fdopen(descriptor, "w") as new:
            new.write(secrets.token_urlsafe(24) + "\n")
    try:
        if file.stat().st_mode & 0o077:
            raise RecipeError(
                f"--token-file {path}: others can read it, and it opens the page: chmod 600 {path}"
            )
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"--token-file {path} cannot be read: {error}") from error
    if len(token) < _LEAST_TOKEN or not re.fullmatch(r"[A-Za-z0-9_.~-]+", token):
        raise RecipeError(
            f"--token-file {path}: expected at least {_LEAST_TOKEN} letters, digits and . _ ~ -; a file that"
            " is not there yet is made with a good one"
        )
    return token


def guard(access: Access) -> Any:
    """A middleware that refuses what does not come from the page itself, opened by somebody who has the
    token."""
    environment = escaping("pipeline.page", "templates")
    style = escaping("pipeline.report", ".").get_template("style.css").render()

    def asked_for(status: int, template: str, **values: Any) -> web.Response:
        html = environment.get_template(f"{template}.html").render(style=style, **values)
        return web.Response(text=html, status=status, content_type="text/html", headers=ALONE)

    def login(request: web.Request, wrong: str = "") -> web.Response:
        below = request.path.startswith(access.base)
        to = _place(request, access.base) if below else ""
        if request.path.endswith("/login"):
            to = ""
        # The path of the pages is told to nobody who has not got it, or the token.
        return asked_for(
            401, "login", action=f"{access.base}login" if below else "/login", to=to, wrong=wrong
        )

    def opened(request: web.Request, to: str) -> web.Response:
        answer = web.HTTPFound(access.base + to, headers=HEADERS)
        is_safe = (
            access.public is not None and access.public.startswith("https:") and _is_public(request, access)
        )
        answer.set_cookie(
            access.cookie,
            access.session(time.time()),
            path=access.base,
            max_age=_SESSION_SECONDS,
            httponly=True,
            samesite="Strict",
            secure=is_safe,
        )
        raise answer

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.host not in access.hosts or not _forwarded_as(request, access):
            raise web.HTTPForbidden(
                text="refused: this page is served on loopback only (behind a proxy: --public-url)",
                headers=HEADERS,
            )
        if request.method not in ("GET", "HEAD") and request.headers.get("Origin") not in access.origins:
            raise web.HTTPForbidden(text="refused: the request comes from another page", headers=HEADERS)
        if request.method == "POST" and request.path in ("/login", f"{access.base}login"):
            form = await request.post()
            if access.is_token(str(form.get("token", "")).strip()):
                opened(request, _harmless(str(form.get("to", ""))))
            return login(request, "That is not the token.")
        given = request.query.get("token")
        if given is not None and access.is_token(given):
            # A deep link: whoever has the token may be led to any place of the page, and nowhere else.
            below = request.path.startswith(access.base) and len(request.path) > len(access.base)
            opened(request, _place(request, access.base) if below else _harmless(request.query.get("to", "")))
        session = request.cookies.get(access.cookie, "")
        if not access.is_session(session, time.time()):
            if _is_from_a_link(request, access):
                return asked_for(
                    401, "from_a_link", to=access.base + _place(request, access.base, retried=True)
                )
            return login(request)
        if _RETRIED in request.query:
            raise web.HTTPFound(access.base + _place(request, access.base), headers=HEADERS)
        request[FORM_SECRET] = access.form_secret(session)
        if request.method == "POST":
            given = request.headers.get("X-Form-Secret") or str((await request.post()).get("form_secret", ""))
            if not hmac.compare_digest(given.encode(), request[FORM_SECRET].encode()):
                raise web.HTTPForbidden(
                    text="refused: the form is not of this page: load it again", headers=HEADERS
                )
        return await handler(request)

    return middleware


def _is_public(request: web.Request, access: Access) -> bool:
    """Whether the request came through the proxy."""
    host = urlsplit(access.public or "").netloc
    return host in (request.host, request.headers.get("X-Forwarded-Host"))


def _forwarded_as(request: web.Request, access: Access) -> bool:
    """Whether what a proxy says of the request is what it is set up for."""
    if access.public is None:
        return True
    parts = urlsplit(access.public)
    host = request.headers.get("X-Forwarded-Host", parts.netloc)
    scheme = request.headers.get("X-Forwarded-Proto", parts.scheme)
    return host == parts.netloc and scheme == parts.scheme


def _is_from_a_link(request: web.Request, access: Access) -> bool:
    """Whether another site's link led here: no cookie comes with it, whether or not there is one. The page
    that answers goes on to the same place by itself, and then it comes."""
    return (
        request.method == "GET"
        and request.path.startswith(access.base)
        and request.headers.get("Sec-Fetch-Site") == "cross-site"
        and request.headers.get("Sec-Fetch-Mode") == "navigate"
        and _RETRIED not in request.query
    )


def _place(request: web.Request, base: str, *, retried: bool = False) -> str:
    """The place below `base` that a request is for, without what opens it."""
    query = [(name, value) for name, value in request.query.items() if name not in ("token", _RETRIED)]
    query += [(_RETRIED, "1")] if retried else []
    path = request.rel_url.raw_path.removeprefix(base)
    return path + ("?" + "&".join(f"{quote(name)}={quote(value)}" for name, value in query) if query else "")


def _harmless(place: str) -> str:
    """A place below the base, as a link or form gives it; the front page for what would lead elsewhere."""
    path = place.partition("?")[0]
    return (
        ""
        if place.startswith("/") or ":" in path or _FOREIGN.search(path) or re.search(r"[\r\n]", place)
        else place
    )
