"""What serves the ports of a box: the way to the episode's endpoint, and to chosen hosts."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Sequence
from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

from ajet_core.interfaces import Serve

_CHUNK = 65536
_HEAD_LINES = 100
_HTTPS = 443
_HTTP = 80
_TARGET = re.compile(
    r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?"
)
# Those outside the addresses of a link.
_METADATA = frozenset(map(ip_address, ("100.100.100.200", "192.0.0.192", "fd00:ec2::254")))

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


async def _addresses_of(host: str, port: int) -> list[str]:
    """Return the addresses of a host.

    :raises OSError: it has none.
    """
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(info[4][0]) for info in infos]


def port_of(url: str) -> int:
    """Return the port of a URL."""
    parts = urlsplit(url)
    return parts.port or (_HTTPS if parts.scheme == "https" else _HTTP)


def relay(url: str) -> Serve:
    """Return what connects a box to the server of a URL. TLS begins outside the box."""
    parts = urlsplit(url)
    secure = ssl.create_default_context() if parts.scheme == "https" else None
    host, port = parts.hostname or "", port_of(url)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(host, port, ssl=secure)
        await _join(reader, writer, far_reader, far_writer)

    return serve


def target_of(text: str) -> tuple[str, int | None]:
    """Return host and port of ``HOST`` or ``HOST:PORT``, an IPv6 address in brackets.

    :raises ValueError: it has another form.
    """
    match = _TARGET.fullmatch(text)
    port = int(match["port"]) if match and match["port"] else None
    if match is None or (port is not None and not 0 < port < 2**16):
        raise ValueError(f"{text!r} is not HOST or HOST:PORT")
    return (match["address"] or match["name"]).lower(), port


def egress_proxy(hosts: Collection[str], resolve: Resolve = _addresses_of) -> Serve:
    """Return an HTTP proxy that tunnels to ``HOST`` or ``HOST:PORT`` of a list, and to no other.

    It supports ``CONNECT`` alone, which programs use for https. It does not tunnel to a name that
    leads to this machine, its link or a cloud's metadata, whatever the list says; an address of
    these kinds must itself be in the list.

    :param resolve: returns the addresses of a host.
    :raises ValueError: a host has another form.
    """
    targets = map(target_of, hosts)
    allowed = {(host, _HTTPS if port is None else port) for host, port in targets}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def refuse(status: str) -> None:
            writer.write(f"HTTP/1.1 {status}\r\nconnection: close\r\n\r\n".encode())
            await writer.drain()

        try:
            method, target, _ = (await reader.readline()).decode("latin-1").split()
            host, port = target_of(target)
            for _ in range(_HEAD_LINES):
                if (await reader.readline()).strip() == b"":
                    break
            else:
                raise ValueError("too many lines")
        except ValueError:
            await refuse("403 Forbidden")
            return
        if method != "CONNECT" or port is None or (host, port) not in allowed:
            await refuse("403 Forbidden")
            return
        try:
            addresses = [host] if _is_address(host) else await resolve(host, port)
            if not _is_address(host) and not all(map(_may_be_named, addresses)):
                await refuse("403 Forbidden")
                return
            far_reader, far_writer = await _connected(addresses, port)
        except OSError:
            await refuse("502 Bad Gateway")
            return
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await _join(reader, writer, far_reader, far_writer)

    return serve


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _may_be_named(address: str) -> bool:
    """Return whether a name may lead to an address: that is neither near nor a cloud's metadata."""
    ip = ip_address(address)
    if isinstance(ip, IPv6Address):
        ip = ip.ipv4_mapped or ip
    near = ip.is_loopback or ip.is_link_local or ip.is_unspecified or ip.is_multicast
    return not near and ip not in _METADATA


async def _connected(
    addresses: Sequence[str], port: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first address that answers. They are not resolved again.

    :raises OSError: none does.
    """
    errors = []
    for address in addresses:
        try:
            return await asyncio.open_connection(address, port)
        except OSError as error:
            errors.append(str(error))
    raise OSError("; ".join(errors))


async def _join(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    far_reader: asyncio.StreamReader,
    far_writer: asyncio.StreamWriter,
) -> None:
    """Copy in both directions until both have ended."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_copy(reader, far_writer))
            group.create_task(_copy(far_reader, writer))
    finally:
        far_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
        else:
            writer.close()
    # Either end may leave at any time; the other one then sees the end.
    except OSError:
        writer.close()
