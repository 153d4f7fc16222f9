"""Text on the colours of tokens can be read, in the light and in the dark."""

from __future__ import annotations

import re
from importlib import resources

import pytest

CSS = (resources.files("ajet_server.page") / "viewer" / "page.css").read_text(encoding="utf-8")
LIGHT, _, REST = CSS.partition("@media (prefers-color-scheme: dark)")
DARK = REST.partition("* { box-sizing")[0]
COLOUR = re.compile(r"--([\w-]+): (#[0-9a-f]{6});")
SHADES = re.findall(r"\.((?:div|seq)-\d) \{ background: color-mix\(.*?--(\w+)\) (\d+)%", CSS)

Rgb = tuple[float, ...]


def rgb(text: str) -> Rgb:
    return tuple(int(text[at : at + 2], 16) / 255 for at in (1, 3, 5))


def luminance(colour: Rgb) -> float:
    """Return the relative luminance of WCAG 2."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return sum(
        weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True)
    )


def contrast(one: Rgb, other: Rgb) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_text_on_every_shade_and_hit_has_enough_contrast(mode: str) -> None:
    colours = dict(COLOUR.findall(LIGHT))
    if mode == "dark":
        colours |= dict(COLOUR.findall(DARK))
    paper, ink = rgb(colours["paper"]), rgb(colours["ink"])
    shades = [*SHADES, *((name, name, "100") for name in ("hit", "hit-now"))]
    assert len(shades) == 8 + 7 + 2
    for name, base, percent in shades:
        share = int(percent) / 100
        mixed = tuple(
            share * top + (1 - share) * below
            for top, below in zip(rgb(colours[base]), paper, strict=True)
        )
        assert contrast(mixed, ink) >= 4.5, name
