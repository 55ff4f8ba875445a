"""What arrives: prompt and output lengths, and how irregularly requests come."""

import dataclasses

import numpy as np

from fluidserve._pytree import pytree, static
from fluidserve._typing import Leaf
from fluidserve.specs.tabulated import Tabulated

# Algorithm AS 241: per range, numerator and denominator, highest power first.
# fmt: off
_CENTRE = (
    (2509.0809287301227, 33430.57558358813, 67265.7709270087, 45921.95393154987,
     13731.69376550946, 1971.5909503065513, 133.14166789178438, 3.3871328727963665),
    (5226.495278852854, 28729.085735721943, 39307.89580009271, 21213.794301586597,
     5394.196021424751, 687.1870074920579, 42.31333070160091, 1.0),
)
_TAIL = (
    (0.0007745450142783414, 0.022723844989269184, 0.2417807251774506, 1.2704582524523684,
     3.6478483247632045, 5.769497221460691, 4.630337846156546, 1.4234371107496835),
    (1.0507500716444169e-09, 0.0005475938084995345, 0.015198666563616457, 0.14810397642748008,
     0.6897673349851, 1.6763848301838038, 2.053191626637759, 1.0),
)
_FAR_TAIL = (
    (2.0103343992922881e-07, 2.7115555687434876e-05, 0.0012426609473880784, 0.026532189526576124,
     0.29656057182850487, 1.7848265399172913, 5.463784911164114, 6.657904643501103),
    (2.0442631033899397e-15, 1.421511758316446e-07, 1.8463183175100548e-05, 0.0007868691311456133,
     0.014875361290850615, 0.1369298809227358, 0.599832206555888, 1.0),
)
# fmt: on


def _normal_quantile(u: np.ndarray) -> np.ndarray:
    """Quantiles of the standard normal distribution to full double precision.

    Args:
      u: probabilities; 0 and 1 give minus and plus infinity, anything outside ``nan``.

    Returns:
      quantiles, same shape as `u`.

    Source: M. J. Wichura, Algorithm AS 241: the percentage points of the normal distribution,
      Applied Statistics 37 (1988), routine PPND16: a ratio of polynomials on each of three ranges.
    """

    def ratio(pair: tuple[tuple[float, ...], tuple[float, ...]], r: np.ndarray) -> np.ndarray:
        return np.polyval(pair[0], r) / np.polyval(pair[1], r)

    u = np.asarray(u, float)
    q = u - 0.5
    z = np.where(u == 0, -np.inf, np.where(u == 1, np.inf, np.nan))
    centre = np.abs(q) <= 0.425
    z[centre] = q[centre] * ratio(_CENTRE, 0.180625 - q[centre] ** 2)
    outside = ~centre & (u > 0) & (u < 1)
    depth = np.sqrt(-np.log(np.minimum(u[outside], 1 - u[outside])))
    size = np.where(depth <= 5, ratio(_TAIL, depth - 1.6), ratio(_FAR_TAIL, depth - 5))
    z[outside] = np.copysign(size, q[outside])
    return z


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
        """Token counts at given probabilities.

        Args:
          u: probabilities in [0, 1], any shape.

        Returns:
          whole tokens as floats, same shape; 1 at ``u = 0``, the cap at ``u = 1``.
        """
        sigma = np.sqrt(np.log1p(float(self.cv) ** 2))
        mu = np.log(float(self.mean)) - sigma**2 / 2
        if sigma == 0:
            values = np.full(np.shape(u), float(self.mean))
        else:
            values = np.exp(mu + sigma * _normal_quantile(u))
        return np.clip(np.rint(values), 1, self.cap)


@pytree
class IndependentLengths:
    """Prompt and output lengths drawn independently."""

    n_in: Lognormal | Tabulated
    n_out: Lognormal | Tabulated


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
class Peak:
    """The busiest window of some traffic.

    Attributes:
      window: its length, s.
      rate: arrival rate in it, 1/s.
      arrival_scv: squared coefficient of variation of the times between the arrivals in it.
    """

    window: Leaf
    rate: Leaf
    arrival_scv: Leaf


@pytree
class Workload:
    """A stream of requests.

    Attributes:
      name: application or file.
      lengths: `IndependentLengths` or `JointLengths`.
      arrival_scv: squared coefficient of variation of the times between arrivals; 1 is Poisson.
      dispersion: variance over mean of the arrivals per minute; 1 is Poisson. Above `arrival_scv`
        when busy spells last longer than a few arrivals, as the rate of a day does.
      rate: arrival rate of a trace, 1/s; ``nan`` when the workload brings none.
      peak_10s: its busiest 10 s; None when not known.
      peak_60s: its busiest 60 s; None when not known.
      arrivals: arrival times of a trace, s from its start; empty when it brings none.
      concurrency: users of a closed loop, each of whom sends the next request when the last token
        of the one before has left; None for an open loop. It replaces the arrivals.
      prefix_hit: share of the tokens of every prompt that the prefix cache holds, in [0, 1).
      prefix_bound: share of all prompt tokens that an unlimited cache would find; ``nan`` when not
        known.
      refused: share of the requests that was left out as too long; everything else describes the
        rest.
      whole: the traffic that this is the busiest window of; None when it is no window.
    """

    name: str = static()
    lengths: IndependentLengths | JointLengths
    arrival_scv: Leaf = 1.0
    dispersion: Leaf = 1.0
    rate: Leaf = np.nan
    peak_10s: Peak | None = None
    peak_60s: Peak | None = None
    arrivals: Leaf = dataclasses.field(default_factory=lambda: np.empty(0))
    concurrency: int | None = static(default=None)
    prefix_hit: Leaf = 0.0
    prefix_bound: Leaf = np.nan
    refused: Leaf = 0.0
    whole: "Workload | None" = None


def busiest(workload: Workload, peak: Peak) -> Workload:
    """Steady traffic as in the busiest window of a workload, to be planned for in its place.

    Its rate and the variability of its gaps are those of the window, and it lasts: no busy spells
    are left, and there is no recording to replay.
    """
    return dataclasses.replace(
        workload,
        arrival_scv=peak.arrival_scv,
        dispersion=1.0,
        rate=peak.rate,
        arrivals=np.empty(0),
        whole=workload,
    )


def thinned(
    workload: Workload, lengths: IndependentLengths | JointLengths, refused: float
) -> Workload:
    """What a workload without a recording becomes when a share of the requests is left out.

    Leaving out requests at random takes rates and variabilities towards those of Poisson traffic:
    ``c**2`` of renewal arrivals and the dispersion D of their counts become ``1 + p (c**2 - 1)``
    and ``1 + p (D - 1)`` when the share p stays (the variance of a binomial part of a count).

    Args:
      workload: what arrives.
      lengths: those of the requests that stay.
      refused: share of the requests left out.
    """
    stays = 1.0 - refused

    def scaled(peak: Peak | None) -> Peak | None:
        if peak is None:
            return None
        scv = 1.0 + stays * (float(peak.arrival_scv) - 1.0)
        return Peak(window=peak.window, rate=stays * float(peak.rate), arrival_scv=scv)

    return dataclasses.replace(
        workload,
        lengths=lengths,
        arrival_scv=1.0 + stays * (float(workload.arrival_scv) - 1.0),
        dispersion=1.0 + stays * (float(workload.dispersion) - 1.0),
        rate=stays * float(workload.rate),
        peak_10s=scaled(workload.peak_10s),
        peak_60s=scaled(workload.peak_60s),
        prefix_bound=np.nan if refused else workload.prefix_bound,
        refused=refused,
    )


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
        seen_in, seen_out = np.asarray(lengths.n_in), np.asarray(lengths.n_out)
        pairs = len(seen_in)
        if stratify:
            whole = np.tile(np.arange(pairs), n // pairs)
            index = rng.permutation(np.concatenate([whole, rng.permutation(pairs)[: n % pairs]]))
        else:
            index = rng.integers(pairs, size=n)
        n_in, n_out = seen_in[index], seen_out[index]
    else:
        draws = [stratified(n, rng) if stratify else rng.random(n) for _ in range(2)]
        n_in, n_out = lengths.n_in.quantile(draws[0]), lengths.n_out.quantile(draws[1])
    return n_in.astype(np.int64), n_out.astype(np.int64)
