# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 7. A LangChain agent
#
# An agent that you have, with a tool and a loop of its own, needs no change to be trained. This one
# is made with `create_agent` of LangChain.
#
# It needs `pip install "agentjet[langchain]>=0.1" langchain-openai`.

# %%
import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
from langchain.agents import create_agent
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_openai import ChatOpenAI

from agentjet import LocalServer, RunConfig, train, trainable
from ajet_worlds.tiny_grpo import TINY_GRPO
from ajet_worlds.tiny_model import ChatExample, create_tiny_model

# %% [markdown]
# ## The agent
#
# It has a key, and a tool that opens doors. Behind one of the doors is gold. Which one depends on
# the colour of the key, but nothing that the agent reads says how.

# %%
GOLD = {"blue": "left", "green": "right", "red": "middle", "black": "left"}
DOORS = ["left", "middle", "right"]


def open_door(key: str, door: str) -> str:
    """Open a door."""
    return "gold" if GOLD.get(key) == door else "nothing"


model = ChatOpenAI(
    model="any", base_url="http://127.0.0.1:9/v1", api_key="not used in training", max_tokens=48
)
agent = create_agent(model, [open_door], system_prompt="Find gold.", name="seeker")

# %% [markdown]
# ## The reward
#
# The agent returns its final state, with all messages. Gold in the first answer of the tool is
# worth 1. Everything else is worth nothing.


# %%
def score(task, state):
    answers = [message.text for message in state["messages"] if message.type == "tool"]
    return float(answers[:1] == ["gold"])


def question(colour):
    return {"role": "user", "content": f"You have the {colour} key."}


@trainable(reward=score, max_calls=2)
def seek(task):
    return agent.invoke({"messages": [question(task["id"])]})


# %% [markdown]
# ## The model
#
# The tiny model imitates examples of the whole conversation. They show how the tool is called, with
# doors that are drawn at random.

# %%
random.seed(0)
tools = [convert_to_openai_tool(open_door)]
examples = []
for _ in range(200):
    key, door = random.choice(list(GOLD)), random.choice(DOORS)
    if random.random() < 0.1:
        door = GOLD[key]
    call = {"name": "open_door", "arguments": f'{{"key": "{key}", "door": "{door}"}}'}
    messages = [
        {"role": "system", "content": "Find gold."},
        question(key),
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "1", "content": open_door(key, door)},
        {"role": "assistant", "content": "Done."},
    ]
    examples.append(ChatExample(messages, tools))

directory = Path(tempfile.mkdtemp(prefix="langchain-"))
create_tiny_model(directory / "model", examples=examples)

# %% [markdown]
# ## The training
#
# `train` runs the agent 64 times for each step, several at a time. In each of these episodes the
# calls of `model` go to the model in training, wherever in LangChain they are made.

# %%
server = LocalServer(directory).start()
config = RunConfig.model_validate(
    {
        "model": {"path": str(directory / "model")},
        "batch": {"tasks": 4, "episodes_per_task": 16},
        "algorithm": TINY_GRPO,
    }
)
tasks = [{"id": colour} for colour in GOLD]
curve = []
for step in range(1, 16):
    report = train(seek, tasks, client=server.client, config=config)
    curve.append(report.reward_mean)
    print(f"step {step:2}: mean reward {curve[-1]:.2f}")
server.close()

# %%
plt.plot(range(1, len(curve) + 1), curve, marker="o")
plt.xlabel("training step")
plt.ylabel("mean reward")
plt.ylim(0, 1)
plt.savefig("curve.png")

# %% [markdown]
# ## What to try next
#
# - Call `agent.invoke` outside of `train`. It asks the endpoint that `model` names, as before: the
#   decorator changes episodes only. `seek.plain` is the undecorated function.
# - Add a second agent that chooses the door, and lets `seeker` open it. Which of them is trained?
#   Both: each call is recorded under the name of its agent.
# - Give the tool an error: `raise ValueError` for the middle door. What becomes of the episode?
# - The adapter's [README](../../../plugins/agents_langchain/README.md) says what it does with
#   caches, retries and telemetry. [Existing agents](../../../docs/agents.md) lists all frameworks.
