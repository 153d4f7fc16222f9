"""``python -m ajet_core.worker --fd N``: host components for the server at the other end of socket N."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket

from ajet_core.worker.host import WorkerHost


async def _serve(fd: int) -> None:
    connection = socket.socket(fileno=fd)
    reader, writer = await asyncio.open_unix_connection(sock=connection, limit=1 << 20)
    await WorkerHost(reader, writer).serve()


def main() -> None:
    parser = argparse.ArgumentParser(description="agentjet worker; started by the server")
    parser.add_argument("--fd", type=int, required=True, help="inherited socket to the server")
    options = parser.parse_args()
    # Ctrl-C in a terminal reaches the whole process group; the server decides when a worker ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(_serve(options.fd))
    # Threads of a backend (Ray, CUDA, a step in progress) must not keep an orphan alive.
    os._exit(0)


if __name__ == "__main__":
    main()
