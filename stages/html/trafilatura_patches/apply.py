"""Applies the patches of trafilatura 2.3.1: texts are equal to the last character, in three fifths of the
time where it favours precision.

No decision of trafilatura changes: a page is loaded more directly (`loading`), the XPath expressions do less
work for each element (`xpaths`), readability, its second extractor, runs only where its result can matter
(`readability`), and in linear time elements are deleted (`deleting`), counted (`counting`) and stripped
(`stripping`), texts joined (`appending`), composed (`composing`) and searched (`patterns`), readability's
article is cleaned (`cleaning`), and its third extractor judges paragraphs (`paragraphs`)."""

from __future__ import annotations

import functools
import importlib.metadata
from typing import Final

VERSION: Final = "2.3.1"
"""The one release that the patches were written for and compared with."""


class WrongVersionError(RuntimeError):
    """Another release of trafilatura is installed."""


def check_version(installed: str) -> None:
    """WrongVersionError unless the patches were written for this release."""
    if installed != VERSION:
        raise WrongVersionError(
            f"trafilatura {installed} is installed, and the patches of it are written for {VERSION}: install"
            f" trafilatura=={VERSION}, or set parse.extractor = 'resiliparse'"
        )


@functools.cache
def apply_patches() -> None:
    """Patch this process's trafilatura, for all of its callers. WrongVersionError if it is another
    release."""
    check_version(importlib.metadata.version("trafilatura"))
    from stages.html.trafilatura_patches import (
        appending,
        cleaning,
        composing,
        counting,
        deleting,
        loading,
        paragraphs,
        patterns,
        readability,
        stripping,
        xpaths,
    )

    patterns.patch_patterns()
    stripping.patch_stripping()
    composing.patch_composing()
    loading.patch_loading()
    xpaths.patch_xpaths()
    paragraphs.patch_paragraphs()
    deleting.patch_deleting()  # in all modules: `readability` puts something else in the place of one of these
    readability.patch_readability()
    cleaning.patch_cleaning()
    counting.patch_counting()
    appending.patch_appending()
