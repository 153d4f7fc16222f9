"""Settings of the engine that a run's configuration may choose. What is executed, and where, is the operator's."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ajet_core.interfaces import ComponentSettings


class SglangEngineSettings(ComponentSettings):
    """Settings of the engine ``sglang``. They say how servers are started; those that run already have their own.

    :param replicas: servers to start.
    :param device: ``auto`` takes a GPU if there is any.
    :param tensor_parallel_size: GPUs of one server.
    :param memory_fraction: part of a GPU's memory for weights, keys and values.
    :param max_running_requests: requests that a server computes at the same time.
    :param sleep: allow `sleep` and `wake`, which free the GPU's memory while something else needs it. Weights are kept in
        host memory meanwhile.
    :param kv_tokens: tokens whose keys and values a server keeps on the CPU.
    :param threads: CPU threads of a server on the CPU.
    :param chunk_tokens: tokens of a chunk of an answer.
    :param boot_timeout_seconds: longest time a server may take to start, or to load other weights.
    """

    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    tensor_parallel_size: Annotated[int, Field(ge=1, le=64)] = 1
    memory_fraction: Annotated[float, Field(gt=0, le=1)] = 0.85
    max_running_requests: Annotated[int, Field(ge=1, le=4096)] = 256
    sleep: bool = False
    kv_tokens: Annotated[int, Field(ge=1024)] = 65536
    threads: Annotated[int, Field(ge=1)] = 1
    chunk_tokens: Annotated[int, Field(ge=1)] = 4
    boot_timeout_seconds: Annotated[float, Field(gt=0)] = 900.0
