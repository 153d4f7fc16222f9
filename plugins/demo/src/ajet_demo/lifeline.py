"""``python -m ajet_demo.lifeline``: the command ``ajet`` in a process that ends with its parent.

The parent holds the other end of a pipe, which is the standard input here. However the parent ends,
its end is closed, also if it is killed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def end_with_parent() -> None:
    """From now on, end this process by SIGTERM when its standard input ends."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="ajet-lifeline", daemon=True).start()


def main() -> None:
    """Run the command with the arguments of this process."""
    end_with_parent()
    from ajet_cli.main import cli

    cli(prog_name="ajet")


if __name__ == "__main__":
    main()
