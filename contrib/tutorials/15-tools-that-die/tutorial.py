# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 15. Tools that die
#
# Real tools crash, hang and lose their connections. If an episode got the reward 0 for that, the
# model would be punished for what it did not do, and would learn to avoid the tool. The tool of
# this tutorial is an MCP server that dies at every hundredth call
# ([door_server.py](door_server.py)). Its episodes are aborted, which is no reward at all, and
# rolled out again.
#
# It needs `pip install "agentjet[mcp]>=0.1"`.

# %%
import json
import random
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
from openai import AsyncOpenAI

from agentjet import LocalServer, RunConfig, train, trainable
from agentjet.mcp import McpServers, StdioServer
from ajet_worlds.tiny_grpo import TINY_GRPO
from ajet_worlds.tiny_model import ChatExample, create_tiny_model

# %% [markdown]
# ## The agent
#
# It has a key and opens one door. All episodes share one process of the server. After it has died,
# the next episode starts another one.

# %%
GOLD = {"blue": "left", "green": "right", "red": "middle", "black": "left"}
llm = AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="not used in training")
doors = McpServers(
    StdioServer("doors", sys.executable, ["door_server.py"], shared=True, start_timeout=120),
    ban_after=50,
)


def question(colour):
    return {"role": "user", "content": f"You have the {colour} key."}


@trainable(reward=lambda colour, results: float(results == ["gold"]))
async def seek(colour):
    async with doors.tools() as tools:
        reply = await llm.chat.completions.create(
            model="tiny", messages=[question(colour)], tools=tools.definitions, max_tokens=48
        )
        results = [
            await tools.call(call.function.name, call.function.arguments)
            for call in reply.choices[0].message.tool_calls or ()
        ]
    return results[:1]


# %% [markdown]
# ## The model
#
# It imitates calls of the tool with doors that are drawn at random.

# %%
TOOL = {
    "type": "function",
    "function": {
        "name": "open_door",
        "description": "Open a door.",
        "parameters": {
            "type": "object",
            "properties": {"key": {"type": "string"}, "door": {"type": "string"}},
            "required": ["key", "door"],
        },
    },
}
random.seed(0)
examples = []
for _ in range(200):
    key, door = random.choice(list(GOLD)), random.choice(["left", "middle", "right"])
    if random.random() < 0.1:
        door = GOLD[key]
    call = {"name": "open_door", "arguments": json.dumps({"key": key, "door": door})}
    calls = [{"id": "1", "type": "function", "function": call}]
    answer = {"role": "assistant", "content": None, "tool_calls": calls}
    examples.append(ChatExample([question(key), answer], [TOOL]))

directory = Path(tempfile.mkdtemp(prefix="tools-that-die-"))
create_tiny_model(directory / "model", examples=examples)

# %% [markdown]
# ## The training
#
# Each failure concerns the episodes that were waiting for the server when it died. `retries` says
# how often an episode may be tried again.

# %%
STEPS = 14
server = LocalServer(directory).start()
config = RunConfig.model_validate(
    {
        "model": {"path": str(directory / "model")},
        "batch": {"tasks": 4, "episodes_per_task": 16},
        "algorithm": TINY_GRPO,
        # All episodes that wait for the server fail together, which could be most of the last 32.
        # By default, a run pauses when more than 80 % of them fail.
        # A tiny model is soon sure of some answers: its entropy may fall before it knows all doors.
        "failures": {"max_rate": 1.0, "max_entropy_growth": None},
    }
)
client = server.async_client()
report = train(seek, list(GOLD), client=client, config=config, epochs=STEPS, retries=5)
counters = server.client.status().counters
aborted = sum(count for name, count in counters.items() if name.startswith("aborted_"))
print(f"{len(report.outcomes)} episodes ended, {len(report.failures)} were given up")
print(f"{aborted:.0f} times an episode was aborted and rolled out again")
server.client.stop_engine()
server.close()

# %%
lines = (server.run_dir / "metrics.jsonl").read_text().splitlines()
curve = [json.loads(line)["reward_mean"] for line in lines]
for step, reward in enumerate(curve, start=1):
    print(f"step {step:2}: mean reward {reward:.2f}")

# %%
plt.plot(range(1, len(curve) + 1), curve, marker="o")
plt.xlabel("training step")
plt.ylabel("mean reward")
plt.ylim(0, 1)
plt.savefig("curve.png")

# %% [markdown]
# ## What to try next
#
# - Catch the error in `seek` and return `"nothing"` instead. How does the curve suffer from rewards
#   that no call of the model has earned?
# - Let the tool hang instead: `time.sleep(1000)`. Which setting ends the call?
#   ([tools of MCP servers](../../../docs/mcp.md#servers))
# - Let it die at every third call. When does the run pause, and what does `ajet status` say?
# - [Agents and tools](../../../docs/faults-clients.md#agents-and-tools) lists what is tried again,
#   by whom, and what is not.
