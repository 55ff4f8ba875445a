"""The candidates of a question: every split of a GPU budget over the shapes that fit.

Integer questions (does tp divide the heads, do the weights fit) are decided here, on the host.
"""

import dataclasses
from collections import Counter

import jax
import numpy as np

from fluidserve.specs.deployment import Disaggregated, Pool
from fluidserve.specs.hardware import GpuSpec
from fluidserve.specs.lengths import LengthBins
from fluidserve.specs.model import ModelSpec
from fluidserve.timing.instance import Instance, build_instance
from fluidserve.timing.profile import Profile

MAX_SHAPES = 32
"""Shapes that a compiled score holds; unused places repeat the last shape."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """One way to split an instance, with what it can hold."""

    tp: int
    pp: int
    instance: Instance

    @property
    def gpus(self) -> int:
        """GPUs of one instance."""
        return self.tp * self.pp


@dataclasses.dataclass(frozen=True)
class Grid:
    """All candidates of a question, as index arrays of one length.

    Attributes:
      shapes: instance shapes that fit, for either role.
      prefill: index of the prefill shape of each candidate.
      decode: index of its decode shape.
      n_prefill: its prefill instances.
      n_decode: its decode instances.
      gpu: catalog name of the accelerator.
      rejected: shapes left out, counted by reason.
    """

    shapes: list[Shape]
    prefill: np.ndarray
    decode: np.ndarray
    n_prefill: np.ndarray
    n_decode: np.ndarray
    gpu: str
    rejected: Counter

    def __len__(self) -> int:
        return len(self.prefill)

    @property
    def gpus(self) -> np.ndarray:
        """GPUs of each candidate: the sum over its pools."""
        size = np.array([s.gpus for s in self.shapes], int)
        return self.n_prefill * size[self.prefill] + self.n_decode * size[self.decode]

    def deployment(self, i: int) -> Disaggregated:
        """Candidate `i` as a description."""
        p, d = self.shapes[self.prefill[i]], self.shapes[self.decode[i]]
        return Disaggregated(
            prefill=Pool(replicas=int(self.n_prefill[i]), tp=p.tp, pp=p.pp, gpu=self.gpu),
            decode=Pool(replicas=int(self.n_decode[i]), tp=d.tp, pp=d.pp, gpu=self.gpu),
        )

    def stacked(self) -> Instance:
        """The shapes as one struct of arrays of length `MAX_SHAPES`."""
        padded = self.shapes + [self.shapes[-1]] * (MAX_SHAPES - len(self.shapes))
        return jax.tree.map(lambda *x: np.asarray(x, float), *[s.instance for s in padded])


def powers_of_two(limit: int) -> list[int]:
    """1, 2, 4, ... up to `limit`."""
    return [2**i for i in range(limit.bit_length()) if 2**i <= limit]


def fitting_shapes(
    model: ModelSpec,
    gpu: GpuSpec,
    bins: LengthBins,
    *,
    budget: int,
    profile: Profile,
    utilization: float,
) -> tuple[list[Shape], Counter]:
    """Shapes of at most ``budget - 1`` GPUs whose memory holds the model and the longest request.

    tp is a power of two within a node that divides the attention heads; pp a power of two up to
    the layers.

    Returns:
      the shapes, smallest first, and the reasons why others were left out, counted.
    """
    shapes, rejected = [], Counter()
    for tp in powers_of_two(gpu.gpus_per_node):
        for pp in powers_of_two(model.layers):
            if tp * pp > budget - 1:
                continue
            reason = _misfit(model, tp)
            if reason:
                rejected[reason] += 1
                continue
            instance = build_instance(
                model, gpu, tp=tp, pp=pp, profile=profile, utilization=utilization
            )
            if instance.kv_capacity <= 0:
                rejected["the weights do not fit into the memory"] += 1
            elif instance.kv_capacity < bins.longest:
                rejected["the KV of the longest request does not fit beside the weights"] += 1
            else:
                shapes.append(Shape(tp=tp, pp=pp, instance=instance))
    shapes.sort(key=lambda s: (s.gpus, s.tp))
    return shapes[:MAX_SHAPES], rejected


def _misfit(model: ModelSpec, tp: int) -> str:
    """Why a tensor-parallel degree cannot be used; empty when it can."""
    return "" if model.heads % tp == 0 else "tp does not divide the attention heads"


def disaggregated_grid(
    shapes: list[Shape], *, budget: int, gpu: str, rejected: Counter | None = None
) -> Grid:
    """Every (prefill shape, decode shape, n, k) within `budget` GPUs.

    No step is skipped: instance counts run over all whole numbers, so the best split of an odd
    budget is among the candidates.
    """
    parts: list[np.ndarray] = []
    for i, p in enumerate(shapes):
        for j, d in enumerate(shapes):
            n, k = np.meshgrid(
                np.arange(1, budget // p.gpus + 1),
                np.arange(1, budget // d.gpus + 1),
                indexing="ij",
            )
            fits = n * p.gpus + k * d.gpus <= budget
            n, k = n[fits], k[fits]
            parts.append(np.stack([np.full_like(n, i), np.full_like(n, j), n, k]))
    empty = np.empty((4, 0), int)
    p_index, d_index, n, k = np.concatenate(parts, axis=1) if parts else empty
    return Grid(
        shapes=shapes,
        prefill=p_index,
        decode=d_index,
        n_prefill=n,
        n_decode=k,
        gpu=gpu,
        rejected=rejected or Counter(),
    )
