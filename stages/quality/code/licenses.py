"""The licence of a source file as names of SPDX: in its head, in a LICENSE file's text, or what a row says of
the repository."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

_HEAD_CHARS: Final = 8_192
"""What is looked at of a file's beginning. The longest text that a licence is known by stands well within
it."""

_IDENTIFIER: Final = re.compile(
    r"SPDX-License-Identifier:[ \t]*"
    r"([A-Za-z0-9.+()-]{1,64}(?:[ \t]+(?:AND|OR|WITH|and|or|with)[ \t]+[A-Za-z0-9.+()-]{1,64}){0,8})"
)
# A row that ends no line is looked at from its first character alone: from each it would take the square.
_COMMENT: Final = re.compile(r"^[\s*#/;%!|<>\"'-]+|(?<![\s*/>-])[\s*/>-]+$", re.MULTILINE)
_SPACE: Final = re.compile(r"\s+")

_GPL: Final = "general public license"
_KNOWN: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("AGPL-3.0", ("gnu affero general public license version 3, 19 november 2007",)),
    ("LGPL-3.0", ("gnu lesser general public license version 3, 29 june 2007",)),
    ("GPL-3.0", ("gnu general public license version 3, 29 june 2007",)),
    ("LGPL-2.1", ("gnu lesser general public license version 2.1, february 1999",)),
    ("GPL-2.0", ("gnu general public license version 2, june 1991",)),
    ("AGPL-3.0-or-later", (f"gnu affero {_GPL}", "either version 3 of the license, or (at your option) any later")),
    ("LGPL-3.0-or-later", (f"gnu lesser {_GPL}", "either version 3 of the license, or (at your option) any later")),
    ("LGPL-2.1-or-later", (f"gnu lesser {_GPL}", "either version 2.1 of the license, or (at your option) any later")),
    ("LGPL-2.0-or-later", (f"gnu library {_GPL}", "either version 2 of the license, or (at your option) any later")),
    ("GPL-3.0-or-later", (f"gnu {_GPL}", "either version 3 of the license, or (at your option) any later")),
    ("GPL-2.0-or-later", (f"gnu {_GPL}", "either version 2 of the license, or (at your option) any later")),
    ("Apache-2.0", ("apache license version 2.0, january 2004",)),
    ("Apache-2.0", ("licensed under the apache license, version 2.0",)),
    ("MPL-2.0", ("mozilla public license version 2.0",)),
    ("MPL-2.0", ("subject to the terms of the mozilla public license, v. 2.0",)),
    ("EPL-2.0", ("eclipse public license - v 2.0",)),
    ("BSL-1.0", ("boost software license - version 1.0",)),
    ("BSL-1.0", ("distributed under the boost software license, version 1.0",)),
    ("CC0-1.0", ("cc0 1.0 universal",)),
    ("Unlicense", ("this is free and unencumbered software released into the public domain",)),
    ("PSF-2.0", ("python software foundation license version 2",)),
    ("Zlib", ("without any express or implied warranty", "altered source versions must be plainly marked as such")),
    ("BSD-3-Clause", ("redistribution and use in source and binary forms", "neither the name of")),
    ("BSD-2-Clause", ("redistribution and use in source and binary forms",)),
    ("MIT", ("permission is hereby granted, free of charge, to any person obtaining a copy",)),
    ("ISC", ("permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is"
             " hereby granted",)),
    ("ISC", ("permission to use, copy, modify, and distribute this software for any purpose with or without fee is"
             " hereby granted, provided",)),
)  # fmt: skip
"""SPDX's name, and what a head or a licence's own text holds of it: in order, since one text may hold
another's."""

_FIELDS: Final = (
    "license", "licenses", "max_stars_repo_licenses", "detected_licenses", "gha_license_id", "license_type",
)  # fmt: skip
"""Fields of a row that name the licence of the file's repository, as The Stack's data sets have them."""


def license_of(text: str, metadata: str | None) -> str | None:
    """The licence of a file: what its head says, else what `metadata` (the other fields of its row, as JSON)
    says of its repository, several joined by a comma; None where nobody says."""
    return _in_head(text[:_HEAD_CHARS]) or _in_row(metadata)


def _in_head(head: str) -> str | None:
    if (found := _IDENTIFIER.search(head)) is not None:
        return _SPACE.sub(" ", found[1]).rstrip(".-")
    plain = _SPACE.sub(" ", _COMMENT.sub(" ", head)).lower()
    return next((name for name, phrases in _KNOWN if all(phrase in plain for phrase in phrases)), None)


def _in_row(metadata: str | None) -> str | None:
    if metadata is None:
        return None
    row: Any = json.loads(metadata)
    if not isinstance(row, Mapping):
        return None
    return next((named for field in _FIELDS if (named := ", ".join(_names(row.get(field)))) != ""), None)


def _names(value: Any) -> Iterable[str]:
    found = value if isinstance(value, list) else [value]
    return dict.fromkeys(each.strip() for each in found if isinstance(each, str) and each.strip())
