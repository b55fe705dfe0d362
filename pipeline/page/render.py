"""The page's templates: everything that they show is escaped, and what comes from the web steers nothing."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Final

import jinja2

from lineage.ids import content_hash
from lineage.purge.plan import Role
from pipeline.report.data import human_value
from pipeline.report.examples import web_link
from pipeline.report.render import escaping
from pipeline.terminal import counted, visible

_ROLES: Final[dict[Role, tuple[str, str]]] = {
    "target": ("named", "named"),
    "twin": ("suppressed copy", "suppressed copies"),
    "kept_copy": ("kept copy", "kept copies"),
}
"""What a purge takes a document as, in words: of one, of several."""

# Control characters but line ends and tabs, and what turns the direction of writing beyond its own text
# (Unicode Standard Annex 9: embeddings, overrides, isolates). Joiners stay: Persian and the scripts of India
# need them.
_STEERING: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufff9-\ufffb\ud800-\udfff]"
)


def harmless(text: str) -> str:
    """A text of several lines with every character that steers what stands around it as an escape."""
    return _STEERING.sub(
        lambda found: found[0].encode("unicode_escape", "surrogatepass").decode("ascii"), text
    )


def basket_button(kind: str, value: str) -> str:
    """The id of the button that puts something into the basket, or takes it out again: an address that ends
    with it gives that button the focus."""
    return f"basket-{content_hash(f'{kind}:{value}'.encode('utf-8', 'replace')).hex()[:8]}"


def figure(written: str) -> str:
    """A number of a CSV to four places; what is none, as it stands."""
    try:
        return f"{float(written):.4g}"
    except ValueError:
        return visible(written)


def mixture(weights: str | None) -> str:
    """The shares of a mixture, a JSON object of them by source, as percentages; else what stands there."""
    try:
        shares = json.loads(weights or "")
        return ", ".join(f"{visible(source)} {100 * share:.4g}%" for source, share in shares.items())
    except (ValueError, TypeError, AttributeError):
        return visible(weights or "")


def environment() -> jinja2.Environment:
    """The templates with their filters: `line` for names and URLs, `harmless` for texts, `number` and `value`
    for figures, `of` for counted words, `role` for what a purge takes a document as and `in_role` for how many
    it takes so, `steps` for the first and the last of some, `web_link` for the target of a link, `figure` for
    what a CSV has, `mixture` for the weights of a stretch of training, `took` for seconds as h:mm:ss."""
    made = escaping("pipeline.page", "templates")
    made.filters |= {
        "line": lambda text: "" if text is None else visible(str(text)),
        "harmless": harmless,
        "value": human_value,
        "web_link": web_link,
        "percent": lambda share: f"{100 * share:.2f}%",
        "role": lambda role: _ROLES[role][0],
        "in_role": lambda num, role: counted(num, *_ROLES[role]),
        "steps": lambda first, last: f"step {first:,}" if first == last else f"steps {first:,} to {last:,}",
        "figure": figure,
        "mixture": mixture,
        "took": lambda seconds: str(timedelta(seconds=round(seconds))),
        "short": lambda hexes: hexes[:12],
        "basket_button": basket_button,
    }
    return made
