"""Which process of a server answers a request."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from urllib.parse import unquote

import httptools
from starlette.datastructures import Headers, QueryParams

from ajet_server.gateway.formats.table import (
    KEY_PARAMETER,
    KEY_PREFIX,
    is_google_path,
    is_llm_path,
)
from ajet_server.security.api_keys import bearer, episode_of

SERVER = 0
"""The place of the server process; gateway processes have the places from 1 on."""


def place_of_episode(episode_id: str, gateways: int) -> int:
    """Return the place of the gateway process that answers the calls of an episode."""
    return 1 + zlib.crc32(episode_id.encode()) % gateways


def place_of_request(url: bytes, headers: Iterable[tuple[bytes, bytes]], gateways: int) -> int:
    """Return the place of the process that answers a request.

    :param url: as in the request's first line.
    :param headers: with names in lower case.
    """
    # As uvicorn does, also for a URL with a host or a fragment.
    parsed = httptools.parse_url(url)
    path = unquote((parsed.path or b"").decode("ascii"))
    if not is_llm_path(path):
        return SERVER
    if path.startswith(KEY_PREFIX):
        key = path.removeprefix(KEY_PREFIX).partition("/")[0]
    else:
        key = bearer(Headers(raw=list(headers)))
        if not key and is_google_path(path):
            query = QueryParams((parsed.query or b"").decode("latin-1"))
            key = query.get(KEY_PARAMETER, "")
    return place_of_episode(episode_of(key), gateways)
