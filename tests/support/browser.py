"""A headless browser for the tests of pages."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

SYSTEM_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# Chromium has no sandbox for root.
ARGUMENTS = ["--no-sandbox"] if os.geteuid() == 0 else []
# As playwright starts it, of what makes a difference to these pages.
ALONE = [
    *("--headless", "--disable-gpu", "--hide-scrollbars", "--mute-audio", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-extensions", "--disable-dev-shm-usage", "--force-color-profile=srgb"),
    "--remote-debugging-port=0",
]


@contextlib.asynccontextmanager
async def headless_browser() -> AsyncIterator[Any]:
    """Run playwright's own browser, or that of the system; skip the test without one."""
    async with _playwright() as playwright:
        path = _browser(playwright)
        yield (running := await playwright.chromium.launch(executable_path=path, args=ARGUMENTS))
        await running.close()


@contextlib.contextmanager
def shared_browser(directory: Path) -> Iterator[str]:
    """Run a browser that many tests use, each by `connected`, and return its address.

    Starting one takes longer than most tests.

    :param directory: for its profile; new.
    """
    command = [asyncio.run(_path()), *ARGUMENTS, *ALONE, f"--user-data-dir={directory}"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = map(re.compile(r"DevTools listening on (\S+)").search, process.stderr)
        address = next(filter(None, said))[1]
        # The browser would wait for a full pipe.
        threading.Thread(target=list, args=(said,), daemon=True).start()
        yield address
    finally:
        process.terminate()
        process.wait()


@contextlib.asynccontextmanager
async def connected(address: str) -> AsyncIterator[Any]:
    """Use the browser of `shared_browser`; nothing is left of the pages afterwards."""
    async with _playwright() as playwright:
        running = await playwright.chromium.connect_over_cdp(address)
        yield running
        for context in running.contexts[1:]:
            await context.close()
        await running.close()


async def _path() -> str:
    async with _playwright() as playwright:
        return _browser(playwright)


def _playwright() -> Any:
    api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
    return api.async_playwright()


def _browser(playwright: Any) -> str:
    path: str | None = playwright.chromium.executable_path
    if path is None or not Path(path).exists():
        path = next(filter(None, map(shutil.which, SYSTEM_BROWSERS)), None)
    if path is None:
        pytest.skip("no browser: run `make browser`, or install chromium")
    return path
