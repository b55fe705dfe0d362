"""The first bytes of compressed files."""

from __future__ import annotations

import re
from typing import Final

GZIP_MAGIC: Final = b"\x1f\x8b\x08"
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
BZIP2_MAGIC: Final = re.compile(rb"BZh[1-9](?:1AY&SY|\x17\x72\x45\x38\x50\x90)")
"""A stream's head and its first block's, or the end of an empty one."""
XZ_MAGIC: Final = b"\xfd7zXZ\x00"
ZIP_MAGIC: Final = b"PK\x03\x04"
