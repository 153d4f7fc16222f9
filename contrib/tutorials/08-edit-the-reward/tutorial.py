# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 8. Edit the reward while it trains
#
# The server trains, and your program rolls out the agent and computes rewards. They are two
# programs. So you can stop yours, edit it and start it again, as often as you like: the model keeps
# what it has learned, and the server just waits for the next episodes.

# %%
import json
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

directory = Path(tempfile.mkdtemp(prefix="edit-the-reward-"))

# %% [markdown]
# ## The server
#
# The model knows the sounds of four animals in English and in French, and says any of them.

# %%
ENGLISH = {"cat": "meow", "cow": "moo", "dog": "woof", "duck": "quack"}
FRENCH = {"cat": "miaou", "cow": "meuh", "dog": "ouaf", "duck": "coin"}
sounds = [*ENGLISH.values(), *FRENCH.values()]

random.seed(0)
examples = []
for _ in range(400):
    animal = random.choice(list(ENGLISH))
    right = random.choice([ENGLISH, FRENCH])[animal]
    sound = right if random.random() < 0.3 else random.choice(sounds)
    messages = [
        {"role": "user", "content": f"What does the {animal} say?"},
        {"role": "assistant", "content": sound},
    ]
    examples.append(ChatExample(messages))
create_tiny_model(directory / "model", examples=examples)

server = LocalServer(directory).start()
server.start_run(
    RunConfig.model_validate(
        {
            "model": {"path": str(directory / "model")},
            "batch": {"tasks": 4, "episodes_per_task": 16},
            # The bonus for entropy keeps rare answers possible, so that the model can still change.
            "algorithm": TINY_GRPO.model_copy(update={"entropy_coef": 0.02}),
            # After an edit rewards fall and answers vary more, as in trouble: do not pause for it.
            "failures": {"pause_on": []},
        }
    )
)

# %% [markdown]
# ## Your program
#
# It is a file of its own. It trains some steps, and writes for each step how many answers were
# right in English and how many in French.

# %%
program = directory / "agent.py"
program.write_text(
    f"""\
import json, sys
from agentjet import train, trainable
from openai import OpenAI

ENGLISH = {ENGLISH}
FRENCH = {FRENCH}
RIGHT = ENGLISH
llm = OpenAI(base_url="http://127.0.0.1:9/v1", api_key="not used in training")
answers = []


def score(animal, answer):
    answers.append((animal, answer))
    return float(answer == RIGHT[animal])


@trainable(reward=score)
def solve(animal):
    question = [{{"role": "user", "content": f"What does the {{animal}} say?"}}]
    reply = llm.chat.completions.create(model="tiny", messages=question, max_tokens=8)
    return reply.choices[0].message.content


for _ in range(int(sys.argv[1])):
    answers.clear()
    train(solve, list(ENGLISH))
    shares = [sum(a == of[q] for q, a in answers) / len(answers) for of in (ENGLISH, FRENCH)]
    print(json.dumps(shares))
"""
)


def run_program(steps):
    environment = {**os.environ, **server.environment}
    arguments = [sys.executable, str(program), str(steps)]
    done = subprocess.run(arguments, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    shares = [json.loads(line) for line in done.stdout.splitlines()]
    for english, french in shares:
        print(f"right in English {english:.2f}, in French {french:.2f}")
    return shares


# %% [markdown]
# ## Train, edit, train
#
# First the reward is for English.

# %%
before = run_program(8)

# %% [markdown]
# Now somebody edits the file, as you would in an editor, and starts the program again. Nothing else
# changes. The server is not restarted, and the second half continues with the weights of the first.

# %%
program.write_text(program.read_text().replace("RIGHT = ENGLISH", "RIGHT = FRENCH"))
after = run_program(16)
print(f"the server is at step {server.client.status().step}")
server.close()

# %%
shares = [*before, *after]
curve = [french for _, french in shares]
steps = range(1, len(shares) + 1)
plt.plot(steps, [english for english, _ in shares], marker="x", label="right in English")
plt.plot(steps, curve, marker="o", label="right in French")
plt.axvline(len(before) + 0.5, color="grey", linestyle="--", label="the reward is edited")
plt.xlabel("training step")
plt.ylabel("share of answers")
plt.ylim(0, 1)
plt.legend()
plt.savefig("curve.png")

# %% [markdown]
# ## What to try next
#
# - Remove the line with `pause_on`. What does the server say about the edit? `ajet resume`
#   continues the run.
# - Remove the bonus for entropy, and train 20 steps before the edit. A model that is too sure of
#   its answers does not find other ones. How does the second half look?
# - Reward both languages, and French twice as much. Where does the model end?
# - Edit the agent instead of the reward: let it ask in French.
# - Stop the program in the middle of a step with Ctrl-C, and start it with
#   `train(..., resume=True)`: it rolls out only what is missing.
# - What if the server is killed? [Kill everything](../18-kill-everything/tutorial.py).
