"""A client of one tag in a separate process, which rolls out until it is stopped."""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
from types import TracebackType

import httpx2

from agentjet.client import AsyncSwarmClient, Episode, Task

_CONCURRENCY = 16
_TASKS_AT_A_TIME = 64
_EPISODES_PER_TASK = 4


class Rollouts:
    """The process.

    :param seconds: how long each episode takes besides its model call.
    """

    def __init__(self, url: str, tag: str, seconds: float) -> None:
        command = [sys.executable, __file__, url, tag, str(seconds)]
        self._process = subprocess.Popen(command)

    def __enter__(self) -> Rollouts:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop(signal.SIGKILL)

    def stop(self, how: signal.Signals) -> None:
        """Stop the process: SIGTERM makes it give up open episodes, SIGKILL leaves them open."""
        self._process.send_signal(how)
        self._process.wait()


async def _roll_out(url: str, tag: str, seconds: float) -> None:
    """Roll out one task after another until cancelled."""
    numbers = itertools.count()
    async with AsyncSwarmClient(url) as client, httpx2.AsyncClient(timeout=60) as http:

        async def agent(task: Task, episode: Episode) -> float:
            answer = await http.post(
                f"{episode.base_url}/chat/completions",
                headers={"authorization": f"Bearer {episode.api_key}"},
                json={"model": "m", "messages": [{"role": "user", "content": task.id}]},
            )
            answer.raise_for_status()
            await asyncio.sleep(seconds)
            return int(episode.episode_id[-1], 16) / 15

        while True:
            # Names unique to the process, so that a later client has other tasks.
            names = [f"{tag}-{id(client)}-{next(numbers)}" for _ in range(_TASKS_AT_A_TIME)]
            await client.run_episodes_until_all_complete(
                [Task(name, tag=tag) for name in names],
                agent,
                episodes_per_task=_EPISODES_PER_TASK,
                concurrency=_CONCURRENCY,
            )


async def _until_told(url: str, tag: str, seconds: float) -> None:
    rolling = asyncio.create_task(_roll_out(url, tag, seconds))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, rolling.cancel)
    await asyncio.wait([rolling])
    if not rolling.cancelled():
        rolling.result()


if __name__ == "__main__":
    asyncio.run(_until_told(sys.argv[1], sys.argv[2], float(sys.argv[3])))
