"""The files of the live page."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib import resources
from typing import Any

from starlette.responses import Response

from ajet_server.page.viewer_page import live_viewer

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_VIEWER = "viewer.html"
# Everything comes from this server, and nothing is executed but its files.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'"
)
_HEADERS = {
    "cache-control": "no-cache",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}


def response(name: str, known: str | None = None) -> Response:
    """Return a file of the page, 404 if there is no such file.

    :param known: the ETag that the browser has.
    """
    content, media_type, tag = _files().get(name, (b"", "", ""))
    if not tag:
        return Response("there is no such file", 404, media_type="text/plain")
    headers = {**_HEADERS, "etag": tag}
    if name == "index.html":
        headers["content-security-policy"] = _POLICY
    if known == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=media_type)


def text(name: str) -> str:
    """Return a file of the page as text."""
    return _files()[name][0].decode()


def as_json(data: Any) -> bytes:
    """Return compact JSON."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).encode()


@cache
def _files() -> dict[str, tuple[bytes, str, str]]:
    """Return content, type and ETag of each file by name."""
    contents = {_VIEWER: live_viewer().encode()}
    for file in (resources.files("ajet_server.page") / "assets").iterdir():
        contents[file.name] = file.read_bytes()
    return {
        name: (
            content,
            _TYPES[name.rpartition(".")[2]],
            f'"{hashlib.sha256(content).hexdigest()[:24]}"',
        )
        for name, content in contents.items()
        if name.rpartition(".")[2] in _TYPES
    }
