"""Write docs/openapi.json, the protocol as the server describes it; a test fails if they differ."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ajet_core.credentials import ServerTokens
from ajet_core.plugin import PluginManager
from ajet_installation.settings import Settings
from ajet_server.build import build_service
from ajet_server.http.app import create_app
from ajet_server.http.documented import openapi_document
from ajet_server.security.guard import TokenGuard


def openapi(run_dir: Path) -> dict[str, Any]:
    """Return the OpenAPI document of a server."""
    service = build_service(Settings(server={"run_dir": run_dir}), PluginManager())
    guard = TokenGuard(ServerTokens(control="unused", client="unused too"), service.tokens)
    document: dict[str, Any] = openapi_document(create_app(service, guard).routes)
    return document


def as_text(document: dict[str, Any]) -> str:
    """Return the document's text in the repository."""
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/openapi.json")
        target.write_text(as_text(openapi(Path(directory))), encoding="utf-8")
