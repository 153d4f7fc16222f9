"""Encode long texts in processes of their own, so that the event loop never waits for them.

`tokenizers` releases the interpreter's lock while it encodes, but not while it converts the tokens
of a text to a list. With other threads on all cores, the event loop waits for the lock up to 50 ms
meanwhile. A process returns the tokens as bytes, and this process only copies them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from array import array
from pathlib import Path

MOST_ENCODERS = min(8, max(2, os.cpu_count() or 2))
"""How many processes are kept, and how many prompts the gateway renders at a time."""

_log = logging.getLogger("ajet.server")

# The length of a text or of an answer, which precedes it.
_LENGTH_BYTES = 8
# For one text; a process that does not answer is replaced.
_SECONDS = 120.0
# Of the processes. When all cores are busy, the event loop runs first.
_NICE = 5


class EncoderProcesses:
    """Processes that encode texts with a tokenizer. It is thread-safe.

    Each thread that encodes a text uses a process that no other thread uses, and starts one if
    there is none. The processes end with this one, however it ends.

    :param path: the ``tokenizer.json``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._idle: list[_Encoder] = []
        self._proven = False
        self._usable = True

    def encode(self, text: str) -> array[int] | None:
        """Return the tokens of a text, without special tokens around it.

        :return: [N] token ids; None if a process failed, or could not be started.
        """
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError:
            return None
        with self._lock:
            if not self._usable:
                return None
            encoder = self._idle.pop() if self._idle else None
        try:
            if encoder is None:
                encoder = _Encoder(self._path)
            ids = encoder.encode(data)
        except (OSError, EOFError) as error:
            if encoder is not None:
                encoder.close()
            self._failed(error)
            return None
        with self._lock:
            self._proven = True
            kept = len(self._idle) < MOST_ENCODERS
            if kept:
                self._idle.append(encoder)
        if not kept:
            encoder.close()
        return ids

    def _failed(self, error: Exception) -> None:
        with self._lock:
            # If none ever worked, each would fail.
            self._usable = self._usable and self._proven
            usable = self._usable
        instead = "" if usable else "; from now on, long texts are encoded in the server's process"
        _log.warning("a process that encodes long texts failed: %s%s", error, instead)


class _Encoder:
    """One process."""

    def __init__(self, path: Path) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(_SECONDS)
        with theirs:
            try:
                process = subprocess.Popen(  # noqa: S603 - this interpreter, with this module
                    [sys.executable, "-P", "-m", __name__, str(path)],
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                )
            except OSError:
                self._socket.close()
                raise
        self.close = weakref.finalize(self, _end, process, self._socket)

    def encode(self, data: bytes) -> array[int]:
        _send(self._socket, data)
        ids = array("I")
        ids.frombytes(_receive(self._socket))
        return ids


def _end(process: subprocess.Popen[bytes], connection: socket.socket) -> None:
    connection.close()
    process.kill()
    process.wait()


def _send(connection: socket.socket, data: bytes) -> None:
    connection.sendall(len(data).to_bytes(_LENGTH_BYTES, "little"))
    connection.sendall(data)


def _receive(connection: socket.socket) -> bytearray:
    """Read what `_send` has sent.

    :raises EOFError: the connection ends before.
    """
    return _read(connection, int.from_bytes(_read(connection, _LENGTH_BYTES), "little"))


def _read(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    rest = memoryview(data)
    while rest:
        count = connection.recv_into(rest)
        if not count:
            raise EOFError("the process ended")
        rest = rest[count:]
    return data


def main() -> None:
    """Encode the texts that come by standard input, a socket, until it ends."""
    from tokenizers import Tokenizer

    # A Ctrl-C in a terminal is for the server, which may still need the answers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    connection = socket.socket(fileno=os.dup(0))
    # What a library prints must not be read as an answer.
    os.dup2(2, 1)
    tokenizer = Tokenizer.from_file(sys.argv[1])
    tokenizer.no_truncation()
    tokenizer.no_padding()
    with connection, contextlib.suppress(EOFError, ConnectionError):
        while True:
            text = _receive(connection).decode("utf-8")
            (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
            _send(connection, array("I", encoding.ids).tobytes())


if __name__ == "__main__":
    main()
