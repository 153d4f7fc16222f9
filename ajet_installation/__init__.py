"""Python environments for backends whose requirements conflict.

Engines and trainers pin different versions of the same packages, so each may run in a separate
interpreter. `recipes` describe environments, `create` creates them, `environment` finds them,
`interpreters` assigns workers to them, and `doctor` finds problems.
"""

from ajet_installation.environment import Environment, Interpreter, find_environments
from ajet_installation.interpreters import plugin_manager
from ajet_installation.recipes import Recipe, recipe, recipes

__all__ = [
    "Environment",
    "Interpreter",
    "Recipe",
    "find_environments",
    "plugin_manager",
    "recipe",
    "recipes",
]
