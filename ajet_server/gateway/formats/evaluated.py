"""Calls of evaluation episodes: sampled as the run says, whatever their agents ask for."""

from __future__ import annotations

from dataclasses import replace

from ajet_core.protocol import EvaluationSampling
from ajet_server.gateway.formats.request import ModelRequest


def evaluated(request: ModelRequest, sampling: EvaluationSampling) -> ModelRequest:
    """`request` as an evaluation episode makes it; its call is recorded with what it was sampled with."""
    temperature, top_p, top_k = sampling.temperature, sampling.top_p, sampling.top_k
    return replace(
        request,
        temperature=request.temperature if temperature is None else temperature,
        top_p=request.top_p if top_p is None else top_p,
        top_k=request.top_k if top_k is None else top_k,
        most_tokens=sampling.max_tokens,
    )
