"""A lineage page that a process of its own serves."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import requests

from tests.support.processes.fork_server import fork_server


@contextmanager
def served(*arguments: str, state: str | None = None) -> Iterator[str]:
    """The address, with its token, of a page of these outputs (and options). `state`: where it keeps its
    notes. The process is forked: what a page imports takes longer than most tests of it."""
    environment = {**os.environ, **({} if state is None else {"XDG_STATE_HOME": state})}
    context = fork_server()
    said, told = context.Pipe(duplex=False)
    server = context.Process(
        target=_serve, args=(told, ["page", *arguments, "--json"], environment, os.getcwd())
    )
    server.start()
    told.close()
    try:
        with said, os.fdopen(os.dup(said.fileno())) as lines:
            yield json.loads(lines.readline())["url"]
    finally:
        assert server.pid is not None
        os.kill(server.pid, signal.SIGINT)
        server.join(60)
        assert server.exitcode is not None, "the page did not end"


def _serve(told: Connection, call: list[str], environment: dict[str, str], folder: str) -> None:
    """Carry a call out, as `python -m pipeline` would in this folder; what it prints goes to `told`."""
    from pipeline.cli.main import console

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(told.fileno(), 1)
    told.close()
    sys.stdout = os.fdopen(1, "w", closefd=False)  # the server's own was a file
    sys.argv = ["sluice", *call]
    console()


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
