"""The model servers of a run that were added or removed while it runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from ajet_core.errors import RequestError
from ajet_core.files import read_json, write_whole
from ajet_core.interfaces import ModelServers

__all__ = ["checked_url", "read_servers", "without", "write_servers"]

_PORTS = {"http": 80, "https": 443}
_FILE = "engine-servers.json"


def read_servers(run_dir: Path, run_id: str, servers: ModelServers) -> ModelServers:
    """Return the settings of a run's model servers with what was changed since its start."""
    try:
        stored = read_json(run_dir / _FILE)
    except FileNotFoundError:
        return servers
    if stored.get("run_id") != run_id:
        return servers
    return replace(servers, urls=tuple(stored["urls"]), started=stored["started"])


def write_servers(run_dir: Path, run_id: str, servers: ModelServers) -> None:
    """Keep the model servers of a run for the time after a restart."""
    stored = {"run_id": run_id, "urls": servers.urls, "started": servers.started}
    write_whole(run_dir / _FILE, json.dumps(stored).encode())


def checked_url(url: str) -> str:
    """Return the URL of a model server in a form that is the same for the same server.

    :raises RequestError: it is not an HTTP URL of a host.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        plain = not (parts.query or parts.fragment or "@" in parts.netloc)
        valid = parts.scheme in _PORTS and host and port != 0 and plain and url.isprintable()
    except ValueError:
        valid = False
    if not valid or " " in url:
        raise RequestError(
            f"{url!r} is not the URL of a model server, such as http://10.0.0.5:8000", param="url"
        )
    name = f"[{host}]" if ":" in host else host
    at = "" if port in (None, _PORTS[parts.scheme]) else f":{port}"
    return f"{parts.scheme}://{name}{at}{parts.path.rstrip('/')}"


def without(url: str, urls: Sequence[str], states: Mapping[str, str]) -> list[str]:
    """Return the URLs without one.

    :param states: of all servers of the engine.
    :raises RequestError: it is not among them, or no other server is up.
    """
    if url not in urls:
        raise RequestError(
            f"no server {url} was added or configured, but {', '.join(urls) or 'none'}; servers "
            "that the engine has started cannot be removed",
            param="url",
        )
    if states.get(url) == "up" and all(
        state != "up" for name, state in states.items() if name != url
    ):
        raise RequestError(
            f"{url} is the only server that is up: add another one first", param="url"
        )
    return [one for one in urls if one != url]
