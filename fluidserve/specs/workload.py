"""What arrives: prompt and output lengths, and how irregularly requests come."""

import dataclasses

import numpy as np

from fluidserve._pytree import pytree, static
from fluidserve._typing import Leaf


@pytree
class Lognormal:
    """Token counts with a lognormal shape, rounded and clipped to ``1..cap``.

    Attributes:
      mean: mean before clipping, tokens.
      cv: coefficient of variation before clipping; 0 makes every request equal.
      cap: largest value, tokens; ``inf`` for none.
    """

    mean: Leaf
    cv: Leaf
    cap: Leaf = np.inf

    def quantile(self, u: np.ndarray) -> np.ndarray:
        """Whole tokens at the probabilities `u` in (0, 1)."""
        from statistics import NormalDist

        sigma = np.sqrt(np.log1p(float(self.cv) ** 2))
        mu = np.log(float(self.mean)) - sigma**2 / 2
        if sigma == 0:
            values = np.full(u.shape, float(self.mean))
        else:
            normal = NormalDist()
            values = np.exp(mu + sigma * np.array([normal.inv_cdf(float(x)) for x in u]))
        return np.clip(np.rint(values), 1, self.cap)


@pytree
class IndependentLengths:
    """Prompt and output lengths drawn independently."""

    n_in: Lognormal
    n_out: Lognormal


@pytree
class JointLengths:
    """Observed (prompt, output) pairs, equally likely; their correlation is kept.

    Attributes:
      n_in: prompt tokens, shape ``(pairs,)``.
      n_out: output tokens, same shape.
    """

    n_in: Leaf
    n_out: Leaf


@pytree
class Workload:
    """A stream of requests.

    Attributes:
      name: application or file.
      lengths: `IndependentLengths` or `JointLengths`.
      arrival_scv: squared coefficient of variation of the times between arrivals; 1 is Poisson.
      rate: mean arrival rate of a trace, 1/s; ``nan`` when the workload brings none.
      arrivals: arrival times of a trace, s from its start; empty when it brings none.
    """

    name: str = static()
    lengths: IndependentLengths | JointLengths
    arrival_scv: Leaf = 1.0
    rate: Leaf = np.nan
    arrivals: Leaf = dataclasses.field(default_factory=lambda: np.empty(0))


def stratified(n: int, rng: np.random.Generator | None = None) -> np.ndarray:
    """The mid-points of `n` equal slices of (0, 1), shuffled when a generator is given.

    A sample made of them has the distribution exactly, so that the load of a finite simulation is
    the load that was asked for; only the order stays random.
    """
    u = (np.arange(n) + 0.5) / n
    return u if rng is None else rng.permutation(u)


def draw_lengths(
    lengths: IndependentLengths | JointLengths,
    n: int,
    rng: np.random.Generator,
    *,
    stratify: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Draws `n` requests.

    Args:
      lengths: what to draw from.
      n: requests.
      rng: source of randomness.
      stratify: use exact quantiles in random order instead of independent draws; for observed
        pairs, every pair equally often (to within one) in random order.

    Returns:
      prompt and output tokens, integer arrays of shape ``(n,)``.
    """
    if isinstance(lengths, JointLengths):
        pairs = len(lengths.n_in)
        if stratify:
            whole = np.tile(np.arange(pairs), n // pairs)
            index = rng.permutation(np.concatenate([whole, rng.permutation(pairs)[: n % pairs]]))
        else:
            index = rng.integers(pairs, size=n)
        n_in, n_out = np.asarray(lengths.n_in)[index], np.asarray(lengths.n_out)[index]
    else:
        draws = [stratified(n, rng) if stratify else rng.random(n) for _ in range(2)]
        n_in, n_out = lengths.n_in.quantile(draws[0]), lengths.n_out.quantile(draws[1])
    return n_in.astype(np.int64), n_out.astype(np.int64)
