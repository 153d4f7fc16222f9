"""``python -m agentjet.local.lifeline MODULE``: a program in a process that ends with its parent.

The parent holds the other end of a pipe, which is the standard input here. However the parent ends,
its end is closed, also if it is killed. It may send a line through the pipe before.
"""

from __future__ import annotations

import runpy
import sys

from agentjet.local.processes import end_with_parent


def main() -> None:
    """Run the module that the first argument names, as a program with the other arguments."""
    end_with_parent()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
