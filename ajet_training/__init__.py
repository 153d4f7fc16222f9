"""Parts shared by trainers of any framework: how a batch becomes passes of a model.

`schedule` turns trees into passes, and `planner` finds the plan with the least cost; `rows` are for
trainers that only support sequences; `minibatches` deals out episodes; `steps` has the
metrics of a step, and `algorithm_fields` what policy-gradient trainers honour. Pure: no torch, no
I/O.
"""
