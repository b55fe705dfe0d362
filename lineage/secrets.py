"""Credentials in URLs: what is written down, printed or logged names a place, and never the keys to it.

Taken out are `user:password@`, the parameters of presigned URLs (S3, CloudFront, Google, Azure), and any
parameter whose name says that it holds a token, key, password or signature. What is left names the same file
after the next signing."""

from __future__ import annotations

import logging
import re
from typing import Any, Final
from urllib.parse import unquote_plus

_SECRET_NAMES: Final = frozenset({
    "apikey", "auth", "authorization", "awsaccesskeyid", "credential", "credentials", "googleaccessid", "jwt", "key",
    "pass", "passwd", "pwd", "session", "sessionid", "sig",
})  # fmt: skip
_SECRET_ENDINGS: Final = (
    "token", "secret", "password", "signature", "apikey", "api_key", "api-key", "accesskey", "access_key", "access-key",
    "accesskeyid", "access_key_id", "secretkey", "secret_key", "secret-key", "credential",
)  # fmt: skip
_SIGNED_PREFIXES: Final = ("x-amz-", "x-goog-", "x-oss-", "x-cos-")
"""Of presigned requests: date, lifetime and signature change together."""
_SIGNATURES: Final = frozenset({"signature", "sig"})
_SIGNED_WITH: Final = frozenset({
    "expires", "policy", "key-pair-id", "awsaccesskeyid", "googleaccessid",  # CloudFront, old S3 and Google
    "se", "sip", "ske", "skoid", "sks", "skt", "sktid", "skv", "sp", "spr", "sr", "srt", "ss", "st", "sv",  # Azure
})  # fmt: skip
"""Parameters that are part of a signature where the URL has one, and mean nothing in particular elsewhere."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>\\]+")
_PARAMETER = re.compile(r"(?<=[?&])([A-Za-z0-9_.%-]+)=[^&\s'\"<>\\]+")
_REFERENCE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_PUNCTUATION: Final = ".,:;!)]}"


def without_secrets(url: str) -> str:
    """`url` without its credentials; any other text, and a URL that holds none, is returned as it is."""
    scheme, found, rest = url.partition("://")
    if not found:
        return url
    end = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
    if "@" in rest[:end]:
        rest = rest[:end].rpartition("@")[2] + rest[end:]
    elif _is_cut_password(rest[:end]) and "@" in rest:
        rest = rest.rpartition("@")[2]
    before, fragment_mark, fragment = rest.partition("#")
    place, query_mark, query = before.partition("?")
    shown_query, shown_fragment = _without_secret_parameters(query), _without_secret_parameters(fragment)
    # A mark goes only with what stood behind it: names in object stores may hold an empty `?#`.
    return "".join(
        (
            scheme,
            found,
            place,
            query_mark if shown_query or not query else "",
            shown_query,
            fragment_mark if shown_fragment or not fragment else "",
            shown_fragment,
        )
    )


def _is_cut_password(authority: str) -> bool:
    """Whether what should be host and port is a user and the first part of a password that holds a slash."""
    _, colon, port = authority.rpartition(":")
    return bool(colon) and not port.isdigit() and not authority.endswith("]")


def _without_secret_parameters(query: str) -> str:
    parameters = query.split("&")
    names = [unquote_plus(parameter.partition("=")[0]).lower() for parameter in parameters]
    signed = not _SIGNATURES.isdisjoint(names)
    return "&".join(
        parameter
        for name, parameter in zip(names, parameters, strict=True)
        if not (
            ("=" in parameter and is_secret(name)) or (signed and name in _SIGNED_WITH) or "${" in parameter
        )
    )


def holds_secrets(url: str) -> bool:
    """Whether credentials themselves stand in `url`. A reference such as `${SLUICE_SECRET_LOGIN}` is none."""
    scheme, found, rest = url.partition("://")
    if not found:
        return False
    user, at, place = rest.rpartition("@") if "@" in rest.partition("?")[0] else ("", "", rest)
    if at and not _REFERENCE.fullmatch(user.rpartition(":")[2]):
        return True
    before, mark, query = f"{scheme}{found}{place}".partition("?")
    kept = [
        parameter for parameter in query.split("&") if not _REFERENCE.fullmatch(parameter.rpartition("=")[2])
    ]
    left = before + (mark if any(kept) else "") + "&".join(kept)
    return without_secrets(left) != left


def is_secret(parameter: str) -> bool:
    """Whether a parameter of this name holds a credential, or belongs to one."""
    name = parameter.lower()
    return name in _SECRET_NAMES or name.endswith(_SECRET_ENDINGS) or name.startswith(_SIGNED_PREFIXES)


def redacted(text: str) -> str:
    """`text` with the credentials of every URL in it taken out, and of every query that stands there without
    one."""
    text = _URL.sub(_redacted_url, text)
    return _PARAMETER.sub(
        lambda found: f"{found[1]}=…" if is_secret(unquote_plus(found[1])) else found[0], text
    )


def _redacted_url(found: re.Match[str]) -> str:
    url = found[0].rstrip(_PUNCTUATION)
    return without_secrets(url) + found[0][len(url) :]


def redact_log(record: logging.LogRecord) -> bool:
    """A filter for loggers of libraries, which write down whole addresses: lets every record pass,
    redacted."""
    record.msg, record.args = redacted(record.getMessage()), None
    if record.exc_info:
        record.exc_text = redacted(logging.Formatter().formatException(record.exc_info))
    return True


def recordable(plain: Any) -> Any:
    """Plain values (of a recipe, say) as they may be written down: every string without credentials."""
    if isinstance(plain, str):
        return without_secrets(plain)
    if isinstance(plain, dict):
        return {recordable(name): recordable(value) for name, value in plain.items()}
    return [recordable(value) for value in plain] if isinstance(plain, (list, tuple)) else plain
