"""The viewer of tokens: a file that can be opened from disk, and a part of the live page."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

_SCRIPTS = ("model.js", "colours.js", "details.js", "tree.js", "search.js", "sidebar.js", "main.js")


def page(data: Mapping[str, Any]) -> str:
    """Return a self-contained page for `data`, the result of `PageData.as_json`.

    Its security policy allows only its one script and one style sheet, by their hashes: no
    requests, no forms, no code in attributes. The data are untrusted, because agents and models
    write them.
    """
    return _page(data, "")


def live_viewer() -> str:
    """Return the page that requests its data from the server that it comes from."""
    return _page({"title": "Episode", "live": True}, "; connect-src 'self'")


def _page(data: Mapping[str, Any], requests: str) -> str:
    script = "\n".join(_asset(name) for name in _SCRIPTS)
    style = _asset("page.css")
    parts = {
        "<!--TITLE-->": html.escape(str(data["title"])),
        "<!--POLICY-->": _policy(script, style) + requests,
        "/*STYLE*/": style,
        "<!--DATA-->": embedded_json(data),
        "/*SCRIPT*/": script,
    }
    # In a single pass, because inserted text may contain the names of other placeholders.
    places = "|".join(re.escape(place) for place in parts)
    return re.sub(places, lambda place: parts[place[0]], _asset("page.html"))


def embedded_json(data: object) -> str:
    """Return JSON that cannot end its script element or start a comment in it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(script: str, style: str) -> str:
    return (
        f"default-src 'none'; script-src {policy_hash(script)}; style-src {policy_hash(style)}; "
        "base-uri 'none'; form-action 'none'"
    )


def policy_hash(text: str) -> str:
    """Return the source by which a security policy allows a script or style sheet of a page."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _asset(name: str) -> str:
    return (resources.files("ajet_server.page") / "viewer" / name).read_text(encoding="utf-8")
