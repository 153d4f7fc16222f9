"""What trainers of any framework share: how a batch becomes passes of a model.

Trees are computed as `schedule` says, at the least cost that `planner` finds; `rows` are for trainers that know sequences alone, and
`minibatches` deal episodes out; `steps` has the learning rate of each step. Pure: no torch, no I/O.
"""
