"""Trains agents, graphs and swarms of Strands Agents."""
