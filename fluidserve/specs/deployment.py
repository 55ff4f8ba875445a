"""What is deployed: pools of instances, each instance split by tensor and pipeline parallelism.

Three kinds: `Disaggregated` (xPyD), `Colocated` (both phases on each instance, prompts go first)
and `Chunked` (both phases in one iteration, prompts in pieces).
"""

import re
from typing import Literal

from fluidserve._pytree import pytree, static
from fluidserve.errors import InputError

Kind = Literal["disaggregated", "colocated", "chunked"]

Dispatch = Literal["shared", "jsq", "round-robin", "random"]
"""How requests are spread over the instances of a pool.

``shared``: prefill instances take from one FCFS queue; decode: the instance with fewest requests.
``jsq``: in both pools the instance with fewest requests. ``round-robin``: each in turn. ``random``:
any, with equal chance. Except for ``shared`` prefill, every instance has a queue of its own.
Instances that do both phases are chosen as decode instances are.
"""

TOKEN_BUDGETS = (256, 512, 1024, 2048, 4096, 8192)
"""Token budgets of chunked prefill that are compared unless others are asked for."""

KvPolicy = Literal["reserve", "preempt"]
"""What an instance that does both phases asks of its KV memory before it admits a request.

``reserve``: room for all tokens that the request will ever have. ``preempt``: room for the prompt;
when memory runs out later, the youngest request loses its KV and is computed anew.
"""


@pytree
class Pool:
    """Identical instances that serve one role.

    Attributes:
      replicas: instances.
      tp: tensor-parallel GPUs per pipeline stage.
      pp: pipeline stages.
      gpu: catalog name of the accelerator.
    """

    replicas: int = static()
    tp: int = static()
    pp: int = static()
    gpu: str = static()

    @property
    def gpus(self) -> int:
        """GPUs of the pool."""
        return self.replicas * self.tp * self.pp


@pytree
class Disaggregated:
    """Prefill instances that hand the KV cache over to decode instances (xPyD)."""

    prefill: Pool
    decode: Pool

    @property
    def gpus(self) -> int:
        """GPUs of both pools."""
        return self.prefill.gpus + self.decode.gpus

    @property
    def pools(self) -> dict[str, Pool]:
        """The pools by role."""
        return {"prefill": self.prefill, "decode": self.decode}

    @property
    def kind(self) -> Kind:
        """``disaggregated``."""
        return "disaggregated"

    @property
    def label(self) -> str:
        """Short name such as ``3P1D tp2/tp4``; ``pp`` is written where it is above one.

        Example:
          >>> p = Pool(replicas=3, tp=2, pp=2, gpu="A100")
          >>> d = Pool(replicas=1, tp=4, pp=1, gpu="A100")
          >>> Disaggregated(prefill=p, decode=d).label
          '3P1D tp2pp2/tp4'
        """
        counts = f"{self.prefill.replicas}P{self.decode.replicas}D"
        return f"{counts} {_shape(self.prefill)}/{_shape(self.decode)}"


@pytree
class Colocated:
    """Instances that do both phases, an iteration being either prompts or decode; prompts first.

    The scheduler of ORCA's continuous batching as the first vLLM had it.
    """

    pool: Pool

    @property
    def gpus(self) -> int:
        """GPUs of all instances."""
        return self.pool.gpus

    @property
    def pools(self) -> dict[str, Pool]:
        """The pool by its role."""
        return {"colocated": self.pool}

    @property
    def kind(self) -> Kind:
        """``colocated``."""
        return "colocated"

    @property
    def label(self) -> str:
        """Short name such as ``4C tp2``; ``pp`` is written where it is above one."""
        return f"{self.pool.replicas}C {_shape(self.pool)}"


@pytree
class Chunked:
    """Instances whose iterations hold all decoding requests and pieces of prompts beside them.

    The scheduler of Sarathi-Serve (Agrawal et al., OSDI 2024) and SplitFuse.

    Attributes:
      pool: the instances.
      token_budget: most tokens of one iteration, decode tokens included.
    """

    pool: Pool
    token_budget: int = static()

    @property
    def gpus(self) -> int:
        """GPUs of all instances."""
        return self.pool.gpus

    @property
    def pools(self) -> dict[str, Pool]:
        """The pool by its role."""
        return {"chunked": self.pool}

    @property
    def kind(self) -> Kind:
        """``chunked``."""
        return "chunked"

    @property
    def label(self) -> str:
        """Short name such as ``4S tp2 b512``.

        Example:
          >>> Chunked(pool=Pool(replicas=4, tp=2, pp=1, gpu="A100"), token_budget=512).label
          '4S tp2 b512'
        """
        return f"{self.pool.replicas}S {_shape(self.pool)} b{self.token_budget}"


Deployment = Disaggregated | Colocated | Chunked


def _shape(pool: Pool) -> str:
    return f"tp{pool.tp}" + (f"pp{pool.pp}" if pool.pp > 1 else "")


_SHAPE = r"tp(\d+)(?:\s*pp(\d+))?"
_DISAGGREGATED = re.compile(rf"\s*(\d+)P\s*(\d+)D\s+{_SHAPE}\s*/\s*{_SHAPE}\s*\Z", re.IGNORECASE)
_COLOCATED = re.compile(rf"\s*(\d+)C\s+{_SHAPE}\s*\Z", re.IGNORECASE)
_CHUNKED = re.compile(rf"\s*(\d+)S\s+{_SHAPE}\s+b(\d+)\s*\Z", re.IGNORECASE)


def parse_label(text: str, *, gpu: str) -> Deployment:
    """Reads a deployment label, the inverse of the ``label`` of each kind.

    Raises:
      InputError: none of the forms ``3P1D tp2/tp4``, ``4C tp2`` and ``4S tp2 b512`` (each ``tp``
        may have a ``pp``), or a count of zero.
    """

    def counts(match: re.Match) -> list[int]:
        found = [int(x) if x else 1 for x in match.groups()]
        if min(found) < 1:
            raise InputError(f"deployment: {text!r} has a count of zero; every count is at least 1")
        return found

    if match := _DISAGGREGATED.match(text):
        n, k, p_tp, p_pp, d_tp, d_pp = counts(match)
        return Disaggregated(
            prefill=Pool(replicas=n, tp=p_tp, pp=p_pp, gpu=gpu),
            decode=Pool(replicas=k, tp=d_tp, pp=d_pp, gpu=gpu),
        )
    if match := _COLOCATED.match(text):
        n, tp, pp = counts(match)
        return Colocated(pool=Pool(replicas=n, tp=tp, pp=pp, gpu=gpu))
    if match := _CHUNKED.match(text):
        n, tp, pp, budget = counts(match)
        return Chunked(pool=Pool(replicas=n, tp=tp, pp=pp, gpu=gpu), token_budget=budget)
    raise InputError(
        f"deployment: {text!r} is not a label; write for example '3P1D tp2/tp4', '1P2D tp2pp2/tp4'"
        ", '4C tp2' or '4S tp2 b512'"
    )
