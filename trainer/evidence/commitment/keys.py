"""What a commitment is asked for: a URL in its normal form, a registered domain, or a clean text by its BLAKE3-128; and
the keyed hash that a leaf has for it."""

from __future__ import annotations

from hashlib import sha256
from typing import Final, Literal, get_args

from lineage.ids import text_hash
from lineage.pages import named_host, normalise_url, registered_domain
from lineage.recipe import RecipeError

Kind = Literal["url", "domain", "text"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
KEY_RULE: Final = (
    "SHA-256 of 'sluice key 1', a zero byte, the 32 bytes of key, kind, a zero byte and the subject in UTF-8; the"
    " subject of a url is its normal form, of a domain the registered domain, of a text the first 32 hex digits of its"
    " BLAKE3"
)
"""How the key of a leaf is made, as a commitment says it."""


def key_of(run_key: bytes, kind: Kind, subject: str) -> bytes:
    """The 32 bytes under which a leaf lies."""
    name = subject.encode("utf-8", "surrogatepass")
    return sha256(b"sluice key 1\0" + run_key + kind.encode() + b"\0" + name).digest()


def url_subject(url: str) -> str:
    """The normal form of a URL."""
    return normalise_url(url)


def domain_subject(name: str) -> str:
    """The registered domain that a person names. RecipeError for what is none."""
    host = named_host(name)
    domain = None if host is None else registered_domain(host)
    if domain is None:
        raise RecipeError(f"--domain {name!r}: expected a registered domain, as example.org")
    if domain != host:
        raise RecipeError(
            f"--domain {name!r}: it is a host of {domain}, and readings are counted by registered domain: give that"
        )
    return domain


def text_subjects(text: str) -> list[str]:
    """The hash of a text as it is, and as most clean texts are: without the mark of its encoding in front, with line
    feeds alone, and without a line end behind the last line."""
    plain = text.removeprefix("\ufeff").replace("\r\n", "\n")
    texts = [text, text.removesuffix("\n").removesuffix("\r"), plain, plain.removesuffix("\n")]
    return list(dict.fromkeys(text_hash(each).hex() for each in texts))
