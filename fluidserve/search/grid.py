"""The candidates of a question: every split of a GPU budget over the shapes that fit.

Integer questions (does tp divide the heads, do the weights fit) are decided here, on the host.
"""

import dataclasses
from collections import Counter

import jax
import numpy as np

from fluidserve.errors import InputError
from fluidserve.problem import Problem
from fluidserve.specs.deployment import Disaggregated, Pool
from fluidserve.timing.instance import Instance
from fluidserve.timing.kv import tokens_held

MAX_SHAPES = 32
"""Shapes that a compiled score holds; unused places repeat the last shape."""

MAX_CANDIDATES = 2**20
"""Deployments that one question may compare, under a minute on two cores."""


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
class Screened:
    """How the candidates of a grid were picked out of more.

    Attributes:
      deployments: how many there were to pick from.
      goodput: of each that was picked, out of tables, 1/s.
    """

    deployments: int
    goodput: np.ndarray


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
      room: candidates that the compiled program is to have room for, beyond its own.
      most_prefill: prefill instances that it is to hold, beyond its own.
      screened: how its candidates were picked; None where they are all there are.
    """

    shapes: list[Shape]
    prefill: np.ndarray
    decode: np.ndarray
    n_prefill: np.ndarray
    n_decode: np.ndarray
    gpu: str
    rejected: Counter
    room: int = 0
    most_prefill: int = 0
    screened: Screened | None = None

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
        return stack_shapes(self.shapes, MAX_SHAPES)

    @property
    def alike(self) -> np.ndarray:
        """A number that candidates share whose idle latencies are the same."""
        return self.prefill * len(self.shapes) + self.decode


def stack_shapes(shapes: list[Shape], room: int) -> Instance:
    """Instances of some shapes as one struct of arrays of length `room`, the last one repeated."""
    padded = shapes + [shapes[-1]] * (room - len(shapes))
    return jax.tree.map(lambda *x: np.asarray(x, float), *[s.instance for s in padded])


def powers_of_two(limit: int) -> list[int]:
    """1, 2, 4, ... up to `limit`."""
    return [2**i for i in range(limit.bit_length()) if 2**i <= limit]


def fitting_shapes(problem: Problem, budget: int) -> tuple[list[Shape], Counter]:
    """Shapes of at most ``budget - 1`` GPUs whose memory holds the model and the longest request.

    tp is a power of two within a node that divides the attention heads; pp a power of two up to
    the layers.

    Returns:
      the shapes, smallest first, and the reasons why others were left out, counted.
    """
    shapes, rejected = [], Counter()
    for tp in powers_of_two(problem.gpu.gpus_per_node):
        for pp in powers_of_two(problem.model.layers):
            if tp * pp > budget - 1:
                continue
            if tp not in problem.engine.profile.degrees(problem.gpu.name, [tp]):
                rejected[f"the profile has no coefficients for tp={tp}"] += 1
                continue
            instance = problem.instance(tp, pp)
            reason = misfit(problem, instance, tp=tp, pp=pp)
            if reason:
                rejected[reason] += 1
            else:
                shapes.append(Shape(tp=tp, pp=pp, instance=instance))
    shapes.sort(key=lambda s: (s.gpus, s.tp))
    if len(shapes) > MAX_SHAPES:
        rejected[f"only the {MAX_SHAPES} smallest shapes are compared"] = len(shapes) - MAX_SHAPES
    return shapes[:MAX_SHAPES], rejected


def misfit(problem: Problem, instance: Instance, *, tp: int, pp: int) -> str:
    """Why an instance cannot serve the problem; empty when it can."""
    if problem.model.heads % tp:
        return f"tp={tp} does not divide {problem.model.heads} attention heads"
    if pp > problem.model.layers:
        return f"pp={pp} exceeds {problem.model.layers} layers"
    if tp > problem.gpu.gpus_per_node:
        return f"tp={tp} exceeds the {problem.gpu.gpus_per_node} GPUs of a node"
    if instance.kv_capacity <= 0:
        return "the weights do not fit into the memory"
    if instance.kv_capacity < tokens_held(instance.kv, problem.longest):
        return "the KV of the longest request does not fit beside the weights"
    return ""


def smallest_fit(problem: Problem) -> Shape | None:
    """The shape with fewest GPUs that fits, whatever the budget; None when none does."""
    shapes, _ = fitting_shapes(problem, problem.gpu.gpus_per_node * problem.model.layers + 1)
    return shapes[0] if shapes else None


def disaggregated_grid(problem: Problem, budget: int, *, only: Disaggregated | None = None) -> Grid:
    """Every (prefill shape, decode shape, n, k) within `budget` GPUs.

    No step is skipped: instance counts run over all whole numbers, so the best split of an odd
    budget is among the candidates.

    Args:
      problem: the question.
      budget: most GPUs over both pools.
      only: a single deployment instead of all; an empty grid when it does not fit.

    Raises:
      InputError: more than `MAX_CANDIDATES` deployments.
    """
    if only is not None:
        return _single(problem, only)
    shapes, rejected = fitting_shapes(problem, budget)
    _check_size(shapes, budget)
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
    index = np.concatenate([np.empty((4, 0), int), *parts], axis=1)
    return grid_from(problem, shapes, index, rejected)


def same_program(grids: list[Grid]) -> list[Grid]:
    """Grids that one compiled program scores, whatever their sizes."""
    filled = [grid for grid in grids if len(grid)]
    room = max((len(grid) for grid in filled), default=0)
    most = max((int(grid.n_prefill.max()) for grid in filled), default=0)
    return [dataclasses.replace(grid, room=room, most_prefill=most) for grid in grids]


def count_deployments(shapes: list[Shape], budget: int) -> int:
    """Deployments of a budget."""
    sizes = [s.gpus for s in shapes]
    count = 0
    for p in sizes:
        left = budget - p * np.arange(1, budget // p + 1)
        count += sum(int(np.sum(left // d)) for d in sizes)
    return count


def _check_size(shapes: list[Shape], budget: int) -> None:
    """Refuses a budget with more candidates than one call should score.

    Raises:
      InputError: more than `MAX_CANDIDATES`.
    """
    count = count_deployments(shapes, budget)
    if count > MAX_CANDIDATES:
        raise InputError(
            f"gpus = {budget}: {count:,} deployments to compare, at most {MAX_CANDIDATES:,} are "
            "compared at once; plan a part of the fleet and replicate it"
        )


def _single(problem: Problem, deployment: Disaggregated) -> Grid:
    """The grid of one deployment."""
    shapes, rejected = [], Counter()
    for pool in (deployment.prefill, deployment.decode):
        instance = problem.instance(pool.tp, pool.pp)
        reason = misfit(problem, instance, tp=pool.tp, pp=pool.pp)
        if reason:
            rejected[reason] += 1
        shapes.append(Shape(tp=pool.tp, pp=pool.pp, instance=instance))
    rows = [[0, 1, deployment.prefill.replicas, deployment.decode.replicas]]
    index = np.empty((4, 0), int) if rejected else np.array(rows).T
    return grid_from(problem, shapes, index, rejected)


def grid_from(problem: Problem, shapes: list[Shape], index: np.ndarray, rejected: Counter) -> Grid:
    """A grid of candidates given as prefill and decode shape, prefill and decode instances."""
    prefill, decode, n_prefill, n_decode = index
    return Grid(
        shapes=shapes,
        prefill=prefill,
        decode=decode,
        n_prefill=n_prefill,
        n_decode=n_decode,
        gpu=problem.gpu.name,
        rejected=rejected,
    )
