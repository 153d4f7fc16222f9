"""Engine settings that a run's configuration may choose.

The operator decides what is executed, and where.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ajet_core.interfaces import ComponentSettings


class SglangEngineSettings(ComponentSettings):
    """Settings of the engine ``sglang``, for the servers that it starts.

    :param replicas: number of servers to start.
    :param device: ``auto`` uses a GPU if there is one.
    :param tensor_parallel_size: number of GPUs for each server.
    :param memory_fraction: fraction of a GPU's memory for weights, keys and values.
    :param max_running_requests: maximum number of requests that a server computes at the same time.
    :param sleep: allow `sleep` and `wake`, which free GPU memory while another component needs it.
        Weights are kept in host memory meanwhile.
    :param kv_tokens: number of tokens whose keys and values a server keeps on the CPU.
    :param threads: number of CPU threads of a server on the CPU.
    :param chunk_tokens: number of tokens in a chunk of an answer.
    :param boot_timeout_seconds: maximum time for a server to start or to load other weights.
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
