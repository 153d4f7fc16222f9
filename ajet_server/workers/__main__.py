"""``python -m ajet_server.workers --fd N``: host components for the server on socket N."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
from pathlib import Path

from ajet_server.workers.host import WorkerHost
from ajet_server.workers.rendezvous import wait_for_server


async def _serve(connection: socket.socket, rendezvous: Path | None, orphan_seconds: float) -> None:
    host = WorkerHost()
    server: socket.socket | None = connection
    while server is not None and await host.serve(server) and rendezvous is not None:
        # Wait before the last calls have ended, or the next server could miss this worker.
        waiting = asyncio.create_task(wait_for_server(rendezvous, orphan_seconds))
        server = await waiting if await host.cancel_calls() else None
    await host.close()


def main() -> None:
    """Run a worker for the server at the other end of the socket."""
    parser = argparse.ArgumentParser(description="agentjet worker; started by the server")
    parser.add_argument("--fd", type=int, required=True, help="inherited socket to the server")
    parser.add_argument(
        "--rendezvous", type=Path, help="where to wait for the next server if this one is killed"
    )
    parser.add_argument("--orphan-seconds", type=float, default=0.0, help="how long to wait there")
    options = parser.parse_args()
    # Ctrl-C in a terminal reaches the whole process group, but the server must stop its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=options.fd)
    asyncio.run(_serve(connection, options.rendezvous, options.orphan_seconds))
    # Threads of a backend (Ray, CUDA, a step in progress) must not keep an orphan alive.
    os._exit(0)


if __name__ == "__main__":
    main()
