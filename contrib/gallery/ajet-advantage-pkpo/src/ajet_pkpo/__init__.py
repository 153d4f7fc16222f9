"""PKPO (arXiv:2505.15201) for agentjet: advantages that optimise pass@k."""
