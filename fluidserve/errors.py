"""Errors that a user can cause, each one clear line: what, where, what would be right."""

from collections import Counter
from collections.abc import Mapping
from typing import Any


class InputError(ValueError):
    """The input is wrong; the message names the field, its value and what would be right."""


class NoFeasibleDeployment(Exception):
    """The question is well posed and nothing answers it.

    Attributes:
      reasons: how many candidates failed, by reason.
      nearest: the candidate that comes closest, in words; empty when there is none.
      candidates: how many candidates were scored.
    """

    def __init__(
        self,
        message: str,
        *,
        reasons: dict[str, int] | None = None,
        nearest: str = "",
        candidates: int = 0,
    ):
        super().__init__(message)
        self.reasons = dict(reasons or {})
        self.nearest = nearest
        self.candidates = candidates

    @classmethod
    def of_all(
        cls, failures: "Mapping[Any, NoFeasibleDeployment]", message: str = ""
    ) -> "NoFeasibleDeployment":
        """Several failures as one, each by its name; without a message a single one as it is."""
        first = next(iter(failures.values()))
        if len(failures) == 1 and not message:
            return first
        reasons: Counter[str] = Counter()
        for name, error in failures.items():
            reasons.update({f"{name}: {reason}": n for reason, n in error.reasons.items()})
        told = [f"{name}: {error.nearest}" for name, error in failures.items() if error.nearest]
        return cls(
            message or str(first),
            reasons=dict(reasons),
            nearest="; ".join(told),
            candidates=sum(error.candidates for error in failures.values()),
        )
