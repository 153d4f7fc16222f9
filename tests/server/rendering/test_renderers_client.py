"""The server imports `renderers` without its HTTP client, which others can still use."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes
pytest.importorskip("renderers")

SERVER = "import ajet_server.gateway.rendering, renderers, sys; from renderers import "
"""As the server imports it, in a process of its own."""


def output(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SERVER + code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_no_http_library_of_the_client_is_imported() -> None:
    loaded = output(
        "create_renderer; print(*sorted({'openai', 'httpx', 'aiohttp'} & {*sys.modules}))"
    )
    assert loaded == ""


@pytest.mark.parametrize(
    "use",
    [
        "from renderers.client import generate as used",
        "import renderers.client; used = renderers.client.generate",
        "used = sys.modules['renderers.client'].generate",
    ],
)
def test_the_client_is_imported_when_it_is_used(use: str) -> None:
    pytest.importorskip("openai")
    pytest.importorskip("httpx")
    real = output(
        f"create_renderer; {use}; from renderers.client import OverlongPromptError as error; "
        "print(used.__module__, 'openai' in sys.modules, error is renderers.OverlongPromptError)"
    )
    assert real == "renderers.client True True"


def test_a_client_that_was_imported_before_stays() -> None:
    code = "import renderers, sys; client = renderers.client; import ajet_server.gateway.rendering"
    checked = f"{code}; assert sys.modules['renderers.client'] is client; client.generate"
    subprocess.run([sys.executable, "-c", checked], check=True)
