# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 11. Distil from a teacher
#
# A model that was trained by trying can teach a smaller one by example. The teacher's best episodes
# are in its run directory, with every token. `ajet sft` trains the student on them. It needs no
# rewards, no agent and no server, and far fewer steps than the teacher did.

# %%
import json
import math
import random
import subprocess
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
from openai import OpenAI

from agentjet import LocalServer, RunConfig, train, trainable
from ajet_worlds.tiny_grpo import TINY_GRPO
from ajet_worlds.tiny_model import ChatExample, create_tiny_model

# %% [markdown]
# ## The agent, and two models
#
# The agent of the [first tutorial](../01-first-agent/tutorial.py). Teacher and student start from
# the same examples, with answers that are mostly random. The student is half as wide.

# %%
SOUNDS = {"cat": "meow", "cow": "moo", "dog": "woof", "duck": "quack"}
llm = OpenAI(base_url="http://127.0.0.1:9/v1", api_key="not used in training")


@trainable(reward=lambda animal, answer: float(answer == SOUNDS[animal]))
def solve(animal):
    question = [{"role": "user", "content": f"What does the {animal} say?"}]
    reply = llm.chat.completions.create(model="tiny", messages=question, max_tokens=8)
    return reply.choices[0].message.content


random.seed(0)
examples = []
for _ in range(200):
    animal = random.choice(list(SOUNDS))
    sound = SOUNDS[animal] if random.random() < 0.2 else random.choice(list(SOUNDS.values()))
    messages = [
        {"role": "user", "content": f"What does the {animal} say?"},
        {"role": "assistant", "content": sound},
    ]
    examples.append(ChatExample(messages))

directory = Path(tempfile.mkdtemp(prefix="distil-"))
teacher = create_tiny_model(directory / "teacher", examples=examples)
student = create_tiny_model(directory / "student", examples=examples, hidden=32, seed=1)
print(f"the teacher has {teacher.parameters:,} parameters, the student {student.parameters:,}")

# %% [markdown]
# ## The teacher learns from rewards


# %%
def serve(name, model):
    server = LocalServer(directory / name, models=directory).start()
    server.start_run(
        RunConfig.model_validate(
            {
                "model": {"path": str(model)},
                "batch": {"tasks": 4, "episodes_per_task": 16},
                "algorithm": TINY_GRPO,
            }
        )
    )
    return server


server = serve("teaching", directory / "teacher")
for step in range(1, 15):
    reward = train(solve, list(SOUNDS), client=server.client).reward_mean
    print(f"step {step:2}: mean reward of the teacher {reward:.2f}")
server.close()

# %% [markdown]
# ## The student learns from the teacher
#
# The source is the teacher's run directory, and only episodes with reward 1 are taken. So the
# teacher may have been wrong at first: its mistakes are left out.

# %%
command = ["ajet", "sft", str(server.run_dir), str(directory / "taught"), "--json"]
command += ["--model", str(directory / "student"), "--best", "1", "--min-reward", "1"]
command += ["--epochs", "4", "--set", "algorithm.learning_rate=0.003"]
done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
losses = [json.loads(line)["loss"] for line in done.stdout.splitlines()]
curve = [math.exp(-loss) for loss in losses]
print(f"{len(curve)} steps of the student")
print(f"mean probability of the teacher's tokens: {curve[0]:.2f} at first, {curve[-1]:.2f} then")

# %% [markdown]
# ## The examination
#
# Student before and after, with episodes that are never trained on.


# %%
def examine(name, model):
    with serve(name, model) as server:
        report = server.client.evaluate(list(SOUNDS), solve.agent, episodes_per_task=32)
    return report.reward_mean


before = examine("before", directory / "student")
after = examine("after", directory / "taught")
print(f"right answers of the student: {before:.0%} before, {after:.0%} after")

# %%
plt.plot(range(1, len(curve) + 1), curve, marker=".")
plt.xlabel("supervised step of the student")
plt.ylabel("mean probability of the teacher's tokens")
plt.title(f"right answers: {before:.0%} before, {after:.0%} after")
plt.ylim(0, 1)
plt.savefig("curve.png")

# %% [markdown]
# ## What to try next
#
# - Take all episodes: leave out `--min-reward`. What does the student learn from the errors?
# - Train the student further by rewards: start a run with `directory / "taught"`. A taught model
#   needs fewer steps, which is how many large models are trained.
# - Here the student imitates what the teacher said. With the trainer `trl_distillation`, the
#   teacher instead judges each token that the *student* sampled
#   ([TRL](../../../docs/trainers-trl.md#settings-of-trl_distillation)).
# - `ajet sft` also takes conversations of your own ([fine-tuning](../../../docs/sft.md)).
