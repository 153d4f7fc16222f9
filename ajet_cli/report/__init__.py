"""Reports of runs: one HTML file that a colleague opens without anything installed.

`reading` reads what a run directory has, `survey`, `evaluations`, `past_findings` and `samples` are
parts of it. `run_page` and `comparison` write the pages, with `curves` and `markup`.
"""
