"""Following a job's log over connections that fall silent, against a server that speaks as Ray's job server
does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from pipeline.cluster.job_client import JobClient
from pipeline.jobs.cluster_jobs import follow

LOG = "step 1\nstep 2\nstep 3\n"


class JobServer:
    """One job, whose log is asked for several times: the first connection falls silent after the first line
    and is never closed."""

    def __init__(self) -> None:
        self.num_asked = 0
        self._over = asyncio.Event()
        self.application = web.Application()
        self.application.on_shutdown.append(self._end)
        self.application.add_routes(
            [
                web.get("/api/version", self._version),
                web.get("/api/jobs/{job}", self._job),
                web.get("/api/jobs/{job}/logs/tail", self._tail),
            ]
        )

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "4", "ray_version": "2.60.0", "ray_commit": ""})

    async def _job(self, request: web.Request) -> web.Response:
        status = "SUCCEEDED" if self.num_asked > 1 else "RUNNING"
        return web.json_response({
            "type": "SUBMISSION", "submission_id": "job", "status": status, "entrypoint": "true",
            "message": "", "start_time": 1,
        })  # fmt: skip

    async def _end(self, application: web.Application) -> None:
        self._over.set()

    async def _tail(self, request: web.Request) -> web.WebSocketResponse:
        self.num_asked += 1
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        if self.num_asked == 1:
            await socket.send_str(LOG[: LOG.index("\n") + 1])
            await self._over.wait()
        await socket.send_str(LOG)
        await socket.close()
        return socket


@contextmanager
def served(server: JobServer) -> Iterator[str]:
    """The server's address."""
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(server.application, shutdown_timeout=0.1)

    async def start() -> str:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        return f"http://{host}:{port}"

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(start(), loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def test_a_log_whose_connection_fell_silent_is_asked_for_anew_and_passed_on_once() -> None:
    server = JobServer()
    written: list[str] = []
    with served(server) as address:
        client = JobClient(address, None, silence_seconds=0.5)
        assert follow(client, "job", written.append).status == "SUCCEEDED"
    assert "".join(written) == LOG
    assert server.num_asked == 2
