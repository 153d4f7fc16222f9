"""The disk of working copies: how much they may use together, and whether it is full."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from ajet_core.errors import SandboxError

_LOOK_SECONDS = 0.2
_MEASURE_SECONDS = 1.0
# Measuring takes at most about this part of the time.
_MEASURING_SHARE = 0.1
_RESERVE_BYTES, _RESERVE_SHARE = 2**24, 64
_FULL = (errno.ENOSPC, errno.EDQUOT)


def used_bytes(directory: Path) -> int:
    """Return how many bytes of a disk the files below a directory occupy."""
    total = 0
    for folder, folders, files in os.walk(directory):
        for name in (*folders, *files):
            # It may be removed meanwhile.
            with contextlib.suppress(OSError):
                total += os.lstat(Path(folder) / name).st_blocks * 512
    return total


def missing_room(place: Path, size: int = 0) -> str:
    """Return that a disk is full, or has no room for so many bytes; "" if it has.

    A disk counts as full a little earlier than programs notice it.
    """
    disk = os.statvfs(place)
    free = disk.f_bavail * disk.f_frsize
    reserve = min(_RESERVE_BYTES, disk.f_blocks * disk.f_frsize // _RESERVE_SHARE)
    if free < reserve + size:
        wanted = f", and {_text(size)} are needed" if size else ""
        return f"the disk of {place} is full: {_text(free)} are free{wanted}"
    # Some file systems have no fixed number of inodes, and report 0.
    if disk.f_files and not disk.f_favail:
        return f"the disk of {place} is full: no inode is free"
    return ""


class DiskFullError(SandboxError):
    """The disk is full, and it is not known that programs of this launcher have filled it."""

    type = "disk_full"


class DiskBudgetError(SandboxError):
    """The working copies use more of the disk than they may: their programs did it."""

    type = "disk_budget"


@dataclass(eq=False)
class DiskUse:
    """What one working copy uses of the disk.

    :param size: bytes, as last measured, but at least those that it begins with.
    :ivar directory: its directory, once it exists.
    :ivar why: why it is aborted; None as long as it is not.
    """

    size: int
    directory: Path | None = None
    why: SandboxError | None = None
    _scope: asyncio.Timeout | None = field(default=None, init=False)

    def abort(self, why: SandboxError) -> None:
        """End the block of `limited`."""
        self.why = self.why or why
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time())

    @contextlib.asynccontextmanager
    async def limited(self) -> AsyncIterator[None]:
        """Cancel the block as soon as the disk is full, or the budget is used up.

        :raises DiskBudgetError: the budget is used up.
        :raises DiskFullError: the disk is full, or an operation of the block met a full one.
        """
        try:
            async with asyncio.timeout(None) as self._scope:
                yield
        # Whatever else fails meanwhile has the same cause.
        except (OSError, SandboxError) as error:
            if self.why is not None:
                raise self.why from error
            # A sandbox may have met it, and says in its own words what failed.
            met = error.__cause__ if isinstance(error, SandboxError) else error
            if isinstance(met, OSError) and met.errno in _FULL:
                raise DiskFullError(f"the disk is full: {error}") from error
            raise
        finally:
            self._scope = None


class Disk:
    """The disk of the working copies of one launcher.

    :param place: a directory on it.
    :param budget: bytes that the copies may use together; None means no limit but the disk.
    """

    def __init__(self, place: Path, budget: int | None = None) -> None:
        self._place = place
        self._budget = budget
        self._uses: set[DiskUse] = set()
        self._changed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def admitted(self, size: int) -> AsyncIterator[DiskUse]:
        """Wait until there is room for another working copy, which the block makes and removes.

        :param size: bytes that it begins with.
        :raises DiskFullError: there is no room, and no other copy whose end would make some.
        :raises SandboxError: the budget has no room for a single copy.
        """
        while missing := self._missing(size):
            if not self._uses:
                full = bool(missing_room(self._place, size))
                raise DiskFullError(missing) if full else SandboxError(missing)
            await self._changed.wait()
        use = DiskUse(size)
        self._uses.add(use)
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        try:
            yield use
        finally:
            self._uses.discard(use)
            self._notify()
            if not self._uses:
                watching, self._watching = self._watching, None
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)

    async def check(self, use: DiskUse) -> None:
        """Look at the disk now, because a program has ended.

        :raises DiskBudgetError: the copy has used up the budget.
        :raises DiskFullError: it is full.
        """
        full = missing_room(self._place)
        if self._budget is not None:
            # A full disk may be the work of copies that have grown since they were measured.
            for one in list(self._uses) if full else [use]:
                await self._measure(one)
            if use is self._largest_beyond():
                raise self._beyond(use)
        if full:
            raise DiskFullError(full)

    def _missing(self, size: int) -> str:
        if self._budget is not None:
            used = sum(use.size for use in self._uses)
            if used + size > self._budget:
                return (
                    f"a working copy needs {_text(size)}, and the others use {_text(used)}; all "
                    f"together may use {_text(self._budget)} (--disk)"
                )
        return missing_room(self._place, size)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _watch(self) -> None:
        measured = time.monotonic()
        pause = _MEASURE_SECONDS
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            full = missing_room(self._place)
            due = bool(full) or time.monotonic() - measured >= pause
            if self._budget is not None and due:
                began = time.monotonic()
                for use in list(self._uses):
                    await self._measure(use)
                if (largest := self._largest_beyond()) is not None:
                    largest.abort(self._beyond(largest))
                measured = time.monotonic()
                pause = max(_MEASURE_SECONDS, (measured - began) / _MEASURING_SHARE)
            if full:
                # Whichever of them filled it, the others may have met it.
                for use in self._uses:
                    use.abort(DiskFullError(full))
            # What others have freed may be enough for the next copy.
            self._notify()

    async def _measure(self, use: DiskUse) -> None:
        if use.directory is not None:
            use.size = await asyncio.to_thread(used_bytes, use.directory)

    def _largest_beyond(self) -> DiskUse | None:
        """Return the largest copy if they use more than the budget."""
        running = [use for use in self._uses if use.why is None]
        total = sum(use.size for use in running)
        if self._budget is None or total <= self._budget:
            return None
        return max(running, key=lambda use: use.size)

    def _beyond(self, use: DiskUse) -> DiskBudgetError:
        assert self._budget is not None
        return DiskBudgetError(
            f"the working copies use more than {_text(self._budget)} together (--disk), and this "
            f"one uses most: {_text(use.size)}"
        )


def _text(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
