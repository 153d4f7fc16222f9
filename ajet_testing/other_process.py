"""Call a method of a test's class in another process: texts have other hashes, or it is killed."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pickle
import subprocess
import sys
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

__all__ = ["in_a_killed_process", "in_another_process", "load_class"]

_CODE = """
import pickle, sys
path, state = pickle.load(sys.stdin.buffer)
sys.path[:] = path
from ajet_testing.other_process import _answer
sys.stdout.buffer.write(_answer(state))
"""


def in_another_process(case: object, method: str, *arguments: object) -> Any:
    """Return what a method of `case` returns in a process with another seed of hashes.

    The other process imports the class of `case`, and gives an object of it the same attributes.
    Class, attributes, arguments and result must be importable or picklable.

    :raises AssertionError: the method raised; the message has what the process printed.
    """
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    done = subprocess.run(  # noqa: S603 - nothing in it is the user's
        [sys.executable, "-c", _CODE],
        input=_pickled(case, method, arguments),
        env=os.environ | {"PYTHONHASHSEED": seed},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    # The last line: components may print.
    last = done.stdout.decode().splitlines()[-1]
    return pickle.loads(bytes.fromhex(last))  # noqa: S301 - it is what `_answer` has written


def in_a_killed_process(case: object, method: str, lines: int, *arguments: object) -> list[str]:
    """Run a method of `case` in another process, which is killed after it has written some lines.

    A fork would not do: it inherits locks that threads of the test's process hold.

    :param method: it gets `arguments` and the descriptor of a pipe to write lines to.
    :param lines: how many are awaited.
    :return: all lines, without one that was cut off.
    :raises AssertionError: the process ended by itself. Its error is on the standard error.
    """
    reading, writing = os.pipe()
    with subprocess.Popen(  # noqa: S603 - nothing in it is the user's
        [sys.executable, "-c", _CODE], stdin=subprocess.PIPE, pass_fds=(writing,)
    ) as process:
        os.close(writing)
        assert process.stdin is not None
        process.stdin.write(_pickled(case, method, (*arguments, writing)))
        process.stdin.close()
        with os.fdopen(reading, encoding="utf-8") as pipe:
            try:
                awaited = [pipe.readline() for _ in range(lines)]
            finally:
                process.kill()
            rest = pipe.read()
    assert all(awaited), "the process ended by itself; its error is printed above"
    return [*map(str.strip, awaited), *rest[: rest.rfind("\n") + 1].splitlines()]


def _pickled(case: object, method: str, arguments: tuple[object, ...]) -> bytes:
    kind = type(case)
    if "<locals>" in kind.__qualname__:
        pytest.skip(f"another process cannot import {kind.__qualname__}, which a function defines")
    place = (kind.__module__, inspect.getfile(kind), kind.__qualname__)
    return pickle.dumps((sys.path, pickle.dumps((place, vars(case), method, arguments))))


def _answer(state: bytes) -> bytes:
    """Return the result of a call of `in_another_process`, which runs this in the process."""
    (module, file, name), *rest = pickle.loads(state)  # noqa: S301 - the test has written it
    attributes, method, arguments = rest
    kind = load_class(module, file, name)
    case = object.__new__(kind)
    vars(case).update(attributes)
    result = getattr(case, method)(*arguments)
    return b"\n" + pickle.dumps(result).hex().encode()


def load_class(module: str, file: str, name: str) -> Any:
    """Return a class by its module, the module's file, and its qualified name."""
    return attrgetter(name)(_module(module, file))


def _module(name: str, file: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        # pytest can import modules that are not found by their names.
        spec = importlib.util.spec_from_file_location(name, Path(file))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module
