"""The checked-in OpenAPI document is what the server serves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ajet_testing.servers import Running

pytestmark = pytest.mark.processes

DOCUMENT = Path(__file__).parents[2] / "docs" / "openapi.json"


async def test_the_served_document_is_the_one_in_the_repository(server: Running) -> None:
    served = (await server.http.get("/openapi.json")).json()
    kept = json.loads(DOCUMENT.read_text(encoding="utf-8"))
    assert served == kept, "run: python scripts/write_openapi.py"


async def test_every_route_documents_its_errors(server: Running) -> None:
    served = (await server.http.get("/openapi.json")).json()
    operations = [o for path in served["paths"].values() for o in path.values()]
    assert len(operations) >= 14
    for operation in operations:
        assert operation["summary"]
        error = json.dumps(operation["responses"]["4XX"])
        assert "ErrorBody" in error or "the dialect's form" in error
