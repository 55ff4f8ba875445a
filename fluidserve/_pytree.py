"""Frozen dataclasses that JAX can trace: the only place that registers pytrees.

A leaf is traced (it can change without recompiling); a `static` field is part of the compiled
program and must hash by value.
"""

import dataclasses
from typing import Any, TypeVar, dataclass_transform

import jax

_T = TypeVar("_T")


def static(**kwargs: Any) -> Any:
    """Declares a field that is compiled in rather than traced (a size, a name, a switch)."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


@dataclass_transform(
    frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field, static)
)
def pytree(cls: type[_T]) -> type[_T]:
    """Makes `cls` a frozen, keyword-only dataclass whose non-static fields are JAX leaves."""
    frozen = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    return jax.tree_util.register_dataclass(frozen)
