"""What is deployed: pools of instances, each instance split by tensor and pipeline parallelism."""

import re
from typing import Literal

from fluidserve._pytree import pytree, static
from fluidserve.errors import InputError

Dispatch = Literal["shared", "jsq", "round-robin", "random"]
"""How requests are spread over the instances of a pool.

``shared``: prefill instances take from one FCFS queue; decode: the instance with fewest requests.
``jsq``: in both pools the instance with fewest requests. ``round-robin``: each in turn. ``random``:
any, with equal chance. Except for ``shared`` prefill, every instance has a queue of its own.
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


def _shape(pool: Pool) -> str:
    return f"tp{pool.tp}" + (f"pp{pool.pp}" if pool.pp > 1 else "")


_LABEL = re.compile(
    r"\s*(\d+)P\s*(\d+)D\s+tp(\d+)(?:\s*pp(\d+))?\s*/\s*tp(\d+)(?:\s*pp(\d+))?\s*\Z", re.IGNORECASE
)


def parse_label(text: str, *, gpu: str) -> Disaggregated:
    """Reads a deployment label, the inverse of `Disaggregated.label`.

    Raises:
      InputError: not of the form ``3P1D tp2/tp4`` or ``3P1D tp2pp2/tp4``, or a count of zero.
    """
    match = _LABEL.match(text)
    if not match:
        raise InputError(
            f"deployment: {text!r} is not a label; write for example '3P1D tp2/tp4' or "
            "'1P2D tp2pp2/tp4'"
        )
    n, k, p_tp, p_pp, d_tp, d_pp = (int(x) if x else 1 for x in match.groups())
    if min(n, k, p_tp, p_pp, d_tp, d_pp) < 1:
        raise InputError(f"deployment: {text!r} has a count of zero; every count is at least 1")
    return Disaggregated(
        prefill=Pool(replicas=n, tp=p_tp, pp=p_pp, gpu=gpu),
        decode=Pool(replicas=k, tp=d_tp, pp=d_pp, gpu=gpu),
    )
