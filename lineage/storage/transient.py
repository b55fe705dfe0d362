"""What a store or the way to it may raise, and trying again may mend. A module of its own: it imports the clients'
libraries, which takes 0.15 s."""

from __future__ import annotations

from typing import Final

import aiohttp
from botocore.exceptions import BotoCoreError, ClientError

TRANSIENT: Final = (OSError, aiohttp.ClientError, BotoCoreError, ClientError)
