"""Run a client's program without what Python has on Linux and macOS, but not on Windows.

Usage: `without_posix.py FILE [ARGUMENTS ...]`. The modules of the standard library that use it
themselves are imported first: they have another form on Windows.
"""

from __future__ import annotations

import asyncio
import getpass
import importlib.abc
import importlib.machinery
import multiprocessing
import os
import runpy
import selectors
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from types import ModuleType

IMPORTED_FIRST = (asyncio, getpass, multiprocessing, selectors, shutil, ssl, subprocess, tempfile)
# The packages among them are those that a server has for its speed.
MODULES = """
    fcntl grp pty pwd readline resource syslog termios tty httptools uvloop
"""
NAMES: dict[ModuleType, str] = {
    os: """
        O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK WNOHANG chown fchmod fchown fork forkpty getegid
        geteuid getgid getpgid getpgrp getuid killpg mkfifo nice posix_spawn pread pwrite
        register_at_fork sched_getaffinity setsid statvfs sysconf uname wait4
    """,
    signal: """
        SIGALRM SIGCHLD SIGHUP SIGKILL SIGPIPE SIGQUIT SIGUSR1 SIGUSR2 pthread_kill pthread_sigmask
        setitimer
    """,
    socket: "AF_UNIX",
}


class Hidden(importlib.abc.MetaPathFinder):
    """Refuses to import the modules."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] in MODULES.split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def hide() -> None:
    """Hide modules and names from everything that is imported from now on."""
    for name in MODULES.split():
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Hidden())
    for module, names in NAMES.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)


if __name__ == "__main__":
    hide()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
