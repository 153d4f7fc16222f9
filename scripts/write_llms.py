"""Write llms.txt, an index of the documentation for assistants, from the pages' first sentences."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_LENGTH = 200


def summary(text: str) -> tuple[str, str]:
    """Return the title of a page, and what its first paragraph begins with."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    title, *paragraphs = [block.strip() for block in re.split(r"\n\s*\n", text) if block.strip()]
    first = next((block for block in paragraphs if re.match(r"[A-Za-z`*\[]", block)), "")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|\*\*", r"\1", " ".join(first.split()))
    sentence = re.split(r"(?<=\.)\s", plain, maxsplit=1)[0].rstrip(":")
    if len(sentence) > _LENGTH and ": " in sentence:
        sentence = sentence.partition(": ")[0]
    if len(sentence) > _LENGTH:
        sentence = sentence[:_LENGTH].rpartition(" ")[0] + " ..."
    return title.removeprefix("# "), sentence


def entry(path: Path) -> str:
    """Return the line of a page: its title, and what its first paragraph begins with."""
    title, sentence = summary(path.read_text(encoding="utf-8"))
    return f"- [{title}]({path.relative_to(ROOT).as_posix()}): {sentence}"


def project() -> tuple[str, str]:
    """Return the name of the project, and its description."""
    title, text, *_ = (ROOT / "README.md").read_text(encoding="utf-8").split("\n\n")
    return title.removeprefix("# "), " ".join(text.split())


def section(title: str, pattern: str) -> list[str]:
    """Return the lines of the pages that match a pattern."""
    return [f"## {title}", "", *map(entry, sorted(ROOT.glob(pattern))), ""]


def text() -> str:
    """Return the text of llms.txt."""
    name, what = project()
    skills = [
        f"- [{path.parent.name}]({path.relative_to(ROOT).as_posix()})"
        for path in sorted(ROOT.glob("skills/*/SKILL.md"))
    ]
    lines = [
        f"# {name}",
        "",
        f"> {what}",
        "",
        *section("Documentation", "docs/*.md"),
        *section("Kinds of plugins", "docs/plugins/*.md"),
        "## Skills",
        "",
        *skills,
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "llms.txt"
    target.write_text(text(), encoding="utf-8")
