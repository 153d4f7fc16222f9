"""Run a command, and kill it and all its children when the parent process is gone.

``python -m ajet_engines.served.guard COMMAND...``: lives as long as the command and its standard
input, a pipe that the system closes however the parent dies. Model servers have children and use
gigabytes, so nothing of them must survive a killed worker.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading


def main() -> int:
    """Run the command in ``sys.argv``; return its exit status, or 128 + the signal's number."""
    command = sys.argv[1:]
    child: subprocess.Popen[bytes] | None = None
    ended = False

    def end(*_: object) -> None:
        nonlocal ended
        ended = True
        if child is not None:
            child.terminate()

    # Forward SIGTERM to the command, even while it is being started.
    signal.signal(signal.SIGTERM, end)
    try:
        # In a new session, so that all its processes can be killed together.
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error}\n")
        return 127
    if ended:
        child.terminate()
    threading.Thread(target=_kill_when_alone, args=(child.pid,), daemon=True).start()
    status = child.wait()
    _kill_session(child.pid)
    return 128 - status if status < 0 else status


def _kill_when_alone(session: int) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    _kill_session(session)


def _kill_session(session: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(session, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
