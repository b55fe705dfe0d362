"""The errors that readers raise where a file is damaged."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from deltalake.exceptions import DeltaError

DAMAGE: Final = (OSError, ValueError, DeltaError, pa.ArrowException)
"""Arrow and Delta their own errors, decoders ValueError, storage OSError."""
