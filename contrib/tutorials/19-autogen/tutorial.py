# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 19. An AutoGen team
#
# Two agents of AutoGen talk to each other: a guide says which door to take, and a walker opens one.
# Only the success at the end is rewarded. Both agents learn from it, because every call of an
# episode is trained, whichever agent makes it. The team needs no change.
#
# It needs `pip install "agentjet[autogen]>=0.1"`.

# %%
import json
import random
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import ToolCallExecutionEvent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import ModelFamily, ModelInfo
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient

from agentjet import LocalServer, RunConfig, train, trainable
from ajet_worlds.tiny_grpo import TINY_GRPO
from ajet_worlds.tiny_model import ChatExample, create_tiny_model

# %% [markdown]
# ## The team
#
# The guide sees a key. Behind one of the doors is gold, and which one depends on the colour of the
# key. The walker has the tool. In AutoGen, agents remember what was said, so `make_team` makes new
# ones for each episode.

# %%
GOLD = {"blue": "left", "green": "right", "red": "middle", "black": "left"}
DOORS = ["left", "middle", "right"]
GUIDE, WALKER = "Name a door.", "Open the door."


def open_door(door: str) -> str:
    """Open a door."""
    return door


model = OpenAIChatCompletionClient(
    model="any",
    base_url="http://127.0.0.1:9/v1",
    api_key="not used in training",
    max_tokens=32,
    model_info=ModelInfo(
        vision=False,
        function_calling=True,
        json_output=False,
        structured_output=False,
        family=ModelFamily.UNKNOWN,
    ),
)


def make_team():
    guide = AssistantAgent("guide", model, system_message=GUIDE)
    walker = AssistantAgent("walker", model, system_message=WALKER, tools=[open_door])
    return RoundRobinGroupChat([guide, walker], max_turns=2)


# %% [markdown]
# ## The reward
#
# A team returns all messages. The first result of the tool says which door was opened.


# %%
def question(colour):
    return f"You have the {colour} key."


def score(task, result):
    opened = [
        done.content
        for message in result.messages
        if isinstance(message, ToolCallExecutionEvent)
        for done in message.content
    ]
    return float(opened[:1] == [GOLD[task["id"]]])


@trainable(reward=score, max_calls=2)
async def seek(task):
    return await make_team().run(task=question(task["id"]))


# %% [markdown]
# ## The model
#
# One tiny model plays both agents. It imitates examples of what each of them sees: the guide names
# doors that are mostly drawn at random, and the walker often opens another door than was named.

# %%
random.seed(0)
parameters = FunctionTool(open_door, description="Open a door.").schema
tools = [{"type": "function", "function": parameters}]


def often(right, share):
    return right if random.random() < share else random.choice(DOORS)


examples = []
for _ in range(250):
    colour, door = random.choice(list(GOLD)), random.choice(DOORS)
    ask = {"role": "user", "content": question(colour)}
    named = {"role": "assistant", "content": often(GOLD[colour], 0.1)}
    examples.append(ChatExample([{"role": "system", "content": GUIDE}, ask, named]))
    call = {"name": "open_door", "arguments": json.dumps({"door": often(door, 0.4)})}
    messages = [
        {"role": "system", "content": WALKER},
        ask,
        {"role": "user", "content": door},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": call}],
        },
    ]
    examples.append(ChatExample(messages, tools))

directory = Path(tempfile.mkdtemp(prefix="autogen-"))
create_tiny_model(directory / "model", examples=examples)

# %% [markdown]
# ## The training
#
# Each epoch is one batch, and so one training step. AutoGen is asynchronous, and so is the client.

# %%
STEPS = 16
server = LocalServer(directory).start()
config = RunConfig.model_validate(
    {
        "model": {"path": str(directory / "model")},
        "batch": {"tasks": 4, "episodes_per_task": 16},
        "algorithm": TINY_GRPO,
    }
)
tasks = [{"id": colour} for colour in GOLD]
train(seek, tasks, client=server.async_client(), config=config, epochs=STEPS, progress=False)
server.client.stop_engine()

# %% [markdown]
# ## Who said what
#
# The server records each call under the name of the agent in AutoGen.

# %%
server.close()
samples = directory / "samples.jsonl"
subprocess.run(["ajet", "export", server.run_dir, samples], check=True, capture_output=True)
rows = [json.loads(line) for line in samples.read_text().splitlines()]
calls = Counter(agent for row in rows for agent in row["agents"])
for agent, count in sorted(calls.items()):
    print(f"calls of the {agent}: {count}")

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
# - Train the walker alone: add `"rollout": {"untrained_agents": ["guide"]}` to the run. How far
#   does the team come, if the guide never learns?
# - Reward the guide too, if the door that it names has the gold:
#   `EpisodeOutcome(reward, agent_rewards={"guide": ...})`. Is it faster?
# - Replace `RoundRobinGroupChat` by `SelectorGroupChat`. Whose calls are those that choose who
#   speaks?
# - Two models instead of one: `models=` and `roles=` of `trainable`
#   ([several models](../../../docs/joint.md)).
# - The adapter's [README](../../../plugins/agents_autogen/README.md) says what it does with state,
#   caches and tools that raise.
