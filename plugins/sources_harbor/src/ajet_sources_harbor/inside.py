"""Runs commands in a box for the process that started the box.

It is executed in the box and needs only the standard library. It connects to a port of the box,
sends the token that it read from stdin, and receives one command, for which it then serves the
connection. Another connection waits for the next command. If a connection is closed, its command
is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from typing import IO, Any

# How long output is awaited from processes that a command left behind.
_REST = 0.5
_CHUNK = 65536
_NOT_STARTED = 126
_SET_DUMPABLE = 4


class _Command:
    """A command and its connection."""

    def __init__(self, connection: socket.socket, stream: IO[bytes], asked: dict[str, Any]) -> None:
        self._connection = connection
        self._stream = stream
        self._asked = asked
        self._sending = threading.Lock()
        self._over = False

    def serve(self) -> None:
        with self._connection:
            asked = self._asked
            try:
                process = subprocess.Popen(  # noqa: S603 - it is the command that was requested
                    asked["argv"],
                    cwd=asked["cwd"],
                    env=asked["environ"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            except OSError as error:
                self._send(b"e", str(error).encode())
                self._end(_NOT_STARTED)
                return
            outputs = [(b"o", process.stdout), (b"e", process.stderr)]
            readers = [
                threading.Thread(target=self._read, args=one, daemon=True) for one in outputs
            ]
            for thread in (*readers, threading.Thread(target=self._feed, args=(process,))):
                thread.daemon = True
                thread.start()
            code = process.wait()
            for thread in readers:
                thread.join(_REST)
            self._end(code)

    def _read(self, kind: bytes, pipe: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := os.read(pipe.fileno(), _CHUNK):
                self._send(kind, data)

    def _feed(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        left = self._asked["stdin"]
        with contextlib.suppress(OSError):
            while left and (data := self._stream.read(min(left, _CHUNK))):
                left -= len(data)
                process.stdin.write(data)
        with contextlib.suppress(OSError):
            process.stdin.close()
        with contextlib.suppress(OSError, ValueError):
            while self._stream.read(_CHUNK):
                pass
        # The connection is closed: the command is over, or is to be killed.
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def _send(self, kind: bytes, data: bytes) -> None:
        with self._sending:
            if not self._over:
                with contextlib.suppress(OSError):
                    self._connection.sendall(kind + struct.pack(">I", len(data)) + data)

    def _end(self, code: int) -> None:
        self._send(b"x", str(code).encode())
        with self._sending:
            self._over = True
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


def main(port: int) -> None:
    """Serve commands until a connection is refused, or closed without a command."""
    token = sys.stdin.buffer.readline()
    # Other programs of this user shall not read the token from this process.
    ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)
    while True:
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(token)
        stream = connection.makefile("rb")
        line = stream.readline()
        if not line:
            return
        command = _Command(connection, stream, json.loads(line))
        threading.Thread(target=command.serve, daemon=True).start()


if __name__ == "__main__":
    main(int(sys.argv[1]))
