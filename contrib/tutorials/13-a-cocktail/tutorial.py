# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 13. A cocktail: maths, code and a terminal
#
# A model that shall be good at several things is trained on all of them at once. Three programs
# roll out their own tasks, each in an environment of its own, and none knows of the others:
#
# - [maths.py](maths.py) compares answers as mathematics, with sympy;
# - [coder.py](coder.py) runs the tests of each answer in a sandbox;
# - [terminal.py](terminal.py) gives each episode a shell with some files, in a sandbox.
#
# The server mixes them: 40 % maths, 30 % code, 30 % terminal, however fast each program is.
#
# It needs Linux, `pip install "agentjet[judges]>=0.1"`, and `apt-get install bubblewrap curl`.

# %%
import math
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

from agentjet import LocalServer, RunConfig
from ajet_worlds.tiny_grpo import TINY_GRPO
from ajet_worlds.tiny_model import ChatExample, create_tiny_model

# %% [markdown]
# ## The model
#
# It imitates examples of all three kinds, with answers that are mostly drawn at random.

# %%
KINDS = {
    "maths": {
        "Compute 2 + 3.": "5",
        "Compute 9 - 2.": "7",
        "Compute 2 * 4.": "8",
        "Compute 8 / 8.": "1",
    },
    "code": {
        "Write f that doubles x.": "f = lambda x: x + x",
        "Write f that squares x.": "f = lambda x: x * x",
        "Write f that negates x.": "f = lambda x: -x",
    },
    "terminal": {
        "Show the notes.": "cat notes.txt",
        "Sort the notes.": "sort notes.txt",
        "Count the notes.": "wc -l < notes.txt",
    },
}

random.seed(0)
examples = []
for _ in range(400):
    answers = random.choice(list(KINDS.values()))
    question = random.choice(list(answers))
    right = random.random() < 0.2
    answer = answers[question] if right else random.choice(list(answers.values()))
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    examples.append(ChatExample(messages))

directory = Path(tempfile.mkdtemp(prefix="cocktail-"))
create_tiny_model(directory / "model", examples=examples)

# %% [markdown]
# ## The mixture
#
# A batch has ten tasks. Each tag gets its share of them in every batch. The server waits up to 120
# seconds for a client that has not begun yet or is gone.

# %%
server = LocalServer(directory).start()
server.start_run(
    RunConfig.model_validate(
        {
            "model": {"path": str(directory / "model")},
            "batch": {"tasks": 10, "episodes_per_task": 6},
            "algorithm": TINY_GRPO,
            "mixture": {
                "ratios": {"maths": 0.4, "code": 0.3, "terminal": 0.3},
                "grace_seconds": 120,
            },
        }
    )
)

# %% [markdown]
# ## Three clients
#
# They run until they are ended. The server decides whose turn it is: a client that is ahead waits.

# %%
environment = {**os.environ, **server.environment}
clients = [
    subprocess.Popen([sys.executable, name], env=environment)
    for name in ("maths.py", "coder.py", "terminal.py")
]

# %% [markdown]
# ## The steps, and other ratios in the middle
#
# After step 8 the terminal gets more. Nothing is restarted. The batch that is being filled keeps
# its ratios, and the next one has the new ones.

# %%
STEPS = 16
rewards = {kind: [] for kind in KINDS}
curve = []
for event in server.client.events(since=0):
    if event.type != "step":
        continue
    step, metrics = event.data["step"], event.data["metrics"]
    curve.append(metrics["reward_mean"])
    line = f"step {step:2}:"
    for kind, values in rewards.items():
        values.append(metrics.get(f"reward_mean/{kind}", math.nan))
        line += f"  {kind} {metrics.get(f'tasks/{kind}', 0):.0f} tasks {values[-1]:.2f}"
    print(line)
    if step == 8:
        server.client.set_mixture({"maths": 0.2, "code": 0.2, "terminal": 0.6})
    if step == STEPS:
        break

for client in clients:
    client.kill()
    client.wait()
server.close()

# %%
steps = range(1, STEPS + 1)
for kind, values in rewards.items():
    plt.plot(steps, values, marker=".", label=kind)
plt.plot(steps, curve, color="black", label="all")
plt.axvline(8.5, color="grey", linestyle="--", label="other ratios")
plt.xlabel("training step")
plt.ylabel("mean reward")
plt.ylim(0, 1)
plt.legend()
plt.savefig("curve.png")

# %% [markdown]
# ## What to try next
#
# - `ajet mixture maths=0.5 code=0.5` changes the ratios from a terminal. What becomes of the client
#   of a tag that has the ratio 0?
# - Kill one of the clients in the middle. Do the batches wait for it?
# - Put `time.sleep(1)` into the code client. Do its tasks still make up 30 % of each batch?
# - Run a client on another machine: it needs `AJET_URL` and a token
#   ([security](../../../docs/security.md)), and neither the model nor the other clients' packages.
# - [Mixtures](../../../docs/mixtures.md) says what the server promises.
