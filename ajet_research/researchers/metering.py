"""A recording proxy: passes calls of an assistant on to one endpoint, once each is set aside."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import httpx2

from agentjet import passthrough
from ajet_core.errors import AjetError
from ajet_research.researchers.interface import (
    CallAccount,
    ResearcherAnswer,
    ResearcherFailedError,
)
from ajet_research.researchers.model import MOST_BYTES, TEMPORARY, ModelTerms, may_be_paid
from ajet_research.researchers.usage import (
    CALL_LIMITS,
    bounded_call,
    money_of,
    most_tokens,
    usage_of,
)

_OK, _BAD, _UNKNOWN, _AWAY = 200, 400, 404, 502
_DENIED = frozenset({401, 403})
_MOST_HEADERS = 100
_MOST_UNANSWERED = 100
"""Calls without an answer: they may cost nothing, but each of them is kept."""
_SECRET = 12
"""Characters from which a key is one: shorter ones, as of local servers, are words of answers."""
_PREFIX = "/v1/"
_PASSED = ("accept", "anthropic-version", "anthropic-beta", "user-agent")
_RETURNED = ("content-type", "retry-after", "request-id", "x-request-id")


class CallMeter:
    """Serves connections of a program, whose only way to a model it is.

    :param terms: the endpoint, the model that every call is for, and limits of an answer.
    :param key: of the endpoint, which the program does not have; "" for none.
    :ivar answered: calls with an answer.
    :ivar refused: why the budget did not allow a call; "" as long as it did.
    :ivar denied: the status with which the endpoint refused the key; 0 as long as it did not.
    :ivar away: why the last call had no answer, if another attempt may succeed; "" otherwise.
    :ivar broken: why the account could not be written; None as long as it could.
    """

    def __init__(self, terms: ModelTerms, key: str, account: CallAccount) -> None:
        self._terms = terms
        self._key = key
        self._account = account
        self._made = 0
        self._certificates = httpx2.create_ssl_context()
        self.answered = 0
        self.refused = ""
        self.denied = 0
        self.away = ""
        self.broken: AjetError | OSError | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, which has one call."""
        try:
            path, headers, content = await _call_of(reader)
            if path not in CALL_LIMITS:
                known = ", ".join(f"POST {_PREFIX}{one}" for one in CALL_LIMITS)
                await _refuse(writer, _UNKNOWN, "unknown_path", f"The meter has {known}.")
                return
            body = json.loads(content)
            if not isinstance(body, dict):
                raise ValueError("the body is not an object")
            call = bounded_call(path, body, self._terms.model, self._terms.max_tokens)
            text = json.dumps(call.sent, ensure_ascii=False).encode(errors="replace").decode()
        except (ValueError, RecursionError, asyncio.IncompleteReadError) as error:
            what = f"This call cannot be metered: {error}."
            await _refuse(writer, _BAD, "call_not_metered", what)
            return
        if self._made - self.answered >= _MOST_UNANSWERED:
            what = f"{_MOST_UNANSWERED} calls had no answer, so that no other one is passed on."
            await _refuse(writer, _BAD, "too_many_calls", what)
            return
        self._made += 1
        prompt = most_tokens(text) + call.added
        money = money_of(self._terms.price, prompt, call.written, prompt if call.caches else 0)
        try:
            number = self._account.set_aside(text, prompt + call.written, money)
        except ResearcherFailedError as error:
            self.refused = error.message
            await _refuse(writer, _BAD, "researcher_budget", error.message)
            return
        except (AjetError, OSError) as error:
            self.broken = error
            await _refuse(writer, _BAD, "account_broken", "The account cannot be written.")
            return
        worst = ResearcherAnswer("", prompt + call.written, money)
        await self._passed(writer, (path, text, headers), number, worst)

    async def _passed(
        self,
        writer: asyncio.StreamWriter,
        call: tuple[str, str, Mapping[str, str]],
        number: int,
        worst: ResearcherAnswer,
    ) -> None:
        """Pass a call on, and settle it, whatever becomes of it."""
        path, text, headers = call
        content, hiding = bytearray(), _Hiding(self._key)
        status, problem, unpaid = 0, "the assistant left before the answer", False
        try:
            with passthrough():
                async with (
                    asyncio.timeout(self._terms.timeout_seconds),
                    self._client(path, headers) as client,
                    client.stream("POST", path, content=text.encode()) as response,
                ):
                    status = response.status_code
                    answer_headers = response.headers.items()
                    _begin(
                        writer, status, {name: self._shown(value) for name, value in answer_headers}
                    )
                    async for chunk in response.aiter_bytes():
                        content += (shown := hiding.passed(chunk))
                        if len(content) > MOST_BYTES:
                            raise httpx2.HTTPError("the answer has more than 4 MiB")
                        writer.write(shown)
                        await writer.drain()
                    content += hiding.rest
                    writer.write(hiding.rest)
            problem = "" if status == _OK else f"status {status}"
            unpaid = not may_be_paid(status)
            self.away = problem if status in TEMPORARY else ""
            self.denied = status if status in _DENIED else self.denied
            self.answered += status == _OK
        except TimeoutError:
            problem = self.away = f"no answer within {self._terms.timeout_seconds:g} s"
        except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
            problem = self.away = self._shown(f"{type(error).__name__}: {error}")
            unpaid = isinstance(error, httpx2.ConnectError | httpx2.InvalidURL | UnicodeError)
        finally:
            self._settle(number, bytes(content), worst, problem, unpaid=unpaid)
        if problem and not status:
            await _refuse(writer, _AWAY, "endpoint_away", f"The endpoint gave no answer: {problem}")

    def _settle(
        self, number: int, content: bytes, worst: ResearcherAnswer, problem: str, *, unpaid: bool
    ) -> None:
        answer = content.decode(errors="replace")
        used = usage_of(content) if not problem else None
        if unpaid:
            spent = ResearcherAnswer(answer)
        elif used is None:
            spent = ResearcherAnswer(answer, worst.tokens, worst.money)
        else:
            money = money_of(self._terms.price, *used)
            spent = ResearcherAnswer(answer, used.prompt + used.written, money)
        try:
            self._account.settle(number, spent, problem)
        except (AjetError, OSError) as error:
            # The worst case stays set aside.
            self.broken = error

    def _shown(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text

    def _client(self, path: str, headers: Mapping[str, str]) -> httpx2.AsyncClient:
        own = {name: headers[name] for name in _PASSED if name in headers}
        own["content-type"] = "application/json"
        if self._key and path == "messages":
            own["x-api-key"] = self._key
        elif self._key:
            own["authorization"] = f"Bearer {self._key}"
        return httpx2.AsyncClient(
            base_url=self._terms.base_url.rstrip("/") + "/",
            headers=own,
            timeout=self._terms.timeout_seconds,
            verify=self._certificates,
        )


class _Hiding:
    """Passes bytes of an answer on, without the key.

    :ivar rest: what may be the beginning of the key.
    """

    def __init__(self, key: str) -> None:
        self._key = key.encode() if len(key) >= _SECRET else b""
        self.rest = b""

    def passed(self, chunk: bytes) -> bytes:
        """Return what may be passed on by now."""
        if not self._key:
            return chunk
        data = (self.rest + chunk).replace(self._key, b"***")
        begun = (n for n in range(len(self._key) - 1, 0, -1) if data.endswith(self._key[:n]))
        kept = len(data) - next(begun, 0)
        self.rest = data[kept:]
        return data[:kept]


async def _call_of(reader: asyncio.StreamReader) -> tuple[str, dict[str, str], bytes]:
    """Return path, headers and body of a request.

    :raises ValueError: it is none that the meter takes.
    :raises IncompleteReadError: the connection ended within it.
    """
    parts = (await reader.readline()).decode("latin-1").split()
    headers: dict[str, str] = {}
    for _ in range(_MOST_HEADERS):
        line = (await reader.readline()).decode("latin-1").strip()
        if not line:
            break
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    else:
        raise ValueError("it has too many headers")
    if len(parts) < 2:
        raise ValueError("it is not a request of HTTP")
    path = parts[1].partition("?")[0]
    path = path.removeprefix(_PREFIX) if parts[0] == "POST" else ""
    if path not in CALL_LIMITS:
        return "", headers, b""
    size = headers.get("content-length", "")
    if not size.isdecimal() or int(size) > MOST_BYTES:
        raise ValueError("its content-length is missing or more than 4 MiB")
    return path, headers, await reader.readexactly(int(size))


def _begin(writer: asyncio.StreamWriter, status: int, headers: Mapping[str, str]) -> None:
    lines = [f"HTTP/1.1 {status} Answer", "connection: close"]
    lines += [f"{name}: {headers[name]}" for name in _RETURNED if name in headers]
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1", errors="replace"))


async def _refuse(writer: asyncio.StreamWriter, status: int, kind: str, message: str) -> None:
    """Answer with an error in the form of the usual APIs.

    Clients do not repeat a call with status 400. Codex repeats one with status 403 five times.
    """
    error = {"type": kind, "code": kind, "message": message, "param": None}
    content = json.dumps({"type": "error", "error": error}).encode()
    about = {"content-type": "application/json"}
    _begin(writer, status, about)
    writer.write(content)
    await writer.drain()
