"""Settings, in a light module: the server imports it to check them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ajet_core.interfaces import ComponentSettings


class EndpointEngineSettings(ComponentSettings):
    """Settings of the engine ``endpoint``. The operator sets the endpoints' addresses.

    :param api: ``completions`` is ``/v1/completions`` with vLLM's ``return_token_ids``;
        ``generate`` is SGLang's ``/generate``.
    :param weights: ``fixed`` loads no weights, and refuses any but those of the run's model;
        ``load`` makes the endpoint load each new version from the trainer's directory, which only
        the API ``generate`` can.
    :param boot_seconds: maximum time to wait until an endpoint answers, or has loaded weights.
    """

    api: Literal["completions", "generate"] = "completions"
    weights: Literal["fixed", "load"] = "fixed"
    boot_seconds: Annotated[float, Field(gt=0)] = 900.0

    @model_validator(mode="after")
    def _can_load(self) -> Self:
        if self.weights == "load" and self.api != "generate":
            raise ValueError(
                f"weights cannot be 'load' with the api {self.api!r}, which has no route that "
                "loads weights: use 'generate', or agentjet-engine-vllm for vLLM"
            )
        return self
