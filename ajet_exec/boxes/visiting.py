"""Visits to the network namespace of another process. Run as a program, it needs no packages."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import sys

_NEW_USER = 0x10000000
_NEW_NET = 0x40000000
_GET_OWNER = 0xB701
_BACKLOG = 128


def enter_network(pid: int, *, as_owner: bool) -> None:
    """Enter the network namespace of a process, for this thread.

    :param as_owner: first enter the user namespace that owns it, as needed without privileges.
        ``bwrap`` may have put the process itself into a further one.
    :raises OSError: it is gone, or not permitted.
    """
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        if as_owner:
            owner = fcntl.ioctl(network, _GET_OWNER)
            try:
                _enter(owner, _NEW_USER)
            finally:
                os.close(owner)
        _enter(network, _NEW_NET)
    finally:
        os.close(network)


def _enter(namespace: int, kind: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, kind):
        number = ctypes.get_errno()
        raise OSError(number, f"cannot enter its namespace: {os.strerror(number)}")


def listener(port: int) -> socket.socket:
    """Return a socket that listens on loopback, where this thread is."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen(_BACKLOG)
    return listening


def send(pid: int, port: int, to: int) -> None:
    """Send a listening socket over another one."""
    enter_network(pid, as_owner=True)
    with socket.socket(fileno=to) as channel, listener(port) as listening:
        socket.send_fds(channel, [b"s"], [listening.fileno()])


if __name__ == "__main__":
    send(*map(int, sys.argv[1:]))
