# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 6. A command-line agent as a black box
#
# Many agents are programs: Claude Code, Codex, aider, or a script of your own in any language. They
# need no change to be trained. `ajet exec` runs the program in a sandbox for each episode, with an
# endpoint and a key in its environment. The agent of this tutorial is a shell script.
#
# It needs Linux, `bubblewrap` and `curl` (`apt-get install bubblewrap curl`).

# %%
import json
import os
import random
import subprocess
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

from agentjet import LocalServer, RunConfig
from ajet_worlds.tiny_grpo import TINY_GRPO
from ajet_worlds.tiny_model import ChatExample, create_tiny_model

directory = Path(tempfile.mkdtemp(prefix="any-command-line-"))

# %% [markdown]
# ## The agent
#
# It has one argument, the question. It sends it to the model and keeps what came back in a file.
# There is no Python in it, and nothing of agentjet.

# %%
(directory / "files").mkdir()
(directory / "files" / "agent.sh").write_text(
    """\
curl --silent "$OPENAI_BASE_URL/chat/completions" \\
  --header "Authorization: Bearer $OPENAI_API_KEY" --header "Content-Type: application/json" \\
  --data "{\\"model\\": \\"any\\", \\"max_tokens\\": 8,
           \\"messages\\": [{\\"role\\": \\"user\\", \\"content\\": \\"$1\\"}]}" \\
  > answer.json
"""
)

# %% [markdown]
# ## The tasks and the reward
#
# A task is a line of JSON. The agent sees all fields but `answer`, which only the reward sees. The
# reward is a Python function that looks at the directory in which the agent worked. It could also
# be any command, which then runs in a sandbox of its own.

# %%
SOUNDS = {"cat": "meow", "cow": "moo", "dog": "woof", "duck": "quack"}


def prompt(animal):
    return f"What does the {animal} say?"


lines = [
    json.dumps({"id": animal, "prompt": prompt(animal), "answer": sound})
    for animal, sound in SOUNDS.items()
]
(directory / "tasks.jsonl").write_text("\n".join(lines))
(directory / "grade.py").write_text(
    """\
import json

def reward(result):
    reply = json.loads((result.work / "answer.json").read_text())
    return float(reply["choices"][0]["message"]["content"] == result.task["answer"])
"""
)

# %% [markdown]
# ## The server
#
# With a tiny model whose answers are mostly random, as in the
# [first tutorial](../01-first-agent/tutorial.py).

# %%
random.seed(0)
examples = []
for _ in range(200):
    animal = random.choice(list(SOUNDS))
    sound = SOUNDS[animal] if random.random() < 0.2 else random.choice(list(SOUNDS.values()))
    messages = [
        {"role": "user", "content": prompt(animal)},
        {"role": "assistant", "content": sound},
    ]
    examples.append(ChatExample(messages))
create_tiny_model(directory / "model", examples=examples)

server = LocalServer(directory).start()
server.start_run(
    RunConfig.model_validate(
        {
            "model": {"path": str(directory / "model")},
            "batch": {"tasks": 4, "episodes_per_task": 8},
            "algorithm": TINY_GRPO,
        }
    )
)

# %% [markdown]
# ## The training
#
# One command. `AJET_URL` and `AJET_TOKEN` in its environment lead it to the server. Behind `--` is
# the agent: any command. Each epoch is one batch here.

# %%
STEPS = 16
command = ["ajet", "exec", "--tasks", "tasks.jsonl", "--files", "files", "--reward", "grade:reward"]
command += ["--epochs", str(STEPS), "--", "sh", "agent.sh", "{prompt}"]
environment = {**os.environ, **server.environment}
subprocess.run(command, cwd=directory, env=environment, check=True, capture_output=True)
server.client.stop_engine()
server.close()

# %% [markdown]
# ## The curve
#
# The server writes the metrics of each step into `metrics.jsonl`.

# %%
metrics = (server.run_dir / "metrics.jsonl").read_text().splitlines()
curve = [json.loads(line)["reward_mean"] for line in metrics]
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
# - Add `--once` before `--`: it runs a single episode, trains nothing, and shows the command, its
#   environment and what it printed. Begin with it whenever you train a new program.
# - Write the agent in another language that you have, or replace the function `reward` by a command
#   in `--tests`.
# - `ajet exec --list-profiles` lists programs that were tested, among them Claude Code, Codex and
#   opencode. [Any program](../../../docs/exec.md) says how each is started.
# - An agent in a framework of Python needs no sandbox: see the
#   [first tutorial](../01-first-agent/tutorial.py).
