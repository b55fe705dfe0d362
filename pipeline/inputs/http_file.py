"""A file on a web server, read as a seekable stream that outlives dropped connections and busy servers."""

from __future__ import annotations

import io
import itertools
import logging
import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    MaxRetryError,
    NewConnectionError,
    ProtocolError,
    ResponseError,
)

from lineage.recipe import whole_number
from lineage.secrets import redact_log, redacted, without_secrets
from pipeline.inputs.retries import Retries

_BUSY: Final = (408, 429, 500, 502, 503, 504)
_BUFFER_BYTES: Final = 1 << 20
_CONNECT_SECONDS: Final = 10.0
_READ_SECONDS: Final = 120.0
_REFUSED_HEAD: Final = (401, 403, 405, 501)
"""What answers a HEAD where a GET may be allowed: a presigned URL is signed for one method."""
_POOL = urllib3.PoolManager(maxsize=16)


def _without_queries(record: logging.LogRecord) -> bool:
    """urllib3 logs each request and retry with the whole query, which holds the credentials of a presigned
    URL."""
    redact_log(record)
    record.msg = re.sub(r"\?[^\s\"']*", "?…", record.msg)
    return True


for _name in ("urllib3.connectionpool", "urllib3.util.retry", "urllib3.poolmanager"):
    logging.getLogger(_name).addFilter(_without_queries)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpFacts:
    """A file's bytes and its version, as a server states them: its ETag, or else Last-Modified, as of
    Python's own server; "" if it states neither."""

    size: int
    version: str


def open_http(
    url: str,
    retries: Retries | None = None,
    shown: str | None = None,
    size: int | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> io.BufferedReader:
    """`url` as a stream. FileNotFoundError if the server says there is no such file, OSError if it stays out
    of reach or the file changes while it is read: their messages call it `shown`, by default the URL without
    credentials.

    `size` is what the file had when the run was planned. Data that end before it are a dropped connection;
    OSError if the server states another size or gives more. Without it, and where no answer states a size,
    the end of the connection is the end of the file.

    What stands before @ is sent as basic authentication. `headers` are sent with every request, but for what
    authorises to another host that an answer leads to."""
    return io.BufferedReader(HttpFile(url, retries or Retries(), shown, size, headers), _BUFFER_BYTES)


def http_size(url: str, retries: Retries | None = None, shown: str | None = None) -> int:
    """Bytes of the file at `url`; errors as of `open_http`, and OSError if the server does not state it."""
    return http_facts(url, retries, shown).size


def http_facts(url: str, retries: Retries | None = None, shown: str | None = None) -> HttpFacts:
    """What the server states of the file at `url`; errors as of `http_size`."""
    shown = shown or without_secrets(url)
    response = _request("HEAD", url, {}, retries or Retries(), shown=shown, allowed=_REFUSED_HEAD)
    length = response.headers.get("Content-Length", "")
    if response.status in _REFUSED_HEAD:
        response = _request("GET", url, {"Range": "bytes=0-0"}, retries or Retries(), shown=shown)
        response.close()
        length = response.headers.get("Content-Length", "")
        if response.status != 200:  # 416 where there is no first byte
            length = response.headers.get("Content-Range", "").rpartition("/")[2]
    size = whole_number(length)
    if size is None:
        raise OSError(f"{shown}: the server does not state the file's length (Content-Length is {length!r})")
    return HttpFacts(
        size=size, version=response.headers.get("ETag") or response.headers.get("Last-Modified", "")
    )


class HttpFile(io.RawIOBase):
    """The raw stream below `open_http`. A read after a dropped connection goes on by a Range request."""

    def __init__(
        self,
        url: str,
        retries: Retries,
        shown: str | None = None,
        planned: int | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._url, self._retries, self._headers = url, retries, headers
        self._shown = shown or without_secrets(url)
        self._position = 0
        self._size = self._planned = planned
        self._version: str | None = None
        self._response: urllib3.BaseHTTPResponse | None = None
        self._connect()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END and self._size is None:
            self._size = http_size(self._url, self._retries, self._shown)
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size or 0}[whence]
        if start + offset != self._position:
            self._disconnect()
            self._position = start + offset
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        for attempt in itertools.count(1):
            try:
                data = self._read_some(len(buffer))
                break
            except HTTPError as error:
                self._disconnect()
                if attempt > self._retries.attempts:
                    message = (
                        f"{self._shown}: reading broke off at byte {self._position}: {redacted(str(error))}"
                    )
                    raise OSError(message) from None
                time.sleep(self._retries.pause(attempt))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def _read_some(self, limit: int) -> bytes:
        response = self._response or self._connect()
        data: bytes = response.read(limit, decode_content=False) if response else b""
        if not data and self._size is not None and self._position < self._size:
            raise ProtocolError(f"the server gives nothing of the bytes up to {self._size}")
        if data and self._planned is not None and self._position + len(data) > self._planned:
            raise self._changed("more")
        return data

    def close(self) -> None:
        self._disconnect()
        super().close()

    def _disconnect(self) -> None:
        if self._response is not None:
            self._response.close()
            self._response = None

    def _connect(self) -> urllib3.BaseHTTPResponse | None:
        """A response whose next byte is the one at our position; None behind the end of the file."""
        if self._size is not None and self._position >= self._size:
            return None
        response = _request(
            "GET",
            self._url,
            {**self._headers, "Range": f"bytes={self._position}-"},
            self._retries,
            shown=self._shown,
        )
        if response.status == 416:
            response.close()
            return None
        _check_range(response, self._position, self._shown)
        skipped = self._position if response.status == 200 else 0
        self._check_version(response, skipped)
        while skipped:
            skipped -= len(response.read(min(skipped, _BUFFER_BYTES), decode_content=False)) or skipped
        self._response = response
        return response

    def _check_version(self, response: urllib3.BaseHTTPResponse, skipped: int) -> None:
        """Remember which file this is, or see that it is still the same one, and that which was planned."""
        size = _stated_size(response, self._position - skipped)
        if size is not None:
            version = f"{response.headers.get('ETag')} of {size} bytes"
            if self._version not in (None, version):
                response.close()
                raise OSError(f"{self._shown} changed while it was read: was {self._version}, is {version}")
            if self._planned not in (None, size):
                response.close()
                raise self._changed(f"{size:,}")
            self._size, self._version = size, version

    def _changed(self, size: str) -> OSError:
        return OSError(
            f"{self._shown} changed after this run was planned: it had {self._planned:,} bytes and has"
            f" {size}. Put back what it held and make the same call again, or run into a new output"
        )


class HttpRanges:
    """Reads ranges of the file at `url`, each by a request that states its end. Errors are those of `open_http`,
    and OSError if the file changes between two requests. Several threads may read at once."""

    def __init__(self, url: str, shown: str, retries: Retries, headers: Mapping[str, str]) -> None:
        self._url, self._shown, self._retries, self._headers = url, shown, retries, headers
        self._version: str | None = None

    def read(self, begin: int, length: int) -> bytes:
        """`length` bytes from `begin`, or those up to the file's end."""
        data = bytearray()
        attempt = 1
        while len(data) < length:
            before = len(data)
            try:
                is_end = self._read_on(data, begin + len(data), begin + length)
            except HTTPError as error:
                if len(data) > before:
                    attempt = 1  # it went on: attempts count without any byte gained
                if attempt > self._retries.attempts:
                    raise OSError(
                        f"{self._shown}: reading broke off at byte {begin + len(data)}: {redacted(str(error))}"
                    ) from None
                time.sleep(self._retries.pause(attempt) * random.uniform(0.5, 1.5))
                attempt += 1
                continue
            if is_end:
                break
        return bytes(data)

    def _read_on(self, data: bytearray, asked: int, end: int) -> bool:
        """Add what an answer gives of the bytes [asked, end) to `data`; whether the file ends there."""
        begin = asked
        response = _request(
            "GET",
            self._url,
            {**self._headers, "Range": f"bytes={begin}-{end - 1}"},
            self._retries,
            shown=self._shown,
        )
        try:
            if response.status == 416:
                return True
            _check_range(response, begin, self._shown)
            skipped = begin if response.status == 200 else 0
            size = _stated_size(response, begin - skipped)
            self._check_version(response, size)
            while skipped:
                skipped -= len(response.read(min(skipped, _BUFFER_BYTES), decode_content=False)) or skipped
            while begin < end:
                piece = response.read(min(end - begin, _BUFFER_BYTES), decode_content=False)
                if not piece:
                    break
                data += piece
                begin += len(piece)
            is_end = size is not None and begin >= size
            if begin == asked and not is_end:
                raise ProtocolError(f"the server gives nothing of the bytes from {begin}")
            return is_end
        finally:
            if response.status == 206:
                response.drain_conn()  # the connection serves the next range
            response.close()

    def _check_version(self, response: urllib3.BaseHTTPResponse, size: int | None) -> None:
        version = f"{response.headers.get('ETag')} of {size} bytes"
        if self._version not in (None, version):
            raise OSError(f"{self._shown} changed while it was read: was {self._version}, is {version}")
        self._version = version


def _check_range(response: urllib3.BaseHTTPResponse, begin: int, shown: str) -> None:
    """OSError where an answer of status 206 states another first byte than that at `begin`, or has several parts
    (RFC 9110, section 15.3.7), as that of a cache which mixes up ranges. Some servers state no range."""
    stated = response.headers.get("Content-Range", "")
    kind = response.headers.get("Content-Type", "")
    is_other = bool(stated) and not re.match(rf"bytes\s+{begin}-", stated)
    if response.status == 206 and (is_other or kind.startswith("multipart/")):
        response.close()
        raise OSError(
            f"{shown}: the server answers the bytes from {begin} with {stated or kind!r}: expected the range that was"
            " asked for; make the same call again later, or name a copy of the file"
        )


def _stated_size(response: urllib3.BaseHTTPResponse, start: int) -> int | None:
    """Bytes of the whole file, as an answer whose first byte is that at `start` states them. A server may
    answer a range by a piece of it (RFC 9110, section 15.3.7): then Content-Length is the piece's."""
    total = whole_number(response.headers.get("Content-Range", "").rpartition("/")[2])
    if response.status == 206 and total is not None:
        return total
    length = whole_number(response.headers.get("Content-Length", ""))
    return None if length is None else start + length


def _request(
    method: str,
    url: str,
    headers: dict[str, str],
    retries: Retries,
    *,
    shown: str,
    allowed: tuple[int, ...] = (),
) -> urllib3.BaseHTTPResponse:
    """The answer; OSError for another status than of success, or of those `allowed`. No error carries the
    URL, which may hold credentials: neither in its message nor as its cause."""
    policy = urllib3.Retry(
        total=retries.attempts,
        connect=retries.connects,
        backoff_factor=retries.backoff_seconds,
        backoff_max=retries.longest_seconds,
        backoff_jitter=retries.backoff_seconds,
        status_forcelist=_BUSY,
        allowed_methods=None,
    )
    bare, authorization = _without_user(url)
    try:
        response = _POOL.request(
            method,
            bare,
            headers={"Accept-Encoding": "identity", "User-Agent": "sluice", **authorization, **headers},
            preload_content=False,
            retries=policy,
            timeout=urllib3.Timeout(connect=_CONNECT_SECONDS, read=_READ_SECONDS),
        )
    except MaxRetryError as error:
        is_unconnected = isinstance(error.reason, (NewConnectionError, ConnectTimeoutError))
        what = "answers" if isinstance(error.reason, ResponseError) else "cannot be reached"
        attempts = 1 + (min(retries.attempts, retries.connects) if is_unconnected else retries.attempts)
        reason = redacted(str(error.reason))
        raise OSError(f"{shown}: the server {what}, after {attempts} attempts: {reason}") from None
    except HTTPError as error:
        raise OSError(f"{shown} cannot be requested: {redacted(str(error)).replace(bare, shown)}") from None
    if response.status not in (200, 206, 416, *allowed):
        response.close()
        error_type = FileNotFoundError if response.status in (404, 410) else OSError
        raise error_type(f"{shown}: the server answers {response.status} {response.reason or ''}".rstrip())
    return response


def _without_user(url: str) -> tuple[str, dict[str, str]]:
    """The URL without what stands before @, and that as a header. (urllib3 drops it on a redirect to another
    host.)"""
    scheme, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    if not at:
        return url, {}
    return f"{scheme}://{host}{slash}{path}", dict(urllib3.make_headers(basic_auth=unquote(user)))
