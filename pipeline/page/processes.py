"""Our own commands in processes of their own: what takes a page of the open web apart, or a corpus, stays out
of the server, which may not grow or hang with it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any, Final

_AT_ONCE: Final = 2
_LAST_WORDS: Final = 2000


class CommandError(ValueError):
    """A command failed, or took too long; the message is what it said."""


class Commands:
    """Runs commands, some at once; further ones wait."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def ask(self, *arguments: str, seconds: float) -> Any:
        """What `sluice` with these arguments and --json prints. CommandError where it prints nothing, or
        takes more than `seconds`. (A check that failed prints what it found.)"""
        root = str(Path(__file__).resolve().parent.parent.parent)
        paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        async with self._places:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "pipeline", *arguments, "--json"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )
            try:
                answer, said = await asyncio.wait_for(process.communicate(), seconds)
            except TimeoutError as error:
                raise CommandError(
                    f"sluice {arguments[0]} took more than {seconds:g} s and was stopped"
                ) from error
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        if not answer:
            words = said.decode("utf-8", "replace").strip()[-_LAST_WORDS:]
            raise CommandError(words or f"the command ended with status {process.returncode}")
        return json.loads(answer)
