"""Output files of commands: written atomically, and never replacing others unless requested."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ajet_core.errors import RequestError
from ajet_core.files import sync


@contextmanager
def new_file(path: Path, *, replace: bool) -> Iterator[Path]:
    """Yield a temporary path; rename it to `path` at the end, or remove it if the block raises.

    :param replace: whether `path` may exist.
    :raises RequestError: `path` exists, is a directory, or its directory does not exist.
    """
    if not path.parent.is_dir():
        raise RequestError(f"cannot write {path}: directory {path.parent} does not exist")
    if path.is_dir():
        raise RequestError(f"cannot write {path}: it is a directory")
    if path.exists() and not replace:
        raise RequestError(
            f"{path} already exists: choose another name, or replace it with --force"
        )
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        yield temporary
        sync(temporary)
        if replace:
            temporary.replace(path)
        else:
            _take_free_name(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _take_free_name(temporary: Path, path: Path) -> None:
    try:
        # Unlike a rename, a link does not replace a file that was created meanwhile.
        path.hardlink_to(temporary)
    except FileExistsError as error:
        raise RequestError(f"{path} was created in the meantime, and was not replaced") from error
    temporary.unlink()
