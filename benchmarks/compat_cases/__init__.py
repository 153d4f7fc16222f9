"""Programs of SDKs and frameworks that know nothing of training, and what they are asked for by `compat.py`.

A module here is run by an interpreter that has its SDK or framework. For each of `contract.CASES` it has a function of
that name, async or not, of the task's text; it does as `contract` says, or is None if the framework cannot.
"""
