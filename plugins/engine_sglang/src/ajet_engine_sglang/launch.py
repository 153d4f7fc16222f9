"""Command line and environment of an SGLang server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ajet_core.protocol import ModelConfig
from ajet_engine_sglang.server import RESERVED, SLEEPS
from ajet_engine_sglang.settings import SglangEngineSettings
from ajet_engines.served.launching import (
    check_arguments,
    dtype_of,
    gpus_of,
    model_config,
    server_environment,
)

IN_SERVER = Path(__file__).with_name("in_server")
# Arguments that agentjet sets, that would change tokens or logprobs, or that run code of a model or
# a file.
_DENIED = """
    --model-path --model --tokenizer-path --tokenizer-mode --skip-tokenizer-init --dtype
    --context-length --random-seed --served-model-name --host --port --api-key --admin-api-key
    --config --device --ssl-keyfile --ssl-certfile --enable-ssl-refresh --enable-http2
    --tokenizer-worker-num --grpc-port --grpc-mode --smg-grpc-mode --nnodes --enable-memory-saver
    --enable-weights-cpu-backup --incremental-streaming-output --stream-interval --enable-metrics
    --max-running-requests --max-total-tokens --mem-fraction-static --tensor-parallel-size --tp-size
    --tp --data-parallel-size --dp-size --dp --pipeline-parallel-size --pp-size --pp
    --speculative-algorithm --rl-on-policy-target --enable-custom-logit-processor
    --trust-remote-code --preferred-sampling-params --json-model-override-args --load-format
    --download-dir --revision --enable-deterministic-inference
"""
DENIED = frozenset(_DENIED.split())
_ON_CPU = """
    --device cpu --attention-backend torch_native --sampling-backend pytorch
    --disable-overlap-schedule --disable-cuda-graph
"""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """How to start one server.

    :param python: interpreter that has SGLang.
    :param arguments: additional arguments from the operator.
    :param socket: path of the socket to listen on.
    :param cpu: whether the server computes on the CPU.
    """

    python: str
    options: SglangEngineSettings
    arguments: tuple[str, ...]
    model: ModelConfig
    socket: Path
    cpu: bool
    seed: int

    def command(self) -> list[str]:
        """Return the command line.

        :raises ConfigError: the operator's arguments are not allowed.
        """
        options, model = self.options, self.model
        check_arguments("sglang", self.arguments, DENIED)
        command = [self.python, "-m", "ajet_sglang_server", "--model-path", model.path]
        command += ["--skip-tokenizer-init"]
        command += ["--dtype", dtype_of(model), "--random-seed", str(self.seed)]
        command += ["--stream-interval", str(options.chunk_tokens)]
        command += ["--incremental-streaming-output", "--enable-metrics", "--skip-server-warmup"]
        command += ["--grammar-backend", "none", "--enable-custom-logit-processor"]
        # Without it an idle server uses a whole core, which the trainer needs.
        command += ["--sleep-on-idle"]
        command += ["--max-running-requests", str(options.max_running_requests)]
        if model.max_context is not None:
            command += ["--context-length", str(_context(model, model.max_context))]
        if self.cpu:
            command += [*_ON_CPU.split(), "--max-total-tokens", str(options.kv_tokens)]
        else:
            command += ["--tp-size", str(options.tensor_parallel_size)]
            command += ["--mem-fraction-static", str(options.memory_fraction)]
            if options.sleep:
                command += SLEEPS.split()
        return [*command, *self.arguments]

    def environment(self, replica: int, key: str) -> dict[str, str]:
        """Return the whole environment. Each replica on GPUs gets its own consecutive GPUs."""
        options = self.options
        variables = server_environment(IN_SERVER) | {
            "SERVED_API_KEY": key,
            "SERVED_SOCKET": str(self.socket),
            # The Rust server would open a port of its own.
            "SGLANG_RUST_SERVER": "0",
            # Otherwise logprobs would ignore the sampling temperature.
            "SGLANG_RETURN_ORIGINAL_LOGPROB": "0",
        }
        # Weights are broadcast from the same machine.
        variables.setdefault("GLOO_SOCKET_IFNAME", "lo")
        if self.cpu:
            variables |= {"SGLANG_USE_CPU_ENGINE": "0", "OMP_NUM_THREADS": str(options.threads)}
        elif options.replicas > 1:
            each = options.tensor_parallel_size
            variables["CUDA_VISIBLE_DEVICES"] = gpus_of(replica, options.replicas, each)
        return variables


def _context(model: ModelConfig, wanted: int) -> int:
    """Add the tokens that SGLang leaves unused, as far as the model's context allows."""
    limit = int(model_config(model)["max_position_embeddings"])
    return max(wanted, min(wanted + RESERVED, limit))
