# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 17. A study by the research system
#
# Runs differ from seed to seed. One run with a new setting that ends a little higher says nothing.
# `ajet research` turns a question into a study: [study.toml](study.toml) declares before the first
# trial what is compared, which difference would matter, how many seeds are run, and what is
# concluded from which result. The program runs the trials, decides and writes a report in which
# every number leads to its trials.
#
# The trials of this study are synthetic: each takes a second and has a truth that is planted. The
# question is whether method *b* is worth its cost, and method *c* more than that.
#
# It needs `pip install "agentjet[research]>=0.1"`.

# %%
import csv
import json
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

directory = Path(tempfile.mkdtemp(prefix="study-"))

# %% [markdown]
# ## The study
#
# It looks at the results after 10 seeds, and again after 16 if a comparison is still undecided.
# `smallest` is the difference that would matter: 1.

# %%
shutil.copy("study.toml", directory)
print(Path("study.toml").read_text())

# %% [markdown]
# ## Run it
#
# The same command continues a study that was interrupted.

# %%
command = ["ajet", "research", "run", "study.toml"]
subprocess.run(command, cwd=directory, check=True, capture_output=True)

# %% [markdown]
# ## The answer
#
# *b* is better than *a*, by more than 1. For *c* the study says more than "not significant": it is
# *equivalent* to *b*, because the difference is surely smaller than 1.

# %%
folder = directory / "study.study" / "report"
report = json.loads((folder / "report.json").read_text())
for comparison, verdict in report["verdicts"].items():
    print(f"{comparison}: {verdict}")
print(report["conclusion"])

# %% [markdown]
# ## Why so many seeds?
#
# Here are the differences of *b* and *a* by seed, and what could have been said after so many
# seeds: the mean, less twice its standard error. After few seeds, even a large difference could be
# luck. (The study computes its intervals in another way, and accounts for looking twice.)

# %%
with (folder / "intervals.csv").open() as file:
    rows = [row for row in csv.DictReader(file) if row["comparison"] == "b-vs-a"]
differences = [float(row["difference"]) for row in rows]
curve = []
for count in range(2, len(differences) + 1):
    seen = differences[:count]
    curve.append(statistics.mean(seen) - 2 * statistics.stdev(seen) / count**0.5)
    print(f"after {count:2} seeds: the difference is likely above {curve[-1]:5.2f}")

# %%
plt.plot(range(1, len(differences) + 1), differences, "x", label="difference with a seed")
plt.plot(range(2, len(differences) + 1), curve, marker="o", label="lower end of the mean")
plt.axhline(1, color="grey", linestyle="--", label="smallest difference that matters")
plt.xlabel("seeds")
plt.ylabel("score of b less score of a")
plt.legend()
plt.savefig("curve.png")

# %% [markdown]
# ## What to try next
#
# - Set `seeds` to 3 and 4. What does the study conclude, and does it claim too much?
# - Change the file after the study has run, and run it again. Why does it refuse?
# - `ajet research verify study.study` derives the report again from the raw results. Change a
#   number in one of them first.
# - `ajet research replicate study.study` repeats it with fresh seeds.
# - [Research](../../../docs/research.md) explains the file, the statistics and the report.
