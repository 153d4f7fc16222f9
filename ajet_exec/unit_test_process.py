"""What the judge ``unit_tests`` runs in its two sandboxes: the tests, and the answer.

Run as ``python3 unit_test_process.py test|answer PORT``. It imports nothing but the standard
library of Python 3.8. The tests' side trusts nothing that it receives: plain data is rebuilt from
JSON, and an object of the answer is a `Remote`, of which no operator sends the expected value to
the answer.
"""

from __future__ import annotations

import ast
import builtins
import json
import operator
import os
import select
import signal
import socket
import struct
import sys
import types
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

_MOST_BYTES = 2**26
_HUNG_UP = 0x2000
_SHOWN = 300
_PLAIN: dict[type, str] = {list: "l", tuple: "t", set: "s", frozenset: "z", dict: "d"}


class AnswerEndedError(Exception):
    """The process of the answer has ended."""


class TooLongError(BaseException):
    """A test has used up its time. No test catches it by accident."""


class NotPassedError(Exception):
    """A test passes something to the answer that cannot be passed."""


class Remote:
    """An object of the answer."""

    def __init__(self, link: AnswerLink, number: int) -> None:
        object.__setattr__(self, "_ajet", (link, number))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__name__", "__doc__"):
            raise AttributeError(name)
        return _ask(self, "get", name)

    def __setattr__(self, name: str, value: Any) -> None:
        _ask(self, "set", name, value)

    def __call__(self, *args: Any, **named: Any) -> Any:
        link, number = _parts(self)
        return link.request("call", number, args, named)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and _ask(self, "eq", other) is True

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(_parts(self)[1])

    def __contains__(self, item: Any) -> bool:
        # One by one, so that the answer does not see which is wanted.
        return any(item == one for one in iter(self))

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, Remote) and _ask(self, "isinstance", instance) is True

    def __bool__(self) -> bool:
        raise TypeError("the answer gave an object where the test needs a truth value")


def _operator(name: str) -> Callable[..., Any]:
    def method(self: Remote, other: Any) -> Any:
        if not isinstance(other, Remote):
            raise TypeError(f"the answer gave an object where {name} needs plain data")
        return _ask(self, name, other)

    return method


def _unary(name: str) -> Callable[..., Any]:
    return lambda self, *args: _ask(self, name, *args)


_BINARY = ("lt", "le", "gt", "ge", "add", "sub", "mul", "truediv", "floordiv", "mod", "matmul")
_UNARY: dict[str, Callable[..., Any]] = {
    "len": len,
    "iter": iter,
    "next": next,
    "str": str,
    "repr": repr,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "enter": lambda one: type(one).__enter__(one),
    "exit": lambda one, *_: type(one).__exit__(one, None, None, None),
}
for _name in _BINARY:
    setattr(Remote, f"__{_name}__", _operator(_name))
for _name in _UNARY:
    setattr(Remote, f"__{_name}__", _unary(_name))
Remote.__exit__ = lambda self, *_: bool(_ask(self, "exit"))  # type: ignore[attr-defined]

_OPERATIONS: dict[str, Callable[..., Any]] = {
    **_UNARY,
    **{name: getattr(operator, name) for name in (*_BINARY, "eq")},
    "get": getattr,
    "set": setattr,
    "isinstance": lambda kind, one: isinstance(one, kind),
}


def _parts(remote: Remote) -> Any:
    return object.__getattribute__(remote, "_ajet")


def _ask(remote: Remote, name: str, *args: Any) -> Any:
    link, number = _parts(remote)
    return link.request(name, number, args, {})


class AnswerLink:
    """A connection between both sides, on which one asks and the other answers.

    :param trusted: whether this is the tests' side, which lets the other one call functions that
        tests passed to it, and nothing else.
    """

    def __init__(self, stream: socket.socket, trusted: bool) -> None:
        self._stream = stream
        self._trusted = trusted
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._kinds: dict[int, type] = {}

    def request(self, name: str, number: int, args: Any, named: dict[str, Any]) -> Any:
        """Ask the other side for an operation, and serve what it asks meanwhile."""
        seen: dict[int, int] = {}
        passed: list[Any] = []
        self._send(
            {
                "do": name,
                "object": number,
                "args": [self._encode(one, seen, passed) for one in args],
                "named": {key: self._encode(one, seen, passed) for key, one in named.items()},
            }
        )
        while True:
            message = self._receive()
            if "do" in message:
                self._serve(message)
                continue
            # What the operation did to lists, dictionaries and sets that it got.
            known = list(passed)
            for container, content in zip(passed, message.get("changed", ())):  # noqa: B905
                _replace(container, self._decode(content, known))
            if "raised" in message:
                raise self._error(message["raised"])
            return self._decode(message["value"], known)

    def serve(self, namespace: Any) -> None:
        """Answer requests until the other side ends, with a namespace as object 0."""
        self._objects.append(namespace)
        try:
            while True:
                self._serve(self._receive())
        except AnswerEndedError:
            pass

    def _serve(self, message: dict[str, Any]) -> None:
        passed: list[Any] = []
        seen: dict[int, int] = {}
        answer: dict[str, Any] = {}
        try:
            target = self._objects[message["object"]]
            args = [self._decode(one, passed) for one in message["args"]]
            named = {key: self._decode(one, passed) for key, one in message["named"].items()}
            seen = {id(one): place for place, one in enumerate(passed)}
            if message["do"] == "call":
                value = target(*args, **named)
            elif self._trusted:
                raise TypeError("the answer may only call what tests passed to it")
            else:
                value = _OPERATIONS[message["do"]](target, *args)
            known = list(passed)
            answer["changed"] = [self._encode(_content(one), seen, known) for one in passed]
            answer["value"] = self._encode(value, seen, known)
        except TooLongError:
            raise
        except BaseException as error:  # noqa: BLE001 - the other side raises it
            answer = {"raised": self._described(error)}
        self._send(answer)

    def _described(self, error: BaseException) -> dict[str, Any]:
        try:
            text = str(error)[:_SHOWN]
        except Exception:  # noqa: BLE001
            text = ""
        return {"kind": self._encode(type(error), {}, []), "text": text}

    def _error(self, raised: dict[str, Any]) -> Any:
        kind = self._decode(raised["kind"], [])
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            kind = RuntimeError
        try:
            error: Any = kind(str(raised["text"]))
        except TypeError:
            error = RuntimeError(f"{kind.__name__}: {raised['text']}")
        error._ajet_answer = True
        return error

    def _encode(  # noqa: PLR0911, PLR0912 - one for each type
        self, value: Any, seen: dict[int, int], passed: list[Any]
    ) -> Any:
        """Return a value as JSON; `passed` collects its containers, whose places `seen` has."""
        if value is None or value is True or value is False:
            return value
        if isinstance(value, Remote):
            return ["p", _parts(value)[1]]
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            return ["i", hex(int(value))]
        if isinstance(value, float):
            return ["f", float.hex(value)]
        if isinstance(value, complex):
            return ["c", float.hex(value.real), float.hex(value.imag)]
        if isinstance(value, (bytes, bytearray)):
            return ["b", bytes(value).hex()]
        if isinstance(value, (Decimal, Fraction)):
            return ["n", "D" if isinstance(value, Decimal) else "F", str(value)]
        for kind, letter in _PLAIN.items():
            if isinstance(value, kind):
                if id(value) in seen:
                    return ["r", seen[id(value)]]
                if letter in "lsd":
                    seen[id(value)] = len(passed)
                    passed.append(value)
                items: Any = value
                if isinstance(value, dict):
                    items = [part for pair in dict.items(value) for part in pair]
                return [letter, *(self._encode(item, seen, passed) for item in items)]
        return self._encode_object(value)

    def _encode_object(self, value: Any) -> Any:
        name = getattr(value, "__name__", "")
        by_name = self._trusted or isinstance(value, type)
        if by_name and isinstance(name, str) and getattr(builtins, name, self) is value:
            return ["u", name]
        for number, kind in self._kinds.items():
            if kind is value:
                return ["p", number]
        if isinstance(value, range):
            return ["g", hex(value.start), hex(value.stop), hex(value.step)]
        if self._trusted and isinstance(value, Iterator):
            # All of it, because the answer must not run what yields it.
            return ["e", *(self._encode(item, {}, []) for item in value)]
        functions = (types.FunctionType, types.MethodType)
        if self._trusted and not isinstance(value, functions):
            raise NotPassedError(f"tests cannot pass a {type(value).__name__} to an answer")
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        number = self._numbers[id(value)]
        if isinstance(value, type) and issubclass(value, BaseException):
            bases = [one.__name__ for one in value.__mro__ if one.__module__ == "builtins"]
            return ["x", number, value.__name__, bases[0]]
        return ["o", number]

    def _decode(self, value: Any, known: list[Any]) -> Any:  # noqa: PLR0911 - the same
        if not isinstance(value, list):
            return value
        letter, *rest = value
        if letter in ("l", "s", "d"):
            empty: Any = {"l": list, "s": set, "d": dict}[letter]()
            known.append(empty)
            _replace(empty, self._items(letter, rest, known))
            return empty
        if letter in ("t", "z"):
            items = [self._decode(one, known) for one in rest]
            return tuple(items) if letter == "t" else frozenset(items)
        if letter == "r":
            return known[rest[0]]
        if letter == "i":
            return int(rest[0], 16)
        if letter == "f":
            return float.fromhex(rest[0])
        if letter == "c":
            return complex(float.fromhex(rest[0]), float.fromhex(rest[1]))
        if letter == "b":
            return bytes.fromhex(rest[0])
        if letter == "n":
            return (Decimal if rest[0] == "D" else Fraction)(rest[1])
        return self._decode_object(letter, rest)

    def _decode_object(self, letter: str, rest: list[Any]) -> Any:
        if letter == "p":
            return self._objects[rest[0]]
        if letter == "g":
            return range(*(int(one, 16) for one in rest))
        if letter == "e":
            return iter([self._decode(one, []) for one in rest])
        if letter == "u":
            # On the tests' side, a class alone: a function such as `eval` is not data.
            value = getattr(builtins, rest[0])
            if self._trusted and not isinstance(value, type):
                raise TypeError(f"the answer gave the function {rest[0]}")
            return value
        number = int(rest[0])
        if letter == "x":
            base = getattr(builtins, str(rest[2]), None)
            if not (isinstance(base, type) and issubclass(base, Exception)):
                base = RuntimeError
            if number not in self._kinds:
                self._kinds[number] = type(str(rest[1]), (base,), {})
            return self._kinds[number]
        return Remote(self, number)

    def _items(self, letter: str, rest: list[Any], known: list[Any]) -> Any:
        items = [self._decode(one, known) for one in rest]
        return list(zip(items[::2], items[1::2])) if letter == "d" else items  # noqa: B905

    def _send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode()
        try:
            self._stream.sendall(struct.pack("!I", len(data)) + data)
        except OSError:
            raise AnswerEndedError("the process of the answer ended") from None

    def _receive(self) -> Any:
        (size,) = struct.unpack("!I", self._read(4))
        if size > _MOST_BYTES:
            raise AnswerEndedError("the answer gave too much data")
        message = json.loads(self._read(size))
        if not isinstance(message, dict):
            raise AnswerEndedError("the answer sent something else than an answer")
        return message

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = self._stream.recv(min(size - len(data), 2**20))
            except OSError:
                part = b""
            if not part:
                raise AnswerEndedError("the process of the answer ended")
            data += part
        return bytes(data)


def _content(container: Any) -> Any:
    """Return a copy, which is not the container that the other side knows."""
    return type(container)(container) if type(container) in _PLAIN else _as_plain(container)


def _as_plain(container: Any) -> Any:
    return next(kind(container) for kind in _PLAIN if isinstance(container, kind))


def _replace(container: Any, items: Any) -> None:
    if isinstance(container, list):
        container[:] = items
    elif isinstance(container, (dict, set)):
        items = list(items.items()) if isinstance(items, dict) else list(items)
        container.clear()
        container.update(items)


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port))


def serve_answer(port: int) -> None:
    """Run the answer in a new process for each test."""
    os.chdir("/work")
    while True:
        stream = _connect(port)
        try:
            if not stream.recv(1, socket.MSG_PEEK):
                return
        except OSError:
            return
        child = os.fork()
        if child == 0:
            _run_answer(stream)
        poll = select.poll()
        poll.register(stream, _HUNG_UP)
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            if poll.poll(20):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                break
        stream.close()


def _run_answer(stream: socket.socket) -> None:
    module = types.ModuleType("answer")
    sys.modules["answer"] = sys.modules["solution"] = module
    source = Path("/work/answer.py").read_text(encoding="utf-8")

    def load() -> list[str]:
        exec(compile(source, "/work/answer.py", "exec"), module.__dict__)  # noqa: S102
        return [name for name in vars(module) if not name.startswith("__")]

    start = types.SimpleNamespace(load=load, module=module)
    try:
        AnswerLink(stream, trusted=False).serve(start)
    finally:
        os._exit(0)


def serve_tests(port: int) -> None:
    """Run the tests of the plan, each in a process of its own, and print the verdicts."""
    # What tests print is not a verdict.
    verdicts = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(**fact: Any) -> None:
        verdicts.write(json.dumps(fact) + "\n")
        verdicts.flush()

    plan = json.loads(Path("/work/plan.json").read_text(encoding="utf-8"))

    try:
        tests = [one for text in plan["tests"] for one in _tests_in(text, plan["entry_point"])]
    except (SyntaxError, ValueError) as error:
        say(wrong=str(error))
        return
    say(total=len(tests))
    for place, (text, name) in enumerate(tests, 1):
        failed, problem = _forked(plan, text, name, port)
        if problem:
            say(**{failed: problem})
            return
        if failed:
            say(test=name or f"test {place}", failed=failed[:_SHOWN])
            if plan["stop"]:
                break
    say(done=True)


def _tests_in(text: str, entry: str) -> Any:
    """Return pairs of a text and the name of its function that is a test; "" is all of it."""
    tree = ast.parse(text)
    names = [one.name for one in tree.body if isinstance(one, ast.FunctionDef)]
    tests = [name for name in names if name.startswith("test_")]
    if tests:
        return [(text, name) for name in tests]
    if "check" in names and entry:
        return [(text, "check")]
    if not any(isinstance(node, ast.Assert) for one in tree.body for node in ast.walk(one)):
        raise ValueError("they have no function test_..., and no assert")
    return [(text, "")]


def _forked(plan: dict[str, Any], text: str, name: str, port: int) -> Any:
    """Return why a test failed, "" if it passed; or a kind of problem, and the problem."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            verdict = _run_test(plan, text, name, port)
        except BaseException as error:  # noqa: BLE001 - it is the verdict
            verdict = [f"{type(error).__name__}: {error}", ""]
        os.write(writing, json.dumps([part[:_SHOWN] for part in verdict]).encode())
        os._exit(0)
    os.close(writing)
    # A little later than the child's own alarm.
    ready, _, _ = select.select([reading], [], [], plan["timeout"] + 5)
    said = os.read(reading, 2**14) if ready else b""
    os.close(reading)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return json.loads(said) if said else ["the test needed too much time or memory", ""]


def _run_test(plan: dict[str, Any], text: str, name: str, port: int) -> list[str]:
    def late(*_: Any) -> None:
        raise TooLongError("it took too long")

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, plan["timeout"])
    link = AnswerLink(_connect(port), trusted=True)
    start = Remote(link, 0)
    try:
        names = set(start.load())
        module = _module_of(start.module, names)
        space: dict[str, Any] = {"__name__": "tests"}
        for used in sorted(_free_names(text) & names):
            space[used] = getattr(module, used)
        exec(compile(text, "tests", "exec"), space)  # noqa: S102
        if name == "check":
            space["check"](getattr(module, plan["entry_point"]))
        elif name:
            space[name]()
    except NotPassedError as error:
        return ["wrong", str(error)]
    except ImportError as error:
        if not getattr(error, "_ajet_answer", False) and error.name not in ("answer", "solution"):
            return ["broken", f"{type(error).__name__}: {error}"]
        return [f"{type(error).__name__}: {error}", ""]
    except TooLongError as error:
        return [str(error), ""]
    return ["", ""]


def _module_of(remote: Any, names: set[str]) -> Any:
    """Put the answer's names into a module that tests can import as `solution` or `answer`."""

    class Module(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name not in names:
                raise AttributeError(f"the answer does not define {name}")
            return getattr(remote, name)

    module = Module("solution")
    module.__all__ = sorted(  # type: ignore[attr-defined]
        name for name in names if not name.startswith("_") and not hasattr(builtins, name)
    )
    sys.modules["answer"] = sys.modules["solution"] = module
    return module


def _free_names(text: str) -> set[str]:
    """Return names that tests use and do not define: an answer's, but none of Python's."""
    nodes = list(ast.walk(ast.parse(text)))
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    modules = getattr(sys, "stdlib_module_names", frozenset(("math", "re", "sys", "os")))
    return {name for name in used if not hasattr(builtins, name) and name not in modules}


def main(arguments: list[str] | None = None) -> None:
    """Run a side."""
    side, port = arguments or sys.argv[1:]
    sys.setrecursionlimit(5000)
    (serve_tests if side == "test" else serve_answer)(int(port))


if __name__ == "__main__":
    main()
