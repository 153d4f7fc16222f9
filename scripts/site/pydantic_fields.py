"""An extension of griffe: the fields of a pydantic model are the parameters of its constructor.

Docstrings describe fields as ``:param NAME:``. griffe knows those of dataclasses by itself.
"""

from __future__ import annotations

import re
from typing import Any

import griffe


class PydanticFields(griffe.Extension):
    """Gives models a constructor, and keeps shapes from being read as links."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Change all classes and docstrings of a package."""
        self._change(pkg)

    def _change(self, item: griffe.Object) -> None:
        if item.docstring:
            # As in "shape [K][T]": Markdown has links of this form.
            item.docstring.value = re.sub(r"\[(\w+)\](?=\[)", r"\\[\1]", item.docstring.value)
        if isinstance(item, griffe.Class) and _is_model(item) and "__init__" not in item.members:
            item.set_member("__init__", _constructor(item))
        for member in item.members.values():
            if isinstance(member, griffe.Module | griffe.Class | griffe.Function):
                self._change(member)


def _ancestors(item: griffe.Class) -> list[griffe.Class]:
    """Return a class and its ancestors, as far as their code was read."""
    return [item, *item.mro()]


def _is_model(item: griffe.Class) -> bool:
    bases = [str(base) for each in _ancestors(item) for base in each.bases]
    return any(base.rpartition(".")[2] in ("BaseModel", "BaseSettings") for base in bases)


def _constructor(item: griffe.Class) -> griffe.Function:
    fields: dict[str, griffe.Parameter] = {}
    for each in reversed(_ancestors(item)):
        for name, member in each.members.items():
            if not isinstance(member, griffe.Attribute) or member.annotation is None:
                continue
            if name.startswith("_") or "ClassVar" in str(member.annotation):
                continue
            fields[name] = griffe.Parameter(
                name,
                annotation=member.annotation,
                kind=griffe.ParameterKind.keyword_only,
                default=member.value,
            )
    return griffe.Function("__init__", parameters=griffe.Parameters(*fields.values()))
