"""Parts shared by trainers that keep their weights in PyTorch.

Loading and writing models, checkpoints, AdamW with its limits, and the checks of a step. PyTorch,
transformers and safetensors are dependencies of the plugins that import this package; agentjet
itself does not install them.
"""
