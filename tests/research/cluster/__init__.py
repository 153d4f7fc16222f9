"""A cluster of this machine: Slurm's commands and ssh, whose jobs are processes and get lost."""
