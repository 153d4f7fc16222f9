"""Importing the client is quick and clean."""

from __future__ import annotations

import subprocess
import sys

import pytest

import agentjet.client


@pytest.mark.processes
def test_nothing_heavy_is_imported() -> None:
    heavy = ["torch", "transformers", "starlette", "uvicorn", "openai", "httpx2", "rich", "numpy"]
    # Of plugins' interfaces and of token trees, a client needs nothing.
    heavy += ["ajet_core.interfaces", "ajet_core.timeline", "ajet_server"]
    code = f"import sys, agentjet; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_public_names_are_sorted_and_exist() -> None:
    names = agentjet.client.__all__
    assert names == sorted(names)
    assert all(hasattr(agentjet.client, name) for name in names)
