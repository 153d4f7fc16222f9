"""A worker process that is not a child of this process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal


class AdoptedProcess:
    """A process with the operations that a `WorkerProcess` needs.

    A process descriptor guarantees that the same process is waited for and killed, even if its id
    is reused.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(self._descriptor, self._on_end)

    async def wait(self) -> int:
        """Wait until it has ended; return 0, because only its parent knows the exit status."""
        await asyncio.shield(self._ended)
        return 0

    def kill(self) -> None:
        """Send SIGKILL; no effect if it has ended."""
        if not self._ended.done():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._ended.set_result(None)
