"""Characters that rules count as punctuation: the code points of datatrove 0.10.1 (utils/text.py,
Apache-2.0)."""

from __future__ import annotations

from typing import Final


def _characters(ranges: str) -> frozenset[str]:
    """The characters of a list of hexadecimal code points and inclusive ranges of them."""
    bounds = (item.partition("-") for item in ranges.split())
    return frozenset(
        chr(code) for low, _, high in bounds for code in range(int(low, 16), int(high or low, 16) + 1)
    )


TERMINAL_PUNCTUATION: Final = _characters(
    """
    0021 002e 003f 0589 061d-061f 06d4 0700-0702 07f9 0837 0839 083d-083e 0964-0965 104a-104b 1362 1367-1368 166e
    1735-1736 17d4-17d6 17d9-17da 1803 1809 1944-1945 1aa8-1aab 1b5a-1b5b 1b5e-1b5f 1b7d-1b7e 1c3b-1c3c 1c7e-1c7f
    203c-203d 2047-2049 2e2e 2e3c 2e53-2e54 3002 a4ff a60e-a60f a6f3 a6f7 a876-a877 a8ce-a8cf a92f a9c8-a9c9
    aa5d-aa5f aaf0-aaf1 abeb fe52 fe56-fe57 ff01 ff0e ff1f ff61 10a56-10a57 10f55-10f59 10f86-10f89 11047-11048
    110be-110c1 11141-11143 111c5-111c6 111cd 111de-111df 11238-11239 1123b-1123c 112a9 1144b-1144c 115c2-115c3
    115c9-115d7 11641-11642 1173c-1173e 11944 11946 11a42-11a43 11a9b-11a9c 11c41-11c42 11ef7-11ef8 11f43-11f44
    16a6e-16a6f 16af5 16b37-16b38 16b44 16e98 1bc9f 1da88
    """
)
"""What ends a sentence, in any script: FineWeb's line-punctuation rule (`stop_chars`)."""

PUNCTUATION: Final = _characters(
    """
    0000-0008 000b-001f 0021-002f 003a-0040 005b-0060 007b-009f 00ab 00b4 00bb 0589 061d-061f 06d4 0700-0702 07f9
    0837 0839 083d-083e 0964-0965 104a-104b 1362 1367-1368 166e 1735-1736 17d4-17d6 17d9-17da 1803 1809 1944-1945
    1aa8-1aab 1b5a-1b5b 1b5e-1b5f 1b7d-1b7e 1c3b-1c3c 1c7e-1c7f 2013-2014 2019 201c-201e 2026 203c-203d 2047-2049
    2236 2501 25ba 2e2e 2e3c 2e53-2e54 3001-3002 3008-300d 3010-3011 a4ff a60e-a60f a6f3 a6f7 a876-a877 a8ce-a8cf
    a92f a9c8-a9c9 aa5d-aa5f aaf0-aaf1 abeb fe52 fe56-fe57 ff01 ff05 ff08-ff09 ff0c ff0e ff11 ff1a-ff1b ff1f ff5e
    ff61 10a56-10a57 10f55-10f59 10f86-10f89 11047-11048 110be-110c1 11141-11143 111c5-111c6 111cd 111de-111df
    11238-11239 1123b-1123c 112a9 1144b-1144c 115c2-115c3 115c9-115d7 11641-11642 1173c-1173e 11944 11946
    11a42-11a43 11a9b-11a9c 11c41-11c42 11ef7-11ef8 11f43-11f44 16a6e-16a6f 16af5 16b37-16b38 16b44 16e98 1bc9f
    1da88
    """
)
"""A token of these alone is a symbol and no word: Gopher's word count and mean word length
(`PUNCTUATION_SET`)."""
