"""Programs of SDKs and frameworks without any code for training, for `compat.py`.

Each module runs in an interpreter that has its SDK or framework. For each of `contract.CASES` it
has a function of that name, async or not, that takes the task's text and does what `contract` says;
it is None if the framework does not support the case.
"""
