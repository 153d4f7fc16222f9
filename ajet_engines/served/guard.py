"""Runs a command, and kills it and all its children when whoever asked for it is gone.

``python -m ajet_engines.served.guard COMMAND...``: lives as long as the command, and as its own standard input is open. A
pipe is closed by the system however its holder dies, so that nothing is left of a worker that was killed: model
servers have children of their own, and hold gigabytes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading


def main() -> int:
    """Run the command of ``sys.argv``; its exit status, or 128 + the number of the signal that ended it."""
    command = sys.argv[1:]
    child: subprocess.Popen[bytes] | None = None
    ended = False

    def end(*_: object) -> None:
        nonlocal ended
        ended = True
        if child is not None:
            child.terminate()

    # Whoever ends us means the command, also while it is being started.
    signal.signal(signal.SIGTERM, end)
    try:
        # A session of its own, so that all of it can be ended together.
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
