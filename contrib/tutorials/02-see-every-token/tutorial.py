# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 2. See every token
#
# A model is not trained on messages, but on tokens. Which ones, exactly? The server records every
# call with its tokens, and this tutorial looks at them: what was the prompt, what did the model
# sample, how probable was it, and in which direction was each token pushed?

# %%
import json
import math
import random
import subprocess
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
from openai import OpenAI
from tokenizers import Tokenizer

from agentjet import LocalServer, RunConfig, train, trainable
from ajet_worlds.tiny_grpo import TINY_GRPO
from ajet_worlds.tiny_model import ChatExample, create_tiny_model

# %% [markdown]
# ## An agent with two calls
#
# It asks about one animal and then, in the same conversation, about another one. The reward is the
# share of right answers.

# %%
SOUNDS = {"cat": "meow", "cow": "moo", "dog": "woof", "duck": "quack"}
tasks = [
    {"id": f"{first}, {second}", "animals": [first, second]}
    for first, second in [("cat", "dog"), ("dog", "cow"), ("cow", "duck"), ("duck", "cat")]
]
llm = OpenAI(base_url="http://127.0.0.1:9/v1", api_key="not used in training")


def question(animal):
    return {"role": "user", "content": f"What does the {animal} say?"}


def score(task, answers):
    right = [
        answer == SOUNDS[animal] for animal, answer in zip(task["animals"], answers, strict=True)
    ]
    return sum(right) / len(right)


@trainable(reward=score)
def solve(task):
    messages, answers = [], []
    for animal in task["animals"]:
        messages.append(question(animal))
        reply = llm.chat.completions.create(model="tiny", messages=messages, max_tokens=8)
        answers.append(reply.choices[0].message.content)
        messages.append({"role": "assistant", "content": answers[-1]})
    return answers


# %% [markdown]
# ## Training
#
# As in the [first tutorial](../01-first-agent/tutorial.py): a tiny model that answers mostly at
# random, and some steps of training.

# %%
random.seed(0)
examples = []
for _ in range(200):
    messages = []
    for animal in random.sample(list(SOUNDS), 2):
        sound = SOUNDS[animal] if random.random() < 0.2 else random.choice(list(SOUNDS.values()))
        messages += [question(animal), {"role": "assistant", "content": sound}]
    examples.append(ChatExample(messages))

directory = Path(tempfile.mkdtemp(prefix="every-token-"))
create_tiny_model(directory / "model", examples=examples)

server = LocalServer(directory).start()
config = RunConfig.model_validate(
    {
        "model": {"path": str(directory / "model")},
        "batch": {"tasks": 4, "episodes_per_task": 16},
        "algorithm": TINY_GRPO,
    }
)
rewards = []
for step in range(1, 13):
    rewards.append(train(solve, tasks, client=server.client, config=config).reward_mean)
    print(f"step {step:2}: mean reward {rewards[-1]:.2f}")
server.client.wait_for_step(len(rewards))
server.close()

# %% [markdown]
# ## One episode
#
# `ajet export` writes the samples that were trained. One row is one conversation: the two calls of
# an episode are one row, because the second call continues the first.

# %%
samples = directory / "samples.jsonl"
subprocess.run(["ajet", "export", server.run_dir, samples], check=True, capture_output=True)
rows = [json.loads(line) for line in samples.read_text().splitlines()]
rows.sort(key=lambda row: row["step"])
print(f"{len(rows)} conversations with {sum(len(row['token_ids']) for row in rows)} tokens")

# %% [markdown]
# Here is the first one, token by token. Only tokens that the model sampled are trained. For each of
# them we see its logprob when the engine sampled it, and when the trainer came to it. A batch is
# trained in four parts, so the model has already changed a little for the last three of them. The
# advantage says whether the answers were better or worse than the others to the same task.

# %%
tokenizer = Tokenizer.from_file(str(directory / "model" / "tokenizer.json"))
row = rows[0]
print(f"task {row['task_id']}, reward {row['reward']}")
print("token           trained   engine  trainer  advantage")
for i, token in enumerate(row["token_ids"]):
    text = repr(tokenizer.decode([token], skip_special_tokens=False))
    if row["loss_mask"][i]:
        numbers = row["logprobs"][i], row["trainer_logprobs"][i], row["advantages"][i]
        print(f"{text:15} yes      {numbers[0]:7.3f}  {numbers[1]:7.3f}    {numbers[2]:+7.3f}")
    else:
        print(f"{text:15} no")

# %% [markdown]
# ## All of them
#
# Engine and trainer have to agree about the same weights: otherwise the model would be trained on
# what it did not do. The server measures this in each step.

# %%
lines = (server.run_dir / "metrics.jsonl").read_text().splitlines()
gaps = [json.loads(line)["logprob_gap"] for line in lines]
print(f"largest gap between engine and trainer: {max(gaps):.7f} nats per token")

# %% [markdown]
# And how sure was the model of what it said? The geometric mean of the probabilities of all sampled
# tokens rises, because the model tries less and less.

# %%
curve = []
for step in range(1, len(rewards) + 1):
    logprobs = []
    for row in rows:
        if row["step"] == step:
            logprobs += [logprob for logprob in row["logprobs"] if logprob is not None]
    curve.append(math.exp(sum(logprobs) / len(logprobs)))
print(f"mean probability of a sampled token: {curve[0]:.2f} at first, {curve[-1]:.2f} in the end")

# %%
steps = range(1, len(rewards) + 1)
plt.plot(steps, rewards, marker="o", label="mean reward")
plt.plot(steps, curve, marker="o", label="mean probability of a sampled token")
plt.xlabel("training step")
plt.ylim(0, 1)
plt.legend()
plt.savefig("curve.png")

# %% [markdown]
# ## What to try next
#
# - `ajet inspect DIRECTORY/server --step 1 --html step.html` writes a page with all tokens of a
#   step, with colours. Open it in a browser, and point at a token.
# - Change the agent so that it begins the second question with an empty `messages`. Into how many
#   rows is an episode divided now, and why? [Timelines](../../../docs/timelines.md) has the answer.
# - Both answers of an episode get the same advantage, also if only one of them was right.
#   [Step rewards](../04-step-rewards/tutorial.py) change that.
# - What is a good reward? See [reward design](../03-reward-design/tutorial.py).
