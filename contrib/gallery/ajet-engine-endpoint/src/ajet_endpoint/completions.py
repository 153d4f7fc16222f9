"""Endpoints with ``/v1/completions`` that return token ids, such as vLLM."""

from __future__ import annotations

import json
from typing import Any, Literal

from ajet_core.errors import EngineError
from ajet_core.interfaces import GenerateRequest
from ajet_endpoint.server import Event, Reader, TokenServer
from ajet_engines.served import Piece

_PREFIX = "token_id:"


class CompletionsServer(TokenServer):
    """An OpenAI-compatible endpoint with vLLM's ``return_token_ids``."""

    path = "/v1/completions"
    _name = ""

    async def room(self) -> int | None:
        """Read the name of the model, and the context limit if the endpoint has that field."""
        models = json.loads(await self.http.get("/v1/models"))["data"]
        if not models:
            raise EngineError(f"{self.http.address} serves no model")
        self._name = str(models[0]["id"])
        limit = models[0].get("max_model_len")
        return None if limit is None else int(limit)

    def body(self, request: GenerateRequest) -> dict[str, Any]:
        """Return the body of a request."""
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self._name,
            "prompt": list(request.prompt_ids),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "stop_token_ids": list(sampling.stop_token_ids),
            "ignore_eos": True,
            "logprobs": sampling.top_logprobs,
            # The ids of the sampled tokens, and those in the keys of `top_logprobs`.
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "skip_special_tokens": False,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if sampling.top_p < 1:
            body["top_p"] = sampling.top_p
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        return body

    def reader(self, request: GenerateRequest) -> Reader:
        """Return what reads an event."""
        top = request.sampling.top_logprobs

        def read(event: Event) -> Piece:
            if choices := event.get("choices"):
                return self._piece(request, choices[0], top)
            details = (event.get("usage") or {}).get("prompt_tokens_details") or {}
            return Piece([], [], cached_tokens=details.get("cached_tokens"))

        return read

    def _piece(self, request: GenerateRequest, choice: Event, top: int) -> Piece:
        prompt = choice.get("prompt_token_ids")
        if prompt and prompt != list(request.prompt_ids):
            raise EngineError(
                f"{self.http.address} changed a prompt of {len(request.prompt_ids)} token ids into "
                f"one of {len(prompt)}"
            )
        logprobs = choice.get("logprobs") or {}
        ids = choice.get("token_ids")
        if ids is None:
            ids = [_id(token) for token in logprobs.get("tokens", [])]
        if any(token is None for token in ids):
            raise EngineError(f"{self.http.address} returns no token ids, only text")
        reason: Literal["stop", "length"] | None = None
        # Any other reason is that of a request that the endpoint gave up.
        if choice.get("finish_reason") in ("stop", "length"):
            reason = choice["finish_reason"]
        return Piece(
            token_ids=ids,
            logprobs=logprobs.get("token_logprobs", []),
            finish_reason=reason,
            top_logprobs=[_likely(row, top) for row in logprobs["top_logprobs"]]
            if top and ids
            else None,
        )

    async def reload(self, directory: str) -> None:
        """Refuse: the API has no route for it.

        :raises EngineError: always.
        """
        raise EngineError(f"{self.http.address} has no route that loads {directory}")


def _id(token: str) -> int | None:
    return int(token.removeprefix(_PREFIX)) if token.startswith(_PREFIX) else None


def _likely(row: dict[str, float], top: int) -> list[tuple[int, float]]:
    """Return the `top` most likely tokens; the row may also have a less likely sampled one."""
    pairs = [(token, logprob) for key, logprob in row.items() if (token := _id(key)) is not None]
    return sorted(pairs, key=lambda pair: -pair[1])[:top]
