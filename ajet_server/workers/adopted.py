"""A worker process that is not this process's child."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal


class AdoptedProcess:
    """What a `WorkerProcess` needs of it.

    A descriptor of the process makes sure that it is always the same one that is waited for and killed.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(self._descriptor, self._on_end)

    async def wait(self) -> int:
        """Return when it has ended. Its status is its parent's to know: 0 stands for any."""
        await asyncio.shield(self._ended)
        return 0

    def kill(self) -> None:
        """SIGKILL; harmless if it has ended."""
        if not self._ended.done():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._ended.set_result(None)
