"""``python -m agentjet.local.lifeline MODULE``: a program in a process that ends with its parent.

The parent holds the other end of a pipe, which is the standard input here. However the parent ends,
its end is closed, also if it is killed. It may send a line through the pipe before.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
from concurrent.futures import Future

__all__ = ["end_with_parent", "main"]


def end_with_parent() -> Future[str]:
    """From now on, end this process by SIGTERM when its standard input ends.

    :return: the first line that the parent sends.
    """
    first: Future[str] = Future()

    def wait() -> None:
        text = b""
        # Not `sys.stdin.readline`, in which a thread may not be while the interpreter ends.
        while received := os.read(sys.stdin.fileno(), 1024):
            text += received
            if not first.done() and b"\n" in text:
                first.set_result(text.partition(b"\n")[0].decode())
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="ajet-lifeline", daemon=True).start()
    return first


def main() -> None:
    """Run the module that the first argument names, as a program with the other arguments."""
    end_with_parent()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
