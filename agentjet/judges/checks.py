"""What the child processes of judges run: comparisons whose cost depends on the answer.

It is run as a script and imports nothing of agentjet. Each line of its input is a request:

    {"check": "regex", "cpu_seconds": 5, "arguments": {...}}

and each line of its output the answer to it: ``{"value": VALUE}`` or ``{"error": KIND, "message":
TEXT}``. The kinds are ``config`` (the task or a setting is wrong), ``missing`` (a package is not
installed) and ``judge`` (all else).
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

_DELIMITED = re.compile(r"\$|\\boxed|\\\(|\\\[")
_FUNCTIONS = re.compile(
    r"(?<![\\A-Za-z])(sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|ln|log|exp|sqrt|pi|theta|alpha|beta|"
    r"infty|infinity|oo)(?![A-Za-z])"
)
_UNIT = re.compile(
    r"(?P<value>[-+]?(?:\d[\d,]*(?:\.\d+)?|\\[dt]?frac\{\d+\}\{\d+\})(?:\s*/\s*\d+)?(?:e[-+]?\d+)?)"
    r"(?:\s|\\[,;: !]|~|\\ )*"
    r"(?:\\(?:text|mathrm|textrm|mbox|rm)\s*\{\s*(?P<quoted>[^{}]*)\}(?P<power>\^\{?-?\d\}?)?"
    r"|(?<=\s)(?P<plain>[A-Za-z]+(?:\s?[/*^]\s?-?[A-Za-z0-9]+)*))"
)
_LONGEST_BARE = 300
_LONGEST = 100_000
# Reading one takes the library seconds for each thousand digits.
_LONG_NUMBER = re.compile(r"\d{400}")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*\\?%")


class _ConfigError(Exception):
    """The task or a setting is wrong, whatever the answer is."""


def regex(
    pattern: str, text: str, *, whole: bool, group: str, expected: str | None, ignore_case: bool
) -> float:
    """Return 1 if a text matches a pattern, and the group of its last match the expected text.

    :param whole: whether all of the text must match.
    :param group: the name or number of a group; "" compares nothing.
    """
    try:
        compiled = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    except re.error as error:
        raise _ConfigError(f"the pattern {pattern!r} is invalid: {error}") from error
    if group and group not in compiled.groupindex:
        raise _ConfigError(f"the pattern {pattern!r} has no group {group!r}")
    matches: Iterator[re.Match[str]]
    if whole:
        match = compiled.fullmatch(text.strip())
        matches = iter((match,) if match else ())
    else:
        matches = compiled.finditer(text)
    last: re.Match[str] | None = None
    for match in matches:
        last = match
        if not group:
            return 1.0
    if last is None or expected is None:
        return 0.0
    value, wanted = " ".join((last[group] or "").split()), " ".join(expected.split())
    if ignore_case:
        value, wanted = value.casefold(), wanted.casefold()
    return float(value == wanted)


def json_schema(schema: Any, text: str, partial: bool) -> dict[str, Any]:
    """Return ``reward`` and ``problem`` of a text that should be JSON of a schema."""
    try:
        from jsonschema.exceptions import SchemaError
        from jsonschema.validators import validator_for
        from referencing import Registry
        from referencing.exceptions import Unresolvable
    except ImportError as error:
        raise ModuleNotFoundError(f"jsonschema: {error}") from error
    kind = validator_for(schema)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise _ConfigError(f"the schema is invalid: {error.message}") from error
    try:
        value = _strict_json(text)
    except (ValueError, RecursionError) as error:
        return {"reward": 0.0, "problem": f"it is not JSON: {error}"}
    # An empty registry, so that no schema is fetched.
    validator = kind(schema, registry=Registry())
    try:
        errors = list(validator.iter_errors(value))
        if not errors:
            return {"reward": 1.0, "problem": ""}
        problem = f"{errors[0].json_path}: {errors[0].message[:300]}"
        share = 0.0
        if partial and isinstance(schema, dict) and isinstance(value, dict):
            wrong = {error.path[0] for error in errors if error.path}
            required = list(dict.fromkeys(schema.get("required", ())))
            right = [name for name in required if name in value and name not in wrong]
            share = len(right) / (len(required) + 1)
    except Unresolvable as error:
        raise _ConfigError(f"the schema refers to {error.ref!r}, which it does not have") from error
    except (RecursionError, MemoryError) as error:
        return {"reward": 0.0, "problem": f"it is too deep: {type(error).__name__}"}
    return {"reward": share, "problem": problem}


def symbolic(expected: str, text: str, digits: int) -> float:
    """Return 1 if the last expression of a text equals the expected one."""
    from math_verify import verify

    gold = _expected(expected)
    if not gold:
        raise _ConfigError(f"the reference {expected[:300]!r} is not a mathematical expression")
    # What follows is long is hardly an answer, and the parser needs a second for each 10,000.
    if len(text) > _LONGEST or _LONG_NUMBER.search(text):
        return 0.0
    for answer in _readings(text):
        try:
            equal = verify(
                gold,
                answer,
                float_rounding=digits,
                allow_set_relation_comp=True,
                timeout_seconds=None,
                raise_on_error=True,
            )
        # Whatever sympy raises on an expression that the answer chose.
        except Exception:  # noqa: BLE001, S112
            continue
        if equal:
            return float(_same_unit(expected, text))
    return _in_other_units(expected, text, digits)


@functools.lru_cache(maxsize=256)
def _expected(text: str) -> Any:
    """Return the expressions of a reference, which is an expression as a whole."""
    if _DELIMITED.search(text):
        return _parsed(text)
    return _parsed(f"${_latex(text)}$") or _parsed(text)


def _readings(text: str) -> Iterator[Any]:
    """Return the expressions of an answer: those of its end, or all of a short line."""
    bare = not _DELIMITED.search(text) and "\n" not in text.strip()
    if bare and len(text) <= _LONGEST_BARE:
        yield _parsed(f"${_latex(text.strip().rstrip('.'))}$")
    yield _parsed(text)
    if (exact := _PERCENT.sub(_hundredth, text)) != text:
        # The library divides percentages as floating-point numbers.
        yield _parsed(exact)


def _hundredth(percentage: re.Match[str]) -> str:
    return format(Decimal(percentage[1]) / 100, "f")


def _parsed(text: str) -> Any:
    from math_verify import parse

    # The alarms of the library's own time limit are not needed: the process has a limit.
    return parse(text, fallback_mode="no_fallback", parsing_timeout=None)


def _latex(text: str) -> str:
    """Return LaTeX for an expression that may be plain text."""
    names = {"infinity": r"\infty", "oo": r"\infty"}
    text = text.strip().replace("**", "^")
    if text.startswith("{") and text.endswith("}"):
        text = rf"\{{{text[1:-1]}\}}"
    text = _FUNCTIONS.sub(lambda match: names.get(match[1], "\\" + match[1]) + " ", text)
    text = re.sub(r"\^\(([^()]*)\)", r"^{\1}", text)
    text = re.sub(r"\\sqrt \(([^()]*)\)", r"\\sqrt{\1}", text)
    return re.sub(r"(?<!\\)\*", r"\\cdot ", text).replace("<=", r"\le ").replace(">=", r"\ge ")


def _quantity(text: str) -> tuple[Any, Any] | None:
    """Return the value and the unit of the last quantity of a text; None without a known unit."""
    from sympy import Rational
    from sympy.physics import units

    for match in reversed(list(_UNIT.finditer(text))):
        said = (match["quoted"] or match["plain"] or "").strip() + (match["power"] or "")
        unit: Any = Rational(1)
        for sign, name, power in re.findall(
            r"(^|[/*·])\s*([A-Za-z]+)(?:\^\{?(-?\d)\}?)?", said.replace(" ", "")
        ):
            one = getattr(units, name, None)
            if not isinstance(one, units.Quantity):
                break
            unit *= one ** ((-1 if sign == "/" else 1) * int(power or 1))
        else:
            if unit != 1 and (value := _parsed(f"${match['value']}$")):
                return value[0], unit
    return None


def _same_unit(expected: str, text: str) -> bool:
    """Return False if both texts have known units, which differ."""
    wanted, given = _quantity(expected), _quantity(text)
    return wanted is None or given is None or wanted[1] == given[1]


def _in_other_units(expected: str, text: str, digits: int) -> float:
    """Return 1 if the answer is the same quantity in another unit."""
    wanted, given = _quantity(expected), _quantity(text)
    if wanted is None or given is None or wanted[1] == given[1]:
        return 0.0
    from sympy.physics.units import convert_to, kilogram, meter, second

    ratio = convert_to(given[0] * given[1] / (wanted[0] * wanted[1]), [meter, kilogram, second])
    return float(bool(ratio.is_number) and abs(float(ratio) - 1) < 10.0**-digits)


def _strict_json(text: str) -> Any:
    """:raises ValueError: it is not JSON, has NaN, or an object has a key twice."""
    fence = re.fullmatch(r"\s*```(?:json)?\s*\n(.*)\n\s*```\s*", text, re.DOTALL)

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(table := dict(items)) < len(items):
            raise ValueError("an object has a key twice")
        return table

    return json.loads(fence[1] if fence else text, parse_constant=constant, object_pairs_hook=pairs)


CHECKS: dict[str, Callable[..., Any]] = {
    "json_schema": json_schema,
    "regex": regex,
    "symbolic": symbolic,
}


def _limit_memory(size: int) -> None:
    """Limit the memory of this process in bytes, where the system can."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    except (ImportError, OSError, ValueError):
        pass


def _limit_cpu(seconds: float | None) -> None:
    """Have the system end this process after so many seconds of CPU time from now; None: never."""
    try:
        import resource
    except ImportError:
        return
    own = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = hard if seconds is None else int(own.ru_utime + own.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


@functools.cache
def _warm_up() -> None:
    import sympy.physics.units  # noqa: F401
    from math_verify import verify

    # The first expression of each kind imports and builds its parser.
    verify(_parsed(r"$\frac{1}{2}$"), _parsed("$0.5$"), timeout_seconds=None)


def _answered(line: str) -> dict[str, Any]:
    request = json.loads(line)
    check, arguments = CHECKS[request["check"]], request["arguments"]
    # Not counted, nor held to the limit of the last check: what is imported and built once, which
    # takes seconds on a slow machine.
    if check is symbolic:
        _limit_cpu(None)
        _warm_up()
    _limit_cpu(request["cpu_seconds"])
    return {"value": check(**arguments)}


def main() -> None:
    """Answer requests until the input ends."""
    _limit_memory(int(sys.argv[1]))
    # What a library prints is not an answer.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            answer = _answered(line)
        except _ConfigError as error:
            answer = {"error": "config", "message": str(error)}
        except ImportError as error:
            answer = {"error": "missing", "message": str(error)}
        except MemoryError:
            answer = {"error": "limit", "message": "it needed too much memory"}
        except Exception as error:  # noqa: BLE001 - the parent raises it
            answer = {"error": "judge", "message": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
