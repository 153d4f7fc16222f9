# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 14. Compaction and sub-agents
#
# Long conversations do not fit into a context. So agents let the model write a note and continue
# with the note in place of the history (compaction), or hand a part of the work to a sub-agent with
# a context of its own. Both break a conversation into several. What was in the note decides
# whether the end is right, long after it was written. Is it trained? Yes: each call of an episode
# is trained, in whichever conversation it stands.

# %%
import json
import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
from openai import OpenAI

from agentjet import LocalServer, RunConfig, train, trainable
from ajet_worlds.tiny_grpo import TINY_GRPO
from ajet_worlds.tiny_model import ChatExample, create_tiny_model

# %% [markdown]
# ## The agent
#
# It reads where the key is. Then its context is full, and a sub-agent, the scribe, writes a note
# from the whole history. The agent forgets everything but the note, and has to say where the key
# is.
#
# The header names the sub-agent in the records. Most frameworks do this by themselves.

# %%
PLACES = ["attic", "cellar", "garden", "kitchen"]
llm = OpenAI(base_url="http://127.0.0.1:9/v1", api_key="not used in training")


def ask(agent, messages):
    reply = llm.chat.completions.create(
        model="tiny", messages=messages, max_tokens=8, extra_headers={"x-ajet-agent": agent}
    )
    return {"role": "assistant", "content": reply.choices[0].message.content}


def user(text):
    return {"role": "user", "content": text}


@trainable(reward=lambda place, answer: float(answer == place))
def find(place):
    history = [user(f"The key is in the {place}.")]
    history.append(ask("finder", history))
    note = ask("scribe", [*history, user("Write a note.")])
    answer = ask("finder", [user(f"Your note: {note['content']}. Where is the key?")])
    return answer["content"]


# %% [markdown]
# ## The model
#
# It imitates random notes and random answers. A note is seldom right, and an answer seldom follows
# the note, so most episodes fail.

# %%
random.seed(0)


def somewhere(place):
    return place if random.random() < 0.25 else random.choice(PLACES)


examples = []
for _ in range(250):
    place = random.choice(PLACES)
    seen = [user(f"The key is in the {place}."), {"role": "assistant", "content": "I see."}]
    note = {"role": "assistant", "content": somewhere(place)}
    examples.append(ChatExample([*seen, user("Write a note."), note]))
    question = user(f"Your note: {place}. Where is the key?")
    answer = {"role": "assistant", "content": somewhere(place)}
    examples.append(ChatExample([question, answer]))

directory = Path(tempfile.mkdtemp(prefix="compaction-"))
create_tiny_model(directory / "model", examples=examples)

# %% [markdown]
# ## The training

# %%
server = LocalServer(directory).start()
config = RunConfig.model_validate(
    {
        "model": {"path": str(directory / "model")},
        "batch": {"tasks": 4, "episodes_per_task": 16},
        "algorithm": TINY_GRPO,
    }
)
curve = []
for step in range(1, 19):
    curve.append(train(find, PLACES, client=server.client, config=config).reward_mean)
    print(f"step {step:2}: mean reward {curve[-1]:.2f}")
server.client.wait_for_step(len(curve) - 1)
server.close()

# %% [markdown]
# ## What was trained
#
# Three calls of an episode make two timelines: the scribe continues the history, and the last call
# begins a new one. Tokens that both have in common are computed once, and each sampled token is
# trained once.

# %%
first = json.loads((server.run_dir / "metrics.jsonl").read_text().splitlines()[0])
for name in ("episodes", "calls", "timelines", "tokens_sampled", "tokens_trained"):
    print(f"{name} of the first step: {first[name]:.0f}")

# %%
plt.plot(range(1, len(curve) + 1), curve, marker="o")
plt.xlabel("training step")
plt.ylabel("mean reward")
plt.ylim(0, 1)
plt.savefig("curve.png")

# %% [markdown]
# ## What to try next
#
# - Leave the scribe out of the training: `"rollout": {"untrained_agents": ["scribe"]}`. How far
#   does the finder come alone?
# - Let the scribe see the place twice, or let the history be longer. Which part is harder to learn?
# - `ajet inspect DIRECTORY/server EPISODE` shows an episode as a tree, with each fork and its
#   reason.
# - [Timelines](../../../docs/timelines.md) says how calls are merged, and how each is credited.
