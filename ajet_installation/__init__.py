"""Python environments for backends: the way out where their requirements conflict.

Engines and trainers pin different versions of the same packages, so each may run in an interpreter of
its own. A recipe (`recipes`) says what an environment is made of, `create` makes one, `environment` finds
it again, `interpreters` says which worker runs in which, and `doctor` what is wrong with any of them.
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
