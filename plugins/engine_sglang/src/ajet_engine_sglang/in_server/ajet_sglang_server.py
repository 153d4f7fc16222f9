"""Start an SGLang server with SGLang's own arguments; imports nothing of agentjet.

The server listens on a Unix socket instead of SGLang's port. The socket's path and the API key come
from the environment, which other users cannot read, unlike the command line. On a CPU, torchvision
may be a build for CUDA whose operators are missing: the declarations below are enough to import it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

if not torch.cuda.is_available():
    _operators = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for _name in ("nms", "qnms"):
        _operators.define(  # type: ignore[no-untyped-call]
            f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )


def listen_at(socket: str) -> None:
    """Make SGLang listen only on a Unix socket."""
    import uvicorn
    from sglang.srt.entrypoints import http_server

    class AtSocket(uvicorn.Config):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **{**named, "uds": socket})

    uvicorn.Config = AtSocket  # type: ignore[misc]
    # SGLang would send this request with the key to its TCP port, where another process may listen.
    # The engine sends it to the socket instead.
    http_server._freeze_gc_after_server_warmup = lambda _: None


def main() -> None:
    """Serve until the process ends."""
    from ajet_sglang_scheduler import accept_no_code, run_scheduler
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    accept_no_code()
    listen_at(os.environ.pop("SERVED_SOCKET"))
    arguments = prepare_server_args(sys.argv[1:])
    arguments.api_key = os.environ.pop("SERVED_API_KEY")
    try:
        arguments.resolve_once()
        launch_server(arguments, run_scheduler_process_func=run_scheduler)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main()
