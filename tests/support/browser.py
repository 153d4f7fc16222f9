"""A headless browser for the tests of pages."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from typing import Any

import pytest

SYSTEM_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@contextlib.asynccontextmanager
async def headless_browser() -> AsyncIterator[Any]:
    """Run playwright's own browser, or that of the system; skip the test without one."""
    async_api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
    # Chromium has no sandbox for root.
    args = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_api.async_playwright() as playwright:
        try:
            running = await playwright.chromium.launch(args=args)
        except async_api.Error:
            path = next(filter(None, map(shutil.which, SYSTEM_BROWSERS)), None)
            if path is None:
                pytest.skip("no browser: run `make browser`, or install chromium")
            running = await playwright.chromium.launch(executable_path=path, args=args)
        yield running
        await running.close()
