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
import subprocess
import sys
import threading
import weakref
from array import array
from pathlib import Path
from typing import IO

_log = logging.getLogger("ajet.server")

# The length of a text or of an answer, which precedes it.
_LENGTH_BYTES = 8
_TOKEN_BYTES = array("I").itemsize
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
        except (OSError, EOFError, ValueError) as error:
            _log.warning("a process that encodes long texts failed: %s", error)
            with self._lock:
                # One that cannot be started would fail for each text again.
                self._usable = encoder is not None and encoder.proven
            if encoder is not None:
                encoder.close()
            return None
        with self._lock:
            self._idle.append(encoder)
        return ids


class _Encoder:
    """One process.

    :ivar proven: whether it has encoded a text.
    """

    def __init__(self, path: Path) -> None:
        process = subprocess.Popen(  # noqa: S603 - this interpreter, with this module
            [sys.executable, "-P", "-m", __name__, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self._input, self._output = process.stdin, process.stdout
        self.proven = False
        self.close = weakref.finalize(self, _end, process)

    def encode(self, data: bytes) -> array[int]:
        _write(self._input, data)
        size = int.from_bytes(_read(self._output, _LENGTH_BYTES), "little")
        ids = array("I", bytes(0))
        ids.frombytes(_read(self._output, size))
        self.proven = True
        return ids


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process, which ends at the end of its input."""
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        with contextlib.suppress(OSError):
            stream.close()
    process.kill()
    process.wait()


def _write(stream: IO[bytes], data: bytes) -> None:
    whole = memoryview(len(data).to_bytes(_LENGTH_BYTES, "little") + data)
    while whole:
        whole = whole[stream.write(whole) :]


def _read(stream: IO[bytes], size: int) -> bytearray:
    """Read so many bytes.

    :raises EOFError: the stream ends before.
    """
    data = bytearray(size)
    rest = memoryview(data)
    while rest:
        count = stream.readinto(rest)  # type: ignore[attr-defined]
        if not count:
            raise EOFError("it ended")
        rest = rest[count:]
    return data


def main() -> None:
    """Encode the texts of standard input until it ends."""
    from tokenizers import Tokenizer

    # A Ctrl-C in a terminal is for the server, which may still need the answers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    tokenizer = Tokenizer.from_file(sys.argv[1])
    tokenizer.no_truncation()
    tokenizer.no_padding()
    texts, answers = os.fdopen(0, "rb", 0), os.fdopen(os.dup(1), "wb", 0)
    # What a library prints must not be read as an answer.
    os.dup2(2, 1)
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            size = int.from_bytes(_read(texts, _LENGTH_BYTES), "little")
            text = _read(texts, size).decode("utf-8")
            (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
            _write(answers, array("I", encoding.ids).tobytes())


if __name__ == "__main__":
    main()
