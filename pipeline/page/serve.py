"""`sluice page OUT…` and `sluice lineage OUT --serve`: the page on loopback, until it is interrupted."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace

from aiohttp import web

from lineage.index.output_index import read_index
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.store.delta import check_version
from pipeline.page.app import make_app
from pipeline.page.guard import make_access


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOptions:
    """How the page is served: `port` of loopback (0: any free one), `base` the path of all pages,
    `token_file` the file with the token (made where there is none), `public_url` where a proxy serves it too.
    Where `read_only`, nothing is purged from here. `version`: that of the corpus which is shown, None for the
    newest. `cluster`: the address of a dashboard whose jobs are shown too."""

    port: int = 0
    base: str | None = None
    token_file: str | None = None
    public_url: str | None = None
    read_only: bool = False
    version: int | None = None
    cluster: str | None = None


def serve(outs: Sequence[Folder], options: PageOptions, *, as_json: bool = False) -> int:
    """Serve the page of these outputs until interrupted; prints its address, token included. StoreError if
    the corpus never had `options.version`; RecipeError for an option that is wrong, or a port that is
    taken."""
    if options.version is not None:
        for out in outs:
            read_index(out)
            check_version(out, options.version)
    access = make_access(options.port, options.base, options.token_file, options.public_url)
    try:
        listener = socket.create_server(("127.0.0.1", options.port))
    except OSError as error:
        raise RecipeError(
            f"--port {options.port}: {error.strerror or error}; choose another, or 0 for any"
        ) from error
    access = replace(access, address=f"127.0.0.1:{listener.getsockname()[1]}")
    app = make_app(
        outs, access, version=options.version, read_only=options.read_only, cluster=options.cluster
    )
    print(json.dumps({"url": access.url}) if as_json else f"{access.url}\nCtrl-C stops it.", flush=True)
    web.run_app(app, sock=listener, print=None, access_log=None, handle_signals=True)
    return 0
