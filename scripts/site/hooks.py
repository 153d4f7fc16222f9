"""What MkDocs cannot do by itself: pages from outside docs/, links between them, and llms.txt.

MkDocs calls the functions `on_...` while it builds the site (``hooks`` in mkdocs.yml).
"""

from __future__ import annotations

import os
import posixpath
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jupytext
from markdownify import markdownify
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts"), str(ROOT / "scripts" / "site")]

import reference  # noqa: E402
import write_llms  # noqa: E402

from ajet_core import __version__  # noqa: E402

_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_FIGURE = re.compile(r'<img alt="([^"]*)" src="([^"]+\.svg)" ?/?>')
_TUTORIALS = "contrib/tutorials/*/tutorial.py"


@cache
def _generated() -> dict[str, str]:
    return reference.pages()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace the patterns of the navigation by the pages that they match."""
    config.nav = list(_expanded(config.nav or []))
    config.copyright = f"agentjet {__version__}"
    if "MIKE_DOCS_VERSION" in os.environ:
        # Only what mike has deployed lies beside other versions, which the header lists.
        config.extra["version"] = {"provider": "mike", "default": "latest"}
    return config


def _expanded(entries: list[Any]) -> Iterator[Any]:
    for entry in entries:
        if isinstance(entry, str) and "*" in entry:
            yield from _matching(entry)
        elif isinstance(entry, dict):
            yield {
                title: list(_expanded(inner)) if isinstance(inner, list) else inner
                for title, inner in entry.items()
            }
        else:
            yield entry


def _matching(pattern: str) -> list[str]:
    """Return the pages of the site that match a pattern, sorted."""
    in_docs = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").glob(pattern)}
    elsewhere = {path.relative_to(ROOT) for path in ROOT.glob(pattern)}
    generated = {Path(uri) for uri in _generated() if Path(uri).match(pattern)}
    matching = sorted(path.as_posix() for path in in_docs | elsewhere | generated)
    return [_page_of_tutorial(path) for path in matching] if pattern == _TUTORIALS else matching


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the navigation that are not in docs/."""
    for uri, text in _generated().items():
        files.append(File.generated(config, uri, content=text))
    for uri in _leaves(config.nav or []):
        if files.get_file_from_path(uri) is None and (ROOT / _source(uri)).is_file():
            files.append(File.generated(config, uri, abs_src_path=str(ROOT / _source(uri))))
    return files


def _page_of_tutorial(path: str) -> str:
    """Return where the site has a tutorial, whose path ends with ``NAME/tutorial.py``."""
    return f"tutorials/{posixpath.basename(posixpath.dirname(path))}.md"


def _source(uri: str) -> str:
    """Return the file of the repository that a page of the navigation is made from."""
    if re.match(r"tutorials/\d", uri):
        return f"contrib/{uri.removesuffix('.md')}/tutorial.py"
    return uri


def _leaves(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        for inner in entry.values():
            yield from _leaves(inner)
    else:
        for inner in entry:
            yield from _leaves(inner)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to the pages of the site, and to copies of other files of the repository."""
    uri = page.file.src_uri
    if uri == "tutorials/index.md":
        markdown = markdown.replace("<!-- tutorials -->", _tutorials())
    if uri in _generated():
        return markdown
    place = Path(page.file.abs_src_path or "").relative_to(ROOT).as_posix()
    if place.endswith("/tutorial.py"):
        markdown = _tutorial(ROOT / place)

    def rewritten(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(place), match[1]))
        # The page of a tutorial offers the program itself for download.
        own = path == place and path.endswith("/tutorial.py")
        target = (_added if own else _place_in_site)(path, config, files)
        # The first page takes the place of the README, and has other sections.
        anchor = "" if path == "README.md" else match[2] or ""
        return posixpath.relpath(target, posixpath.dirname(uri) or ".") + anchor

    blocks = _FENCE.split(markdown)
    # Every second block is code.
    blocks[::2] = [_LINK.sub(rewritten, block) for block in blocks[::2]]
    return "".join(blocks)


def _place_in_site(path: str, config: MkDocsConfig, files: Files) -> str:
    """Return where the site has a file of the repository; a file that it lacks is added."""
    if path == "README.md":
        return "index.md"
    if path.endswith("/tutorial.py"):
        return _page_of_tutorial(path)
    if path == "contrib/tutorials":
        return "tutorials/index.md"
    if (ROOT / path).is_dir() and (ROOT / path / "README.md").is_file():
        path += "/README.md"
    return _added(path, config, files)


def _added(path: str, config: MkDocsConfig, files: Files) -> str:
    """Return where the site has a file of the repository as it stands, or as a page."""
    uri = path.removeprefix("docs/")
    if files.get_file_from_path(uri) is None and (ROOT / path).is_file():
        # A page that is not in the navigation is shown as it stands.
        uri += ".txt" if uri.endswith(".md") else ""
        if files.get_file_from_path(uri) is None:
            files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    return uri


def _tutorial(path: Path) -> str:
    """Return a tutorial as Markdown: its texts and code, what it prints, and its curve."""
    blocks = [
        cell.source if cell.cell_type == "markdown" else f"```python\n{cell.source}\n```"
        for cell in jupytext.read(path).cells
    ]
    output = (path.parent / "output.txt").read_text(encoding="utf-8").rstrip()
    place = path.relative_to(ROOT).as_posix()
    result = [
        "## What it prints and plots",
        f"Download [tutorial.py](tutorial.py), or run `{place}` in a clone of the repository.",
        "This is how one run came out:",
        f"```text\n{output}\n```",
        "![The curve that the program plots](curve.png)",
    ]
    # The last cell says what to try next.
    return "\n\n".join([*blocks[:-1], *result, blocks[-1]])


def _tutorials() -> str:
    """Return a list of the tutorials, as Markdown of a page in docs/tutorials."""
    lines = []
    for path in sorted(ROOT.glob(_TUTORIALS)):
        text = _tutorial(path)
        title, sentence = write_llms.summary(text)
        needs = re.search(r"^It needs (Linux|`).*", text, re.MULTILINE)
        lines.append(
            f"- [{title}](../../{path.relative_to(ROOT).as_posix()}): {sentence}"
            + (f" {needs[0]}" if needs else "")
        )
    return "\n".join(lines)


_pages: dict[str, str] = {}


def on_page_content(content: str, page: Page, **_: Any) -> str:
    """Keep the Markdown of the page for llms-full.txt, and draw its figures in its colours."""
    text = page.markdown or ""
    if re.search(r"^::: ", text, re.MULTILINE):
        text = markdownify(content, heading_style="ATX", strip=["a"])
    _pages[page.file.src_uri] = text

    def drawn(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page.url + "x"), match[2]))
        source = (ROOT / "docs" / path).read_text(encoding="utf-8")
        body = source[source.index("<svg") :]
        body = re.sub(r"<style>.*?</style>", "", body, flags=re.DOTALL)
        return body.replace("<svg", f'<svg class="figure" role="img" aria-label="{match[1]}"', 1)

    return _FIGURE.sub(drawn, content)


_nav: list[Navigation] = []


def on_nav(nav: Navigation, **_: Any) -> Navigation:
    """Keep the navigation, in whose order llms.txt lists the pages."""
    _nav[:] = [nav]
    return nav


def on_post_build(config: MkDocsConfig) -> None:
    """Write each page as Markdown, their index llms.txt, and all of them as llms-full.txt."""
    site = Path(config.site_dir)
    name, summary = write_llms.project()
    index = [f"# {name}", "", f"> {summary}", ""]
    full = [f"# {name} {__version__}", "", summary, ""]
    for section in _nav[0].items:
        pages = list(_pages_of(section))
        index += [f"## {section.title or name}", ""]
        for page in pages:
            text = _pages[page.file.src_uri]
            title, sentence = write_llms.summary(text)
            place = page.file.dest_uri.removesuffix("html") + "md"
            (site / place).write_text(text, encoding="utf-8")
            index.append(f"- [{title}]({place})" + (f": {sentence}" if sentence else ""))
            full += [f"<!-- page: {place} -->", "", text.strip(), ""]
        index.append("")
    (site / "llms.txt").write_text("\n".join(index), encoding="utf-8")
    (site / "llms-full.txt").write_text("\n".join(full), encoding="utf-8")


def _pages_of(item: Any) -> Iterator[Page]:
    if isinstance(item, Page):
        yield item
    elif isinstance(item, Section):
        for inner in item.children:
            yield from _pages_of(inner)
