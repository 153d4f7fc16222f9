"""How much memory a run needs, by arithmetic: `ajet preflight --dry-run`.

`shapes` reads the sizes of a model, `trainers` and `engines` compute what the components of a run
need on each GPU, and `plan` adds it up and looks for settings with which the run fits.
docs/preflight.md has the formulas.
"""

from ajet_cli.memory_plan.plan import GpuMachine, RunMemory, plan_memory, ways_out
from ajet_cli.memory_plan.shapes import read_shape

__all__ = ["GpuMachine", "RunMemory", "plan_memory", "read_shape", "ways_out"]
