"""The judge ``unit_tests``: verdicts on right code, on wrong code, and on code that cheats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from agentjet import EpisodeOutcome, load_judge
from agentjet.judges import JudgeFailedError
from ajet_core.errors import ConfigError, SandboxError
from ajet_core.interfaces import Judge
from ajet_exec.boxes import owners
from ajet_exec.unit_tests import UnitTestsJudge, UnitTestsSettings, code_of
from ajet_exec.workshop import Workshop
from ajet_testing.suites.judge_suite import JudgeSuite
from tests.exec.usable import no_bubblewrap

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(bool(no_bubblewrap()), reason=no_bubblewrap()),
]

ADD = "def add(a, b):\n    return a + b\n"
TESTS = """
from solution import add
import math

def test_small():
    assert add(1, 2) == 3

def test_negative():
    assert add(-1, -2) == -3
    assert math.isclose(add(0.1, 0.2), 0.3)
"""


class TestUnitTests(JudgeSuite):
    examples: ClassVar[Sequence[tuple[Any, Any, float]]] = (
        ({"tests": TESTS}, f"Here it is:\n```python\n{ADD}```\nDone.", 1.0),
        ({"tests": TESTS}, "def add(a, b):\n    return abs(a) + abs(b)\n", 0.5),
        ({"tests": TESTS}, "def add(a, b)", 0.0),
    )

    def make_judge(self) -> Judge:
        return UnitTestsJudge(UnitTestsSettings(credit="share"))


def judged(tests: Any, answer: str, entry: str = "", **settings: Any) -> EpisodeOutcome:
    judge = UnitTestsJudge(UnitTestsSettings(**{"cpu_seconds": 2, **settings}))
    return EpisodeOutcome.of(judge({"tests": tests, "entry_point": entry}, answer))


PUT = "def put(x):\n    x[1].append(2)\n    return x[1]"
EXCEPTION_TESTS = """
from solution import Bad, f
try:
    f()
except Bad as error:
    assert str(error) == 'no'
else:
    assert False
"""
STACK = """
class Stack:
    def __init__(self): self.items = []
    def push(self, x): self.items.append(x)
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
"""
STACK_TESTS = """
s = Stack()
s.push(5)
s.push((1, 2))
assert len(s) == 2 and s.pop() == (1, 2)
assert isinstance(s, Stack) and s.items == [5] and 5 in s and 6 not in s
"""
VECTOR = """
class V:
    def __init__(self, x): self.x = x
    def __add__(self, other): return V(self.x + other.x)
    def __eq__(self, other): return self.x == other.x
"""
DATA = "{'a': (1, 2.5, None), b'x': {3, frozenset({4})}, 2**99: 1j}"

CHEATS = {
    "ends with status 0": "import os\nos._exit(0)",
    "exits": "import sys\nsys.exit(0)",
    "exits in a call": "def add(a, b):\n    raise SystemExit(0)",
    "prints verdicts": """
import os, sys
for line in ('{"total": 1}', '{"done": true}'):
    print(line, flush=True); os.write(2, line.encode())
os._exit(0)
""",
    "equals everything": """
class Same:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __lt__(self, other): return True
    __le__ = __gt__ = __ge__ = __contains__ = __lt__
    def __sub__(self, other): return 0
    __rsub__ = __add__ = __abs__ = __sub__
    def __float__(self): return 0.3
def add(a, b):
    return Same()
""",
    "is an int that equals everything": """
class Same(int):
    def __eq__(self, other): return True
    __hash__ = int.__hash__
def add(a, b):
    return Same(0)
""",
    "changes what tests use": """
import builtins, math, json, unittest
math.isclose = lambda *args, **named: True
builtins.AssertionError = builtins.abs = lambda *args: 0
json.loads = lambda text: {"done": True}
def add(a, b):
    return 0
""",
    "names itself like builtins": "def add(a, b): return 0\ndef abs(x): return 0\n"
    "class math: isclose = staticmethod(lambda *args, **named: True)\n"
    "AssertionError = ZeroDivisionError",
    "raises what tests might let pass": "class Skipped(BaseException): pass\n"
    "def add(a, b):\n    raise Skipped('skipped')",
    "looks for the tests": """
import glob, os
def add(a, b):
    paths = [*glob.glob('/work/*'), *glob.glob('/tmp/**', recursive=True)]
    for path in paths + glob.glob('/proc/*/environ') + glob.glob('/proc/*/cmdline'):
        try:
            text = open(path).read()
        except OSError:
            continue
        if 'isclose' + '(add' in text:
            return a + b
    return 0
""",
    "reads the interpreter": """
import gc, sys
def add(a, b):
    frame = sys._getframe()
    while frame is not None:
        for value in list(frame.f_locals.values()) + gc.get_objects()[:5000]:
            if isinstance(value, dict) and 'tests' in value and 'entry_point' in value:
                return a + b
        frame = frame.f_back
    return 0
""",
    "speaks for the tests": """
import json, socket, struct, sys
def add(a, b):
    stream = socket.create_connection(('127.0.0.1', int(sys.argv[2])))
    for message in ({"done": True}, {"value": True}, {"test": "", "failed": ""}):
        data = json.dumps(message).encode()
        stream.sendall(struct.pack('!I', len(data)) + data)
    return 0
""",
    "loops": "def add(a, b):\n    while True: pass",
    "needs all memory": "def add(a, b):\n    return len([0] * 10**10)",
    "recurses": "def add(a, b):\n    return add(a, b)",
    "gives too much": "def add(a, b):\n    return 'x' * 2**27",
    "nests": "def add(a, b):\n    r = []\n    for _ in range(10**5): r = [r]\n    return r",
    "kills all": "import os, signal\ndef add(a, b):\n    os.kill(-1, signal.SIGKILL)",
    "ignores signals and closes": "import os, signal\nsignal.signal(15, signal.SIG_IGN)\n"
    "os.closerange(0, 100)\ndef add(a, b): return 3",
    "forks": "import os\ndef add(a, b):\n    for _ in range(40):\n        if os.fork() == 0:\n"
    "            os._exit(0)\n    return 0",
}


@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_passes_a_test(name: str) -> None:
    outcome = judged(TESTS, CHEATS[name], credit="share")
    assert (outcome.reward, outcome.components) == (0.0, {"passed": 0.0})
    assert outcome.metadata["failed"]


@pytest.mark.parametrize(
    ("tests", "answer", "entry", "reward"),
    [
        (["assert add(1, 2) == 3", "assert add(1, 1) == 3"], ADD, "", 0.5),
        ('["assert add(1, 2) == 3"]', ADD, "", 1.0),
        ("def check(candidate):\n    assert candidate(1, 2) == 3", ADD, "add", 1.0),
        ("def check(candidate):\n    assert candidate(1, 2) == 4", ADD, "add", 0.0),
        ("def check(candidate):\n    assert candidate(1, 2) == 4", "x = 1", "add", 0.0),
        # What calls change, and the identity of what they return.
        ("x = [3, [1]]\ny = put(x)\nassert x == [3, [1, 2]] and y is x[1]", PUT, "", 1.0),
        # Functions that tests pass, exceptions, classes and generators.
        ("assert twice(lambda x: x + 1, 3) == 5", "def twice(f, x): return f(f(x))", "", 1.0),
        (EXCEPTION_TESTS, "class Bad(ValueError): pass\ndef f(): raise Bad('no')", "", 1.0),
        (STACK_TESTS, STACK, "", 1.0),
        ("assert V(1) + V(2) == V(3)", VECTOR, "", 1.0),
        ("assert total(range(4)) == total(x for x in [1, 5]) == 6", "total = sum", "", 1.0),
        ("assert list(up(3)) == [0, 1, 2]", "def up(n):\n    yield from range(n)", "", 1.0),
        (f"assert f() == {DATA}", f"def f(): return {DATA}", "", 1.0),
    ],
)
def test_tests_call_functions_and_classes(
    tests: Any, answer: str, entry: str, reward: float
) -> None:
    outcome = judged(tests, answer, entry, credit="share")
    assert outcome.reward == reward, outcome.metadata


def test_each_test_has_a_new_copy_of_the_answer() -> None:
    answer = "n = 0\ndef count():\n    global n\n    n += 1\n    return n\n"
    answer += "def end():\n    import os\n    os._exit(0)"
    tests = ["assert count() == 1", "end(); assert True", "assert count() == 1"]
    assert judged(tests, answer, credit="share").reward == pytest.approx(2 / 3)
    assert judged(tests, answer).reward == 0.0


ECHO = [{"input": "2 3\n", "output": "5\n"}, {"input": "4 4\n", "output": "8"}]


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("print(sum(map(int, input().split())))", 1.0),
        ("print(5)", 0.5),
        ("import os\nprint(5, flush=True)\nos._exit(1)", 0.0),
        ("import os\nos._exit(0)", 0.0),
        ("print('5\\n8')", 0.0),
        ("while True: pass", 0.0),
        ("print(", 0.0),
    ],
)
def test_programs_are_tested_by_input_and_output(answer: str, reward: float) -> None:
    assert judged(ECHO, answer, credit="share").reward == reward


def test_answers_see_no_variables_and_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    answer = "import os, socket\ntry:\n    socket.create_connection(('192.0.2.1', 80), 1)\n"
    answer += "except OSError as error:\n    print(error.errno, 'secret' in str(os.environ))"
    assert judged([{"input": "", "output": "101 False"}], answer).reward == 1.0


@pytest.mark.parametrize(
    ("tests", "error", "message"),
    [
        (None, ConfigError, "no tests in the field 'tests'"),
        ([], ConfigError, "no tests in the field 'tests'"),
        ([{"input": "1"}], ConfigError, "no tests in the field 'tests'"),
        ("assert add(", ConfigError, "tests of a task are wrong"),
        ("x = 1", ConfigError, "no function test_..., and no assert"),
        ("assert add(object(), 1) == 2", ConfigError, "cannot pass a object"),
        ("import missing_package\nassert add(1, 2) == 3", JudgeFailedError, "missing_package"),
    ],
)
def test_wrong_tests_are_errors_and_no_rewards(tests: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        judged(tests, ADD)


def test_without_an_interpreter_there_is_no_verdict() -> None:
    with pytest.raises(JudgeFailedError, match=r"could not be run|status 127"):
        judged(TESTS, ADD, python="/no/python3")


def test_a_sandbox_that_cannot_start_gives_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = UnitTestsJudge(UnitTestsSettings())

    async def run(*args: Any, **named: Any) -> Any:
        raise SandboxError("no namespaces")

    monkeypatch.setattr(judge._sandbox, "run", run)
    for tests in (TESTS, ECHO):
        with pytest.raises(JudgeFailedError, match="no namespaces"):
            judge({"tests": tests}, ADD)


def test_a_sandbox_that_separates_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not separate an answer from its tests"):
        load_judge("unit_tests", {"sandbox": "none"})


def test_the_last_fence_is_the_code() -> None:
    assert code_of("```\nfirst\n```\nand\n```python\nlast\n```\n") == "last\n"
    assert code_of("x = 1") == "x = 1"


def test_nothing_is_left_behind() -> None:
    # Tests of other processes have directories of their own there.
    ours = Workshop().base / owners.launcher()
    before = set(ours.glob("*"))
    judged(TESTS, ADD)
    assert set(ours.glob("*")) <= before
