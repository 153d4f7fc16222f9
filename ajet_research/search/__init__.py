"""Search: candidates are tried on seeds of their own, and the best are confirmed on fresh ones.

Nothing here is trusted. A candidate is a row of the ledger before its trials begin, so that a study
is resumed, reported and verified without the sampler that proposed it, and what a study claims
rests on the confirmation alone.
"""
