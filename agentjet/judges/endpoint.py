"""Chat completions of any endpoint, with retries, structured output and a budget."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

from agentjet.agents.route import passthrough
from agentjet.client._paid import MAX_TOKENS, PAID_TOKENS

_OK = 200
# Of which another attempt may succeed (RFC 9110, section 15; 529 is that of an overloaded service).
_TEMPORARY = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_BAD_REQUESTS = frozenset({400, 422})
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 60.0
SHOWN = 300
"""Characters of an endpoint's answer that messages show."""

_log = logging.getLogger("ajet.judges")


class EndpointFailedError(RuntimeError):
    """An endpoint gave no completion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCompletion:
    """What an endpoint answered.

    :param text: of the answer, "" if it has none.
    :param tokens: of prompt and answer, as the endpoint counts them; 0 if it does not.
    """

    text: str
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointLimits:
    """How an endpoint is used.

    :param timeout_seconds: longest wait for an answer.
    :param retries: further attempts after a lost connection or a temporary error.
    :param waits: whether attempts continue for as long as the endpoint cannot be reached or reports
        temporary errors.
    :param at_once: most requests at a time.
    :param budget_tokens: tokens after which no request is sent.
    """

    timeout_seconds: float = 60.0
    retries: int = 3
    waits: bool = False
    at_once: int = 16
    budget_tokens: int | None = None


class ChatEndpoint:
    """An endpoint of the chat completions API. Any number of threads may use it.

    :param base_url: as OpenAI's SDK takes it, such as ``http://host:8000/v1``.
    :param key: returns the endpoint's key, None for none. It is called before the first request.
    :param name: what the endpoint is used for, in messages, such as ``judge``.
    :ivar spent_tokens: tokens of all requests.
    """

    def __init__(
        self,
        base_url: str,
        key: Callable[[], str | None],
        *,
        name: str,
        limits: EndpointLimits,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.spent_tokens = 0
        self._base_url = base_url
        self._key = key
        self._name = name
        self._limits = limits
        self._sleep = sleep
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(limits.at_once)
        self._http: httpx2.Client | None = None
        self._secret: str | None = None
        self._structured = True

    def complete(self, body: Mapping[str, Any]) -> ChatCompletion:
        """Request a chat completion.

        :param body: of the request. ``response_format`` is left out where the endpoint refuses it.
        :raises EndpointFailedError: there is none.
        """
        answer = self.request("chat/completions", body)
        try:
            text = answer["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError) as error:
            raise self._unreadable(json.dumps(answer)) from error
        return ChatCompletion(text=str(text or ""), tokens=_tokens(answer))

    def request(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request, and return the object that the endpoint answers.

        :param path: such as ``chat/completions``, relative to the base URL.
        :param body: as for `complete`.
        :raises EndpointFailedError: there is no answer.
        """
        limits, sent, failures = self._limits, dict(body), 0
        while True:
            with self._lock:
                if not self._structured:
                    sent.pop("response_format", None)
                spent = self.spent_tokens
            if limits.budget_tokens is not None and spent >= limits.budget_tokens:
                raise EndpointFailedError(
                    f"the {self._name} {body['model']} has spent its budget: {spent} of "
                    f"{limits.budget_tokens} tokens (budget_tokens)"
                )
            try:
                with self._places, passthrough():
                    response = self._client().post(path, json=sent)
            except httpx2.TransportError as error:
                problem = f"{type(error).__name__}: {error}"
            else:
                if response.status_code == _OK:
                    return self._read(response, str(body["model"]))
                problem = f"status {response.status_code}: {self._shown(response.text)}"
                if response.status_code in _BAD_REQUESTS and "response_format" in sent:
                    # Many endpoints have no structured output; the prompt asks for it too.
                    with self._lock:
                        self._structured = False
                    continue
                if response.status_code not in _TEMPORARY:
                    raise EndpointFailedError(f"the {self._name} at {self._base_url}: {problem}")
            failures += 1
            if failures > limits.retries:
                if not limits.waits:
                    raise EndpointFailedError(f"the {self._name} at {self._base_url}: {problem}")
                if failures == limits.retries + 1:
                    _log.warning(
                        "waiting for the %s at %s: %s", self._name, self._base_url, problem
                    )
            self._sleep(min(_FIRST_WAIT * 2 ** min(failures - 1, 10), _LONGEST_WAIT))

    def close(self) -> None:
        """Close the connections; later requests open others."""
        with self._lock:
            if self._http is not None:
                self._http.close()
                self._http = None

    def _read(self, response: httpx2.Response, model: str) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = response.json()
            tokens, written = _tokens(answer, "total_tokens"), _tokens(answer, "completion_tokens")
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            raise self._unreadable(response.text) from error
        # An answer without a usable text costs as much.
        PAID_TOKENS.note(self._name, model, max(0, tokens - written), written)
        with self._lock:
            self.spent_tokens += tokens
        return answer

    def _unreadable(self, answer: str) -> EndpointFailedError:
        return EndpointFailedError(
            f"the {self._name} at {self._base_url} answered with no completion: "
            f"{self._shown(answer)!r}"
        )

    def _shown(self, text: str) -> str:
        return text.replace(self._secret or "\0", "***")[:SHOWN]

    def _client(self) -> httpx2.Client:
        with self._lock:
            if self._http is None:
                self._secret = self._key()
                self._http = httpx2.Client(
                    base_url=self._base_url.rstrip("/") + "/",
                    headers={"authorization": f"Bearer {self._secret}"} if self._secret else {},
                    timeout=self._limits.timeout_seconds,
                    limits=httpx2.Limits(max_connections=self._limits.at_once),
                )
            return self._http


def _tokens(answer: Mapping[str, Any], name: str = "total_tokens") -> int:
    tokens = int((answer.get("usage") or {}).get(name) or 0)
    # An endpoint may answer any number.
    return min(max(0, tokens), MAX_TOKENS)


def json_objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of an answer, which may have thoughts or a fence around them.

    Of an object that is cut off, those inside it are yielded.
    """
    decoder, start = json.JSONDecoder(), text.find("{")
    while start >= 0:
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            end = start + 1
        else:
            yield value
        start = text.find("{", end)
