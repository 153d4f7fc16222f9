"""Real PostgreSQL servers for tests, which listen on a Unix socket alone."""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Self

# Debian keeps the programs of each version in a directory of its own.
_DEBIAN = Path("/usr/lib/postgresql")
NOT_ROOT = "postgres"


def programs() -> Path | None:
    """The directory of PostgreSQL's programs, None if it is not installed."""
    if (on_path := shutil.which("initdb")) is not None:
        return Path(on_path).resolve().parent
    versions = sorted(_DEBIAN.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return versions[-1].parent if versions else None


class PostgresServer:
    """A server with its data in a temporary directory.

    :param copy_of: start as a standby of this server, instead of with an empty database.
    """

    def __init__(self, copy_of: PostgresServer | None = None) -> None:
        where = programs()
        assert where is not None, "the tests that need PostgreSQL are skipped without it"
        self._bin = where
        self._user = NOT_ROOT if os.geteuid() == 0 else None
        # The path of a socket is limited to some hundred characters.
        self.directory = Path(tempfile.mkdtemp(prefix="ajet-pg-", dir="/tmp"))
        if self._user is not None:
            entry = pwd.getpwnam(self._user)
            os.chown(self.directory, entry.pw_uid, entry.pw_gid)
        self._data = self.directory / "data"
        if copy_of is None:
            self._run("initdb", "-D", self._data, "-U", "ajet", "--auth=trust", "--no-sync")
        else:
            source = f"host={copy_of.directory} user=ajet"
            self._run("pg_basebackup", "-D", self._data, "-R", "-X", "stream", "-d", source)

    @property
    def dsn(self) -> str:
        """How to connect to it."""
        return f"host={self.directory} user=ajet dbname=postgres"

    def start(self, *settings: str) -> None:
        """Start it, and wait until it accepts connections.

        :param settings: such as ``synchronous_standby_names=*``.
        """
        fixed = ["listen_addresses=", f"unix_socket_directories={self.directory}"]
        options = " ".join(f"-c {one}" for one in [*fixed, *settings])
        log = self.directory / "log"
        self._run("pg_ctl", "-D", self._data, "-l", log, "-w", "-o", options, "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop it: ``smart``, ``fast``, or ``immediate``, which is a crash."""
        self._run("pg_ctl", "-D", self._data, "-w", "-m", mode, "stop")

    def kill(self) -> None:
        """End all its processes with SIGKILL."""
        ending = []
        for pid in self._processes():
            with contextlib.suppress(ProcessLookupError):
                ending.append(os.pidfd_open(pid))
                os.kill(pid, signal.SIGKILL)
        for descriptor in ending:
            select.select([descriptor], [], [])
            os.close(descriptor)
        # These name the killed process, which may remain as a zombie.
        (self._data / "postmaster.pid").unlink()
        for lock in self.directory.glob(".s.PGSQL.*.lock"):
            lock.unlink()

    def freeze(self) -> None:
        """Stop all its processes as they are, as a disk that hangs does."""
        for pid in self._processes():
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let them continue."""
        for pid in self._processes():
            os.kill(pid, signal.SIGCONT)

    def promote(self) -> None:
        """Make a standby accept writes."""
        self._run("pg_ctl", "-D", self._data, "-w", "promote")

    def close(self) -> None:
        """Stop it, if it runs, and remove its data."""
        if (self._data / "postmaster.pid").exists():
            subprocess.run(
                [self._bin / "pg_ctl", "-D", self._data, "-m", "immediate", "stop"],
                user=self._user,
                cwd=self.directory,
                capture_output=True,
                check=False,
            )
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _processes(self) -> list[int]:
        postmaster = int((self._data / "postmaster.pid").read_text().splitlines()[0])
        listed = subprocess.run(
            ["ps", "--ppid", str(postmaster), "-o", "pid="],
            capture_output=True,
            text=True,
            check=False,
        )
        return [postmaster, *map(int, listed.stdout.split())]

    def _run(self, program: str, *arguments: object) -> None:
        done = subprocess.run(
            [self._bin / program, *map(str, arguments)],
            user=self._user,
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            # A server inherits no pipe that would keep this waiting.
            stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            log = self.directory / "log"
            said = log.read_text() if log.exists() else ""
            raise AssertionError(f"{program} failed:\n{done.stdout}\n{said}")
