"""Schedulers that send a request's last token well before they have finished with it.

As they are where other processes take the processor, or on GPUs, where one more forward pass has
begun by then.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from typing import Any

_LATE_SECONDS = 0.2


def _plugins() -> Any:
    name = Path(__file__).name
    here = Path(__file__).parent
    path = next(
        path for one in sys.path if (path := Path(one, name)).is_file() and Path(one) != here
    )
    spec = importlib.util.spec_from_file_location("plugins_scheduler", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_module = _plugins()
accept_no_code = _module.accept_no_code


def run_scheduler(*arguments: Any, **named: Any) -> Any:
    """The plugin's, which is late."""
    from sglang.srt.managers.scheduler import Scheduler

    on_time = Scheduler.process_batch_result

    def late(self: Any, batch: Any, *rest: Any, **more: Any) -> None:
        on_time(self, batch, *rest, **more)
        if any(request.finished() for request in batch.reqs):
            time.sleep(_LATE_SECONDS)

    Scheduler.process_batch_result = late
    return _module.run_scheduler(*arguments, **named)
