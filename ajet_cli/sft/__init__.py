"""Supervised fine-tuning with the trainers of runs."""
