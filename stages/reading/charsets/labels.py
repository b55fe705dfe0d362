"""Labels of charsets to Python's codecs: those of the web (https://encoding.spec.whatwg.org, section 4.2) and
Python's.

Each label is read as the superset that browsers read it as. Python's other codecs (`punycode`, `utf-7`,
EBCDIC's `cp037`, …) are never reached: no browser reads them, and bytes of any kind would fit most of them.
"""

from __future__ import annotations

import encodings.aliases
import re
from typing import Final

import webencodings

_READ_AS: Final = {
    "ascii": "cp1252", "latin_1": "cp1252", "iso8859_1": "cp1252", "iso8859_9": "cp1254", "iso8859_11": "cp874",
    "tis_620": "cp874", "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932", "euc_kr": "cp949",
    "big5": "big5hkscs", "utf_16": "utf-16-le", "iso2022_jp": "iso2022_jp_ext",
}  # fmt: skip
"""Python's codecs that browsers read as a superset of them."""
_CODECS: Final = (
    "utf-8", "utf-16-le", "utf-16-be", "gb18030", "big5hkscs", "cp932", "euc_jp", "iso2022_jp_ext", "cp949", "cp866",
    "cp874", "cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258", "koi8_r",
    "koi8_u", "mac_roman", "mac_cyrillic", "iso8859_2", "iso8859_3", "iso8859_4", "iso8859_5", "iso8859_6",
    "iso8859_7", "iso8859_8", "iso8859_10", "iso8859_13", "iso8859_14", "iso8859_15", "iso8859_16",
    # Browsers read nothing of these two, since scripts can be hidden in them; text is only read here.
    "hz", "iso2022_kr",
)  # fmt: skip
_MORE_LABELS: Final = {
    "iso_8859_8_i": "iso8859_8", "windows_31j": "cp932", "windows_874": "cp874", "gb_2312_80": "gb18030",
    "unicode": "utf-16-le", "ms932": "cp932",
    # Its upper half is private characters, which no page that names it in itself means (HTML standard,
    # 13.2.3.2).
    "user_defined": "cp1252",
}  # fmt: skip


def known_charset(name: str | None) -> str | None:
    """Python's codec for what browsers read `name` as; None if it is no charset of the web."""
    return _LABELS.get(_label(name)) if name else None


def _label(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_").removeprefix("x_")


def _labels() -> dict[str, str]:
    """Every label known, with `_` for what is no letter or digit, to a codec. Labels never reach
    `codecs.lookup`, which keeps each unknown one for ever."""
    codec_of = {_label(codec): codec for codec in _CODECS} | _READ_AS
    labels = {
        alias: codec_of[module] for alias, module in encodings.aliases.aliases.items() if module in codec_of
    }
    labels |= codec_of | _MORE_LABELS
    of_the_web = {_label(label): labels.get(_label(name)) for label, name in webencodings.LABELS.items()}
    return labels | {label: codec for label, codec in of_the_web.items() if codec}


_LABELS: Final = _labels()
