"""`[rights]`: which signals of publishers are recorded, which reject a page, and where robots.txt files are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lineage.recipe import RecipeError, key
from stages.rights.signal import KINDS

AGENTS: Final = ("CCBot", "GPTBot", "Google-Extended", "ClaudeBot", "Applebot-Extended", "meta-externalagent")
"""Product tokens by which crawls for models are addressed."""
DENIABLE: Final = tuple(name for name, kind in KINDS.items() if kind.can_be_denied)


@dataclass(frozen=True, slots=True, kw_only=True)
class RightsTable:
    """`[rights]`: signals of publishers about the use of their pages."""

    record: tuple[str, ...] = key(
        tuple(KINDS),
        choices=tuple(KINDS),
        help="signals that are looked for and recorded in the columns signals, training_use and training_use_by"
        " of documents; none: no such columns",
    )
    deny: tuple[str, ...] = key(
        (),
        choices=DENIABLE,
        help="signals that reject a page (rule rights.<signal>); they must be recorded",
    )
    agents: tuple[str, ...] = key(
        AGENTS,
        help="product tokens whose groups of robots.txt count; '*' makes the group for all crawlers one of them",
    )
    robots: tuple[str, ...] = key(
        (),
        is_path=True,
        help="WARC files of responses for /robots.txt and /.well-known/tdmrep.json (Common Crawl's robotstxt"
        " files), or folders of them; of several responses of a host the newest counts",
    )


def check_rights(table: RightsTable) -> None:
    """RecipeError where a signal is denied and not recorded, or a product token cannot be one."""
    missing = [kind for kind in table.deny if kind not in table.record]
    if missing:
        raise RecipeError(
            f"rights.deny names {missing[0]!r}, which rights.record does not: what rejects a page is recorded, so"
            f" add it to rights.record",
            "rights.deny",
        )
    wrong = [
        agent
        for agent in table.agents
        if not agent or any(c.isspace() or c in "/*" for c in agent.strip("*"))
    ]
    if wrong:
        raise RecipeError(
            f"rights.agents names {wrong[0]!r}: expected a product token such as GPTBot, or '*'",
            "rights.agents",
        )
