"""The page in a real browser, from the disk. `make browser` installs a browser."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from click.testing import CliRunner

from ajet_cli.main import cli
from tests.inspect.recorded import Recording, said
from tests.support.browser import headless_browser

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]

MANY = 100_000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Any]:
    async with headless_browser() as running:
        yield running


@dataclass(slots=True)
class Opened:
    """A page, and what went wrong in it."""

    page: Any
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    async def details(self) -> str:
        """The text of the panel about the selected token."""
        text: str = await self.page.locator("#details").inner_text()
        return text

    async def legend(self) -> str:
        """What the colours mean."""
        text: str = await self.page.locator("#legend").inner_text()
        return text


Open = Callable[..., Awaitable[Opened]]


@pytest_asyncio.fixture(loop_scope="module")
async def open_page(browser: Any, tmp_path: Path) -> AsyncIterator[Open]:
    """Writes a page with the command and opens it; it must not fail or request anything."""
    opened: list[Opened] = []

    async def open_page(run_dir: Path, *args: str, width: int = 1400) -> Opened:
        path = tmp_path / "page.html"
        command = ["inspect", str(run_dir), *args, "--html", str(path)]
        # It has an event loop of its own.
        result = await asyncio.to_thread(CliRunner().invoke, cli, command)
        assert result.exit_code == 0, result.output
        page = await browser.new_page(viewport={"width": width, "height": 900})
        found = Opened(page)
        page.on("console", lambda message: found.problems.append(message.text))
        page.on("pageerror", lambda error: found.problems.append(str(error)))
        page.on("request", lambda request: found.requests.append(request.url))
        await page.goto(path.as_uri())
        await page.wait_for_selector(".t")
        opened.append(found)
        return found

    yield open_page
    for found in opened:
        assert found.problems == []
        assert [url.rpartition("/")[2].partition("#")[0] for url in found.requests] == ["page.html"]
        await found.page.close()


async def test_hostile_texts_stay_texts(open_page: Open, run_dir: Path) -> None:
    page = (await open_page(run_dir, "ep-aaa1")).page
    assert await page.title() == "run-1: episode ep-aaa1"
    assert await page.locator("img").count() == 0
    tool = page.locator(".block", has=page.get_by_text("result"))
    assert "</script><img src=x onerror=" in await tool.first.inner_text()
    assert "\u202e" not in await page.locator("body").inner_text()


async def test_pointing_at_a_sampled_token_shows_what_is_known(
    open_page: Open, run_dir: Path, recording: Recording
) -> None:
    call = recording.calls["ep-aaa1"][0]
    page = (await open_page(run_dir, "ep-aaa1")).page
    await page.locator(".t.s").first.hover()
    tip = await page.locator("#tip").inner_text()
    assert str(call.sampled_ids[0]) in tip
    assert f"{abs(call.logprobs[0]):.4f}" in tip
    for expected in ("sampled, trained", "planner, call 0, policy 3", "+0.5000", "assistant"):
        assert expected in tip
    await page.locator(".t.s").first.click()
    assert "ep-aaa1-c0" in await page.locator("#details").inner_text()


@pytest.mark.nightly
async def test_a_click_keeps_a_token_and_escape_lets_it_go(open_page: Open, run_dir: Path) -> None:
    opened = await open_page(run_dir, "ep-aaa1")
    await opened.page.locator(".t").first.click()
    assert "context" in await opened.details()
    assert await opened.page.locator(".t.sel").count() == 1
    await opened.page.keyboard.press("Escape")
    assert await opened.page.locator(".t.sel").count() == 0
    assert "Point at a token" in await opened.details()


@pytest.mark.nightly
async def test_what_had_no_effect_is_shown(open_page: Open, run_dir: Path) -> None:
    opened = await open_page(run_dir, "ep-aab2")
    await opened.page.locator(".t.s").first.click()
    details = await opened.details()
    assert "without effect" in details
    assert "metadata,tools[1]" in details


@pytest.mark.nightly
async def test_a_token_that_was_not_trained_says_so(open_page: Open, run_dir: Path) -> None:
    opened = await open_page(run_dir, "ep-aaa1")
    await opened.page.locator(".branch", has_text="critic").last.locator(".t.s").first.click()
    assert "sampled, not trained" in await opened.details()


@pytest.mark.nightly
async def test_parts_of_a_character_are_shown_as_bytes(open_page: Open, run_dir: Path) -> None:
    opened = await open_page(run_dir, "ep-aaa1")
    await opened.page.locator(".t.bytes", has_text="c3").first.click()
    assert "bytes" in await opened.details()


@pytest.mark.nightly
async def test_each_colour_mode_has_its_colours(open_page: Open, run_dir: Path) -> None:
    opened = await open_page(run_dir, "ep-aaa1")
    page = opened.page
    expected = {
        "1": ("role-user", "template"),
        "2": ("seq-", "\u22120.7"),
        "3": ("div-", "same"),
        "4": ("div-", "not trained"),
        "5": ("cat-", "version 4"),
    }
    for key, (name, text) in expected.items():
        await page.keyboard.press(key)
        assert text in await opened.legend()
        assert await page.locator(f".t[class*='{name}']").count() > 0
    await page.get_by_text("Logprob", exact=True).click()
    assert "\u22120.7" in await opened.legend()
    assert await page.locator(".t.untrained, .t[class*='cat-']").count() == 0


async def test_search_goes_from_hit_to_hit(open_page: Open, run_dir: Path) -> None:
    opened = await open_page(run_dir, "ep-aaa1")
    page, hits = opened.page, opened.page.locator("#hits")
    await page.keyboard.press("/")
    await page.keyboard.type("THE ANSWER")
    await page.keyboard.press("Enter")
    assert await hits.inner_text() == "1 of 2"
    first = await page.locator(".t.now").all_inner_texts()
    assert "".join(first) == "the answer"
    assert await page.locator(".t.now").first.is_visible()
    await page.keyboard.press("Shift+Enter")
    assert await hits.inner_text() == "2 of 2"
    await page.keyboard.press("Escape")
    await page.keyboard.press("n")
    assert await hits.inner_text() == "1 of 2"
    await page.locator("#query").fill("nowhere at all")
    await page.keyboard.press("Enter")
    assert await hits.inner_text() == "no hits"
    assert await page.locator(".t.hit").count() == 0


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("query", "hits"),
    [
        # The message with this character is in two timelines.
        ("id:{0}", "1 of 2"),
        ("id: {0} {1}", "1 of 2"),
        ("id:{1} {0}", "no hits"),
        ("role:TOOL", "1 of 2"),
        ("agent:critic", "1 of 1"),
    ],
)
async def test_ids_roles_and_agents_are_found(
    open_page: Open, run_dir: Path, recording: Recording, query: str, hits: str
) -> None:
    page = (await open_page(run_dir, "ep-aaa1")).page
    await page.locator("#query").fill(query.format(*recording.ids("\u00e9")))
    await page.keyboard.press("Enter")
    assert await page.locator("#hits").inner_text() == hits


@pytest.mark.nightly
async def test_a_character_of_several_tokens_is_found(open_page: Open, run_dir: Path) -> None:
    page = (await open_page(run_dir, "ep-aaa1")).page
    await page.locator("#query").fill("\U0001f600")
    await page.keyboard.press("Enter")
    assert await page.locator("#hits").inner_text() == "1 of 2"
    assert await page.locator(".t.now").count() == 4


@pytest.mark.nightly
async def test_arrows_walk_over_tokens_and_branches(open_page: Open, run_dir: Path) -> None:
    opened = await open_page(run_dir, "ep-aaa1")
    page = opened.page
    await page.locator("#main").focus()
    selected = page.locator(".t.sel")
    await page.keyboard.press("ArrowRight")
    assert await selected.get_attribute("data-t") == "0:0"
    await page.keyboard.press("ArrowRight")
    assert await selected.get_attribute("data-t") == "1:0"
    await page.keyboard.press("Shift+ArrowRight")
    branch = await selected.get_attribute("data-t")
    assert branch not in (None, "1:0")
    await page.keyboard.press("ArrowLeft")
    assert await selected.get_attribute("data-t") == "0:0"


@pytest.mark.nightly
async def test_the_trunk_is_shown_once_and_branches_beside_each_other(
    open_page: Open, run_dir: Path
) -> None:
    page = (await open_page(run_dir, "ep-aaa1")).page
    assert await page.locator(".text", has_text="You are helpful.").count() == 1
    one, two = [await page.locator(".branch.leaf").nth(i).bounding_box() for i in (0, 1)]
    assert one["y"] == two["y"]
    assert one["x"] + one["width"] <= two["x"]


@pytest.mark.nightly
async def test_a_branch_folds_and_unfolds(open_page: Open, run_dir: Path) -> None:
    page = (await open_page(run_dir, "ep-aaa1")).page
    branch = page.locator(".branch.leaf").first
    toggle = branch.locator(".toggle")
    await toggle.click()
    assert await toggle.get_attribute("aria-expanded") == "false"
    assert await branch.locator(".t").first.is_hidden()
    await toggle.press("Enter")
    assert await toggle.get_attribute("aria-expanded") == "true"
    await branch.locator(".t").first.wait_for(state="visible")


@pytest.mark.nightly
async def test_forks_are_told_with_what_changed(open_page: Open, run_dir: Path) -> None:
    opened = await open_page(run_dir, "ep-aaa1")
    forks = opened.page.locator("#forks")
    assert "rewrites a message of its history" in await forks.inner_text()
    assert await forks.locator("del").inner_text() == "01"
    assert await forks.locator("ins").inner_text() == "02"
    assert "rewrites the system message" in await opened.page.locator("#sentences").inner_text()
    await forks.get_by_text("call 2: rewritten").click()
    assert "ep-aaa1-c2" in await opened.details()


async def test_a_step_shows_all_its_episodes(open_page: Open, run_dir: Path) -> None:
    opened = await open_page(run_dir, "--step", "1")
    page = opened.page
    assert await page.locator("#episodes li").count() == 2
    await page.keyboard.press("]")
    assert "ep-aab2" in await page.locator("#episode-head").inner_text()
    await page.locator("#query").fill("another one")
    await page.keyboard.press("Enter")
    assert "ep-aaa1" in await page.locator("#episode-head").inner_text()


@pytest.mark.nightly
async def test_a_cut_page_says_so(open_page: Open, run_dir: Path) -> None:
    page = (await open_page(run_dir, "--step", "1", "--max-tokens", "100")).page
    assert "This page holds 100 tokens" in await page.locator("#notices").inner_text()
    assert "not in this page" in await page.locator("#tree").inner_text()
    await page.keyboard.press("]")
    assert "full before it" in await page.locator("#episode-head").inner_text()


@pytest.mark.nightly
async def test_without_a_tokenizer_ids_are_shown(
    open_page: Open, run_dir: Path, recording: Recording, tmp_path: Path
) -> None:
    page = (await open_page(run_dir, "ep-aab2", "--tokenizer", str(tmp_path / "gone"))).page
    assert "shown as ids" in await page.locator("#notices").inner_text()
    (call,) = recording.calls["ep-aab2"]
    assert await page.locator(".t.s").all_inner_texts() == [str(each) for each in call.sampled_ids]


@pytest.mark.nightly
@pytest.mark.parametrize("width", [1400, 400])
async def test_a_hundred_thousand_tokens_are_not_all_in_the_document(
    open_page: Open, model_dir: Path, tmp_path: Path, width: int
) -> None:
    recording = Recording(model_dir)
    episode = recording.episode("long")
    words = " you are" * (MANY // 4)
    messages = [said("system", "brief"), said("user", words), said("tool", f"{words} needle")]
    recording.call(episode, messages, "it was" * 2000)
    page = (await open_page(await recording.save(tmp_path / "run"), "long", width=width)).page
    assert len(await page.evaluate("document.querySelector('#data').textContent")) > MANY
    assert 0 < await page.locator(".t").count() < 20_000
    await page.locator("#query").fill("needle")
    await page.keyboard.press("Enter")
    assert await page.locator("#hits").inner_text() == "1 of 1"
    assert "needle" in "".join(await page.locator(".t.now").all_inner_texts())
    assert await page.locator(".t.now").first.is_visible()
    assert await page.locator(".t").count() < 20_000
