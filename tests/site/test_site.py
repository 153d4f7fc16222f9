"""The documentation site: its build is strict, its links lead somewhere, and nothing is fetched."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import http.server
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest

from tests.support.browser import headless_browser
from tests.test_layers import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

WIDTHS = {"desktop": 1280, "phone": 390}
PAGES = ("", "quickstart/", "settings/", "reference/cli/", "reference/python/agentjet/")


class Page(HTMLParser):
    """The links of a page, what it loads, and the places in it that links can lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        its = {name: value or "" for name, value in attrs}
        self.places |= {its[name] for name in ("id", "name") if name in its}
        if tag == "a" and "href" in its:
            self.links.append(its["href"])
        elif tag == "link" and its.get("rel") not in ("prev", "next", "canonical"):
            self.loaded.append(its["href"])
        elif "src" in its:
            self.loaded.append(its["src"])


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it, once for all processes of a test run."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "site" / "llms.txt").exists():
            done = subprocess.run(
                [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(shared / "site")],
                check=False,
                cwd=ROOT,
                env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "NO_COLOR": "1"},
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr[-4000:]
    return shared / "site"


@functools.cache
def parsed(path: Path) -> Page:
    """A page of the site."""
    return Page(path.read_text(encoding="utf-8"))


def test_links_lead_to_pages_and_places_that_exist(site: Path) -> None:
    broken = []
    for path in site.rglob("*.html"):
        if path.name == "404.html":
            # Its links begin with the address of the site.
            continue
        here = path.relative_to(site).as_posix()
        for link in {*parsed(path).links, *parsed(path).loaded}:
            url = urlsplit(urljoin(f"site:///{here}".replace("site:", "http:"), link))
            if urlsplit(link).scheme:
                continue
            target = site / unquote(url.path).lstrip("/")
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                broken.append(f"{here}: {link}")
            elif target.suffix == ".html" and url.fragment:
                places = parsed(target).places
                broken += [f"{here}: {link}"] if unquote(url.fragment) not in places else []
    assert broken == []


def test_pages_load_nothing_from_outside(site: Path) -> None:
    outside = {
        f"{path.relative_to(site)}: {url}"
        for path in site.rglob("*.html")
        for url in parsed(path).loaded
        if urlsplit(url).scheme not in ("", "data") or url.startswith("//")
    }
    styles = {
        f"{path.relative_to(site)}: {url}"
        for path in site.rglob("*.css")
        for url in re.findall(r"url\((['\"]?(?:https?:)?//[^)]*)\)", path.read_text("utf-8"))
    }
    assert outside | styles == set()


def test_the_page_of_a_tutorial_offers_its_program(site: Path) -> None:
    tutorials = sorted(ROOT.glob("contrib/tutorials/*/tutorial.py"))
    assert tutorials
    for program in tutorials:
        page = site / "tutorials" / program.parent.name / "index.html"
        links = [link for link in parsed(page).links if link.endswith("/tutorial.py")]
        assert len(links) == 1, page
        assert (page.parent / links[0]).resolve().read_bytes() == program.read_bytes()


def test_the_list_of_tutorials_says_which_need_another_package(site: Path) -> None:
    page = (site / "tutorials" / "index.html").read_text(encoding="utf-8")
    assert "agentjet[langchain]" in page
    assert page.count("It needs") == 8


def test_assistants_can_read_all_pages(site: Path) -> None:
    index = (site / "llms.txt").read_text(encoding="utf-8")
    everything = (site / "llms-full.txt").read_text(encoding="utf-8")
    listed = re.findall(r"^- \[[^]]+\]\(([^)]+)\)", index, re.MULTILINE)
    assert len(listed) > 80
    assert re.findall(r"^<!-- page: (\S+) -->$", everything, re.MULTILINE) == listed
    for place in listed:
        assert (site / place).with_suffix(".html").is_file()
        assert (site / place).read_text(encoding="utf-8").strip() in everything
    assert "def " not in (site / "reference/python/agentjet/index.md").read_text("utf-8")[:300]


@contextlib.contextmanager
def plain_server(directory: Path) -> Iterator[str]:
    """Serve a directory as `python -m http.server` does; yield its address."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Handler, directory=str(directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_a_browser_shows_and_searches_it_without_the_network(site: Path) -> None:
    asyncio.run(_look(site))


async def _look(site: Path) -> None:
    problems: list[str] = []
    with plain_server(site) as base:
        async with headless_browser() as browser:
            for scheme in ("light", "dark"):
                for device, width in WIDTHS.items():
                    page = await browser.new_page(
                        color_scheme=scheme, viewport={"width": width, "height": 900}
                    )
                    # The next page ends the requests of this one.
                    page.on(
                        "requestfailed",
                        lambda request: (
                            request.failure == "net::ERR_ABORTED" or problems.append(request.url)
                        ),
                    )
                    page.on(
                        "request",
                        lambda request: (
                            request.url.startswith((base, "data:", "blob:"))
                            or problems.append(request.url)
                        ),
                    )
                    page.on("pageerror", lambda error: problems.append(str(error)))
                    for path in PAGES:
                        await page.goto(base + path)
                        wide = await page.evaluate("document.documentElement.scrollWidth")
                        assert wide <= width, f"{path} is wider than a {device}"
                    shade = await page.evaluate("getComputedStyle(document.body).backgroundColor")
                    red = int(re.findall(r"\d+", shade)[0])
                    assert (red < 128) == (scheme == "dark")
                    await page.close()
            page = await browser.new_page()
            await page.goto(base + "settings/")
            await page.locator("input.md-search__input").click()
            await page.locator("input.md-search__input").press_sequentially("staleness")
            found = page.locator("a.md-search-result__link[href*='rollouts']").first
            await found.wait_for(state="attached")
    assert problems == []
