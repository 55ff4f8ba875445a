"""Errors that a user can cause, each one clear line: what, where, what would be right."""


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
