"""Endpoints with SGLang's ``/generate``."""

from __future__ import annotations

import json
from typing import Any, Literal

from ajet_core.errors import EngineError
from ajet_core.interfaces import GenerateRequest
from ajet_endpoint.server import Event, Reader, TokenServer
from ajet_engines.served import Piece, ServerRefusedError


class GenerateServer(TokenServer):
    """An endpoint with ``/generate`` as SGLang has it."""

    path = "/generate"

    async def room(self) -> int | None:
        """Read the limit from ``/server_info``."""
        info = json.loads(await self.http.get("/server_info"))
        limit = info.get("max_req_input_len") or info.get("context_length")
        return None if limit is None else int(limit)

    def body(self, request: GenerateRequest) -> dict[str, Any]:
        """Return the body of a request."""
        sampling = request.sampling
        return {
            "input_ids": list(request.prompt_ids),
            "sampling_params": {
                "max_new_tokens": sampling.max_tokens,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k or -1,
                "stop_token_ids": list(sampling.stop_token_ids),
                # With ignore_eos, SGLang would also ignore the stop tokens of the request.
                "ignore_eos": not sampling.stop_token_ids,
                "skip_special_tokens": False,
                "no_stop_trim": True,
            },
            "return_logprob": True,
            "top_logprobs_num": sampling.top_logprobs,
            "stream": True,
        }

    def reader(self, request: GenerateRequest) -> Reader:
        """Return what reads the events of one request."""
        sampling = request.sampling
        seen = 0

        def read(event: Event) -> Piece:
            nonlocal seen
            meta = event["meta_info"]
            ended = meta.get("finish_reason") or {}
            if ended.get("type") == "abort" and ended.get("status_code"):
                raise ServerRefusedError(int(ended["status_code"]), str(ended.get("message")))
            first, cached = seen == 0, meta.get("cached_tokens")
            rows = meta.get("output_token_logprobs") or []
            fresh = int(meta["completion_tokens"]) - seen
            if fresh > len(rows):
                raise EngineError(
                    f"{self.http.address} returned {len(rows)} logprobs for {fresh} tokens"
                )
            # Events have all tokens so far, unless the server streams increments.
            seen += fresh
            rows = rows[len(rows) - fresh :]
            ids = [int(row[1]) for row in rows]
            tops = (meta.get("output_top_logprobs") or [])[-fresh:] if fresh else []
            reason: Literal["stop", "length"] | None = None
            if ended.get("type") == "length":
                reason = "length"
            elif ended.get("type") == "stop" and ids and ids[-1] in sampling.stop_token_ids:
                # A stop at the model's own end token is none for a request that does not name it.
                reason = "stop"
            return Piece(
                ids,
                [float(row[0]) for row in rows],
                reason,
                [[(int(row[1]), float(row[0])) for row in top] for top in tops]
                if sampling.top_logprobs and fresh
                else None,
                cached if first and fresh else None,
            )

        return read

    async def reload(self, directory: str) -> None:
        """Load a directory; the endpoint ends what it still samples, and flushes its cache.

        :raises EngineError: it reports a failure.
        """
        answer = await self.http.post(
            "/update_weights_from_disk",
            {"model_path": directory, "abort_all_requests": True, "flush_cache": True},
        )
        if not answer.get("success"):
            raise EngineError(
                f"{self.http.address} could not load {directory}: {answer.get('message')}"
            )
