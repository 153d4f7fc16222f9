"""A report in a real browser, from the disk."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ajet_cli.main import cli
from tests.inspect.recorded import Recording
from tests.report.learning import learning_recording
from tests.support.browser import headless_browser

pytestmark = pytest.mark.processes

# Contrast by WCAG 2.1 of texts with what is behind them, where both are plain colours.
_CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (text) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = (colour) => colour.slice(0, 3)
    .map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = rgb(getComputedStyle(e).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
  const ratio = (element) => {
    const style = getComputedStyle(element);
    const ink = rgb(element instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [luminance(ink), luminance(behind(element))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  };
  const texts = "p, li, td, th, a, summary, caption, figcaption, h1, h2, h3, .chart text";
  return [...document.querySelectorAll(texts)]
    .filter((element) => element.getClientRects().length)
    .map((element) => [ratio(element), element.tagName])
    .filter(([value]) => value < 4.5);
}"""
_LABELS = "[...document.querySelectorAll('svg[role=img]')].map((e) => e.ariaLabel)"


@pytest.fixture(scope="module")
def report(model_dir: Path, recording: Recording, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with hostile texts."""
    place = tmp_path_factory.mktemp("browser")
    hostile = learning_recording(model_dir)
    hostile.episodes += recording.episodes
    hostile.calls |= recording.calls
    hostile.unscored |= recording.unscored
    hostile.step(31, ["ep-aaa1", "ep-aab2"], reward_mean=0.5)
    run = hostile.write(place / "run")
    result = CliRunner().invoke(cli, ["report", str(run), "-o", str(place / "report.html")])
    assert result.exit_code == 0, result.output
    return place / "report.html"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
async def test_it_opens_without_scripts_and_fits(report: Path, scheme: str, width: int) -> None:
    async with headless_browser() as browser:
        context = await browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        page = await context.new_page()
        problems: list[str] = []
        requests: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: problems.append(said.text))
        page.on("request", lambda request: requests.append(request.url))
        await page.goto(report.as_uri())
        assert await page.title() == "run-1: report"
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        assert await page.locator("img").count() == 0
        assert await page.locator("figure.chart svg").first.is_visible()
        assert await page.evaluate(_CONTRAST) == []
        assert problems == []
        assert requests == [report.as_uri()]


async def test_it_can_be_read_with_the_keyboard_and_printed(report: Path, tmp_path: Path) -> None:
    async with headless_browser() as browser:
        page = await browser.new_page()
        await page.goto(report.as_uri())
        await page.get_by_role("link", name="Evaluations").focus()
        await page.keyboard.press("Enter")
        assert page.url.endswith("#evaluations")
        names: list[Any] = await page.evaluate(_LABELS)
        assert names
        assert all(names)
        printed = await page.pdf()
        await asyncio.to_thread((tmp_path / "report.pdf").write_bytes, printed)
        assert printed.startswith(b"%PDF")
        await page.emulate_media(media="print", color_scheme="dark")
        paper = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == "rgb(255, 255, 255)"
