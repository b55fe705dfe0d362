"""A lineage page that a process of its own serves."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import requests


@contextmanager
def served(*arguments: str, state: str | None = None) -> Iterator[str]:
    """The address, with its token, of a page of these outputs (and options). `state`: where it keeps its
    notes."""
    command = [sys.executable, "-m", "pipeline", "page", *arguments, "--json"]
    environment = {**os.environ, **({} if state is None else {"XDG_STATE_HOME": state})}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert server.stdout is not None
    try:
        yield json.loads(server.stdout.readline())["url"]
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(60)


class Visitor:
    """A person with the page open, without a browser: reads pages, and sends their forms as a browser
    would."""

    def __init__(self, address: str) -> None:
        self.session = requests.Session()
        self.origin = "/".join(address.split("/")[:3])
        opened = self.session.get(address, timeout=60)
        self.base = opened.url.partition("?")[0]
        self.secret = form_secret(opened.text)

    def get(self, place: str = "", **more: object) -> requests.Response:
        return self.session.get(self.base + place, timeout=60, **more)  # type: ignore[arg-type]

    def post(self, place: str, **fields: str) -> requests.Response:
        """Send a form, and follow where it leads."""
        form = {"form_secret": self.secret, **fields}
        return self.session.post(self.base + place, data=form, headers={"Origin": self.origin}, timeout=60)


def form_secret(page: str) -> str:
    """The secret in the forms of a page."""
    found = re.search(r'X-Form-Secret":"([^"]*)"', page)
    assert found is not None, "the page bears no secret"
    return found[1]
