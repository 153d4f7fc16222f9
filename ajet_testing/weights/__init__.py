"""Weights: published with faults, and received without a model server."""
