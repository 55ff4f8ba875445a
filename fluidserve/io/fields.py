"""The fields of a model's config, read one by one with a check and an error that names them."""

from collections.abc import Mapping
from typing import Any

from fluidserve.errors import InputError

LARGEST_SIZE = 10**9
"""Sizes in a config beyond this are taken for errors."""


class Fields:
    """The fields of a config, read with a check; null counts as absent.

    Attributes:
      values: the decoded JSON object.
      where: file or model, for messages.
    """

    def __init__(self, values: Mapping[str, Any], where: str):
        self.values = values
        self.where = where

    def error(self, field: str, why: str) -> InputError:
        """The error to raise about a field."""
        return InputError(f"{self.where}: {field}: {why}")

    def get(self, field: str) -> Any:
        """The raw value; None when absent or null."""
        return self.values.get(field)

    def size(self, field: str, *, least: int = 1) -> int:
        """A whole number that must be there.

        Raises:
          InputError: absent, not a whole number, below `least` or absurdly large.
        """
        value = self.get(field)
        if value is None:
            raise self.error(field, "is missing; the model cannot be read without it")
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(field, f"is {shown(value)}; it must be a whole number")
        if not least <= value <= LARGEST_SIZE:
            raise self.error(field, f"is {shown(value)}; it must be at least {least} and sensible")
        return value

    def optional_size(self, field: str) -> int | None:
        """A whole number of at least 1, or None when absent or null."""
        return None if self.get(field) is None else self.size(field)

    def flag(self, field: str, default: bool) -> bool:
        """A switch, or `default` when absent or null."""
        value = self.get(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(field, f"is {shown(value)}; it must be true or false")
        return value

    def switch(self, switch: bool | str) -> bool:
        """A habit that is fixed, or the field that decides, absent meaning no."""
        return self.flag(switch, False) if isinstance(switch, str) else switch


def shown(value: Any) -> str:
    """A value as messages show it, cut to one line."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
