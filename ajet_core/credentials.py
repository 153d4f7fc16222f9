"""Token files, by which a server shares its tokens with local clients of the same user.

Only the owner can read the file, so a local client needs no configuration, and other users of the
machine have no access. For a remote client, the user sets the token (``AJET_TOKEN``).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from ajet_core.files import read_json

STATE = "state"
"""Folder of a run directory that replaces ``$XDG_STATE_HOME`` for a `LocalServer`."""
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True)
class ServerTokens:
    """The tokens of one server.

    :param control: may configure, start and stop runs, and do everything that `client` may.
    :param client: may claim episodes and read status.
    """

    control: str = field(repr=False)
    client: str = field(repr=False)


def state_dir(root: Path | None = None) -> Path:
    """Return the directory of token files, in `root` or ``$XDG_STATE_HOME`` or the default."""
    if root is None:
        home = os.environ.get("XDG_STATE_HOME")
        root = Path(home) if home else Path.home() / ".local/state"
    return root / "agentjet" / "servers"


def find_local(url: str, directory: Path | None = None) -> ServerTokens | None:
    """Return the tokens of a local server of this user; `directory` replaces `state_dir`."""
    parts = urlsplit(url)
    if parts.hostname not in LOOPBACK_HOSTS:
        return None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    path = (directory or state_dir()) / f"{port}.json"
    try:
        if path.stat().st_uid != getattr(os, "getuid", int)():  # 0 on Windows
            return None
        tokens = read_json(path)
        return ServerTokens(control=str(tokens["control"]), client=str(tokens["client"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
