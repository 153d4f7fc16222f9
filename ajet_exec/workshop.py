"""Directories of episodes: working copies, which are removed at the end or by the next launcher."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

from ajet_core.errors import ConfigError, SandboxError
from ajet_exec.boxes import owners
from ajet_exec.disk import Disk, DiskBudgetError, DiskUse, used_bytes

_log = logging.getLogger("ajet.exec")

_CONTROL = ".ajet"


class Workshop:
    """The directories of one launcher's episodes.

    :ivar base: the directory of those of all launchers of this user.
    :param files: a directory to copy for each episode.
    :param git: a repository and a commit to check out for each episode.
    :param base: where to make them; by default a directory of this user for temporary files.
    :param disk_bytes: that all episodes may use together; None means no limit but the disk.
    """

    def __init__(
        self,
        files: Path | None = None,
        git: tuple[Path, str] | None = None,
        base: Path | None = None,
        disk_bytes: int | None = None,
    ) -> None:
        self._files = files
        self._git = git
        self.base = base or Path(tempfile.gettempdir()) / f"ajet-exec-{os.geteuid()}"
        self._own = self.base / owners.launcher() / uuid4().hex
        self._checkout: asyncio.Task[Path] | None = None
        self._disk = Disk(self.base, disk_bytes)
        self._uses: dict[Path, DiskUse] = {}
        self._source_bytes: int | None = None

    def open(self) -> None:
        """Make the launcher's directory, and remove those of launchers that were killed.

        :raises SandboxError: the directory belongs to another user.
        :raises ConfigError: there is nothing to copy.
        """
        if self._files is not None and not self._files.is_dir():
            raise ConfigError(f"{self._files} is not a directory to copy", param="files")
        self.base.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.base.is_symlink() or self.base.stat().st_uid != os.geteuid():
            raise SandboxError(f"{self.base} belongs to another user: set TMPDIR")
        for directory in self.base.iterdir():
            if owners.is_gone(directory.name):
                remove_directory(directory)
        self._own.mkdir(parents=True)

    def close(self) -> None:
        """Remove the launcher's directory."""
        remove_directory(self._own)
        # Others of this process may still have theirs.
        with contextlib.suppress(OSError):
            self._own.parent.rmdir()

    @contextlib.asynccontextmanager
    async def episode(self) -> AsyncIterator[Path]:
        """Yield the directory of an episode, whose subdirectory ``work`` is its working copy.

        :raises DiskFullError: the disk has no room, or became full.
        :raises DiskBudgetError: all episodes together used more of it than they may.
        :raises SandboxError: the working copy cannot be made.
        """
        source = self._files if self._git is None else await self._checked_out()
        if self._source_bytes is None:
            size = 0 if source is None else await asyncio.to_thread(used_bytes, source)
            self._source_bytes = size
        async with self._disk.admitted(self._source_bytes) as use, use.limited():
            directory = Path(tempfile.mkdtemp(dir=self._own))
            use.directory = directory
            self._uses[directory] = use
            try:
                await self._filled(directory / "work", source)
                yield directory
            except DiskBudgetError:
                raise
            except (OSError, SandboxError):
                # A full disk makes much fail, in any words.
                await self._disk.check(use)
                raise
            finally:
                del self._uses[directory]
                await asyncio.shield(asyncio.to_thread(remove_directory, directory))

    async def check(self, directory: Path) -> None:
        """Look at the disk, because a program of an episode has ended.

        :param directory: of the episode.
        :raises DiskBudgetError: all episodes together used more than they may, and this one most.
        :raises DiskFullError: what the program left may lack what it could not write.
        """
        await self._disk.check(self._uses[directory])

    async def _filled(self, work: Path, source: Path | None) -> None:
        """Make a working copy."""
        await asyncio.to_thread(work.mkdir)
        if source is not None:
            await _command("cp", "-a", "--reflink=auto", f"{source}/.", str(work))
        # What was copied may have links there, which would lead out of the working copy.
        control = work / _CONTROL
        if control.is_symlink() or control.is_file():
            control.unlink()
        elif control.is_dir():
            remove_directory(control)
        (control / "home").mkdir(parents=True)

    async def _checked_out(self) -> Path:
        """Return a checkout of the commit, which is made once."""
        if self._checkout is None:
            self._checkout = asyncio.create_task(self._check_out())
        return await asyncio.shield(self._checkout)

    async def _check_out(self) -> Path:
        assert self._git is not None
        repository, commit = self._git
        place = self._own / "checkout"
        full = (
            await _command(
                *("git", "-C", str(repository), "rev-parse", "--verify", f"{commit}^{{commit}}")
            )
        ).strip()
        await _command("git", "init", "--quiet", str(place))
        # Without later commits, which may contain the solution of a task.
        allowed = {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "uploadpack.allowAnySHA1InWant",
            "GIT_CONFIG_VALUE_0": "true",
        }
        fetch = ("fetch", "--quiet", "--depth", "1", f"file://{repository.resolve()}", full)
        await _command("git", "-C", str(place), *fetch, environ=allowed)
        checkout = ("checkout", "--quiet", "--detach", full)
        await _command("git", "-C", str(place), *checkout)
        with (place / ".git/info/exclude").open("a") as file:
            file.write(f"/{_CONTROL}/\n")
        return place


def remove_directory(directory: Path) -> None:
    """Remove a directory, also what is in subdirectories that their owner may not write.

    Go's cache of modules has such directories, for example.
    """
    shutil.rmtree(directory, ignore_errors=True)
    if not directory.exists():
        return
    _make_writable(directory)
    for folder, folders, _ in os.walk(directory):
        # Before the loop comes to them.
        for name in folders:
            _make_writable(Path(folder) / name)
    shutil.rmtree(directory, ignore_errors=True)
    if directory.exists():
        _log.warning("cannot remove all of %s", directory)


def _make_writable(directory: Path) -> None:
    # That of another user cannot be changed. A link leads elsewhere.
    if not directory.is_symlink():
        with contextlib.suppress(OSError):
            directory.chmod(0o700)


async def _command(*argv: str, environ: dict[str, str] | None = None) -> str:
    """Run a command of the host.

    :raises SandboxError: it failed.
    """
    process = await asyncio.create_subprocess_exec(
        *argv,
        env={**os.environ, **(environ or {})},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    if process.returncode:
        text = err.decode(errors="replace").strip()
        raise SandboxError(f"the working copy cannot be made: {' '.join(argv[:3])}: {text}")
    return out.decode(errors="replace")
