"""``ajet monitor``: when it cannot be shown, and whom it shows."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import re
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ajet_cli.commands.run.monitor import (
    check_terminal,
    glyphs_of_terminal,
    load_application,
    read_servers,
    split_token,
)
from ajet_cli.main import cli
from ajet_cli.monitor.layout import ASCII, UNICODE
from ajet_core.errors import ConfigError, UnreadableFileError
from ajet_testing.servers import CONTROL, Running

# What a terminal is sent, without sequences that move, colour and switch modes.
_SEQUENCE = re.compile(rb"\x1b\[[0-9;?<>=]*[a-zA-Z]")
_COLOUR = re.compile(rb"\x1b\[(?:[0-9;]*;)?(?:3[0-7]|4[0-7]|38;|48;|9[0-7]|10[0-7])[0-9;]*m")


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_without_a_terminal_it_names_what_to_use_instead() -> None:
    result = CliRunner().invoke(cli, ["monitor"])
    assert result.exit_code == 1
    assert "the monitor needs a terminal: `ajet status`" in result.output


@pytest.mark.parametrize("redirected", [0, 1, 2])
def test_each_stream_has_to_be_a_terminal(redirected: int) -> None:
    streams: list[io.StringIO] = [Terminal() for _ in range(3)]
    check_terminal(streams, {"TERM": "xterm"})
    streams[redirected] = io.StringIO()
    with pytest.raises(click.ClickException, match="ajet status"):
        check_terminal(streams, {"TERM": "xterm"})


def test_a_terminal_that_cannot_move_its_cursor_is_refused() -> None:
    with pytest.raises(click.ClickException, match="TERM is dumb: `ajet status`"):
        check_terminal([Terminal()], {"TERM": "dumb"})


def test_without_textual_it_names_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [*sys.modules]:
        if name.partition(".")[0] == "textual" or name.startswith("ajet_cli.monitor."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual", None)
    with pytest.raises(
        ConfigError, match=re.escape("pip install 'agentjet[monitor]>=0.1'")
    ) as error:
        load_application()
    assert "\n" not in str(error.value)


def test_an_address_of_the_page_has_its_token() -> None:
    assert split_token(None) == (None, None)
    assert split_token("http://a:1") == ("http://a:1", None)
    assert split_token("http://a:1/ui/#token=x%2By") == ("http://a:1", "x+y")
    # Refused later, with the reason.
    assert split_token("http://a:1#other") == ("http://a:1#other", None)


def test_a_file_has_a_server_a_line(tmp_path: Path) -> None:
    file = tmp_path / "servers.txt"
    file.write_text("# planner\nhttp://a:1/ui/#token=x\n\n  http://b:2  \n")
    assert read_servers(file) == ["http://a:1/ui/#token=x", "http://b:2"]
    file.write_text("# none\n")
    with pytest.raises(UnreadableFileError, match="one a line"):
        read_servers(file)
    with pytest.raises(UnreadableFileError, match="cannot read"):
        read_servers(tmp_path / "missing")


@pytest.mark.parametrize(
    ("encoding", "terminal", "glyphs"),
    [
        ("UTF-8", "xterm", UNICODE),
        ("utf8", "tmux-256color", UNICODE),
        ("ANSI_X3.4-1968", "xterm", ASCII),
        ("ISO-8859-1", "xterm", ASCII),
        ("nonsense", "xterm", ASCII),
        ("UTF-8", "linux", ASCII),
    ],
)
def test_the_locale_says_whether_there_is_unicode(
    monkeypatch: pytest.MonkeyPatch, encoding: str, terminal: str, glyphs: object
) -> None:
    monkeypatch.setattr("locale.getencoding", lambda: encoding)
    monkeypatch.setenv("TERM", terminal)
    assert glyphs_of_terminal() is glyphs


async def drawn(primary: int, ended: asyncio.Event, wanted: bytes) -> bytes:
    """What a terminal has received when `wanted` has come, or the program has ended."""
    loop = asyncio.get_running_loop()
    received, news = bytearray(), asyncio.Event()

    def read() -> None:
        try:
            received.extend(os.read(primary, 65536))
        except OSError:
            # The other side is closed.
            ended.set()
        news.set()

    loop.add_reader(primary, read)
    try:
        while wanted not in _SEQUENCE.sub(b"", received) and not ended.is_set():
            await news.wait()
            news.clear()
    finally:
        loop.remove_reader(primary)
    return bytes(received)


@pytest.mark.processes
@pytest.mark.parametrize("colour", [True, False], ids=["colour", "no_colour"])
async def test_no_text_of_an_agent_reaches_the_terminal_as_a_command(
    server: Running, colour: bool
) -> None:
    await server.roll()
    grant = await server.claim("\x1b]52;c;aGk=\x07task")
    hostile = "\x1b]52;c;aGk=\x07 \x1b[31m [bold]x[/bold]"
    messages = [{"role": "user", "content": hostile}]
    (await server.chat(grant, messages=messages)).raise_for_status()
    primary, secondary = pty.openpty()
    environment = {
        **os.environ,
        "AJET_TOKEN": CONTROL["authorization"].removeprefix("Bearer "),
        "TERM": "xterm-256color",
        "PYTHONUTF8": "1",
        "LANG": "C.UTF-8",
        "COLUMNS": "80",
        "LINES": "24",
    }
    environment.pop("NO_COLOR", None)
    environment |= {} if colour else {"NO_COLOR": "1"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ajet_cli.main", "monitor", server.url),
        stdin=secondary,
        stdout=secondary,
        stderr=secondary,
        env=environment,
        start_new_session=True,
    )
    os.close(secondary)
    ended = asyncio.Event()
    received = b""
    try:
        async with asyncio.timeout(110):
            received += await drawn(primary, ended, b"1 episode open")
            os.write(primary, b"e")
            received += await drawn(primary, ended, rb"\u001b]52;c;aGk=\u0007task")
            os.write(primary, b"\r")
            received += await drawn(primary, ended, b"[bold]x[/bold]")
            os.write(primary, b"\x03")
            received += await drawn(primary, ended, b"never written")
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(primary)
    assert rb"\u001b]52;c;aGk=\u0007 \u001b[31m [bold]x[/bold]" in received
    assert b"\x1b]52" not in received
    assert bool(_COLOUR.search(received)) is colour
