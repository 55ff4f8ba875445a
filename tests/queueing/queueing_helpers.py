"""Queues played forward one customer after another: the independent side of the formulas."""

import functools

import jax
import jax.numpy as jnp
import numpy as np


@functools.partial(jax.jit, static_argnames="servers")
def _kiefer_wolfowitz(gaps, services, servers):
    def arrive(free, customer):
        gap, service = customer
        free = jnp.maximum(free - gap, 0.0)
        wait = free[0]
        return jnp.sort(free.at[0].add(service)), wait

    def one(gaps, services):
        return jax.lax.scan(arrive, jnp.zeros(servers), (gaps, services))[1]

    return jax.vmap(one)(gaps, services)


def gamma(rng, scv, size):
    """Gamma variables of mean 1; all equal for a variability of 0."""
    return rng.gamma(1 / scv, scv, size) if scv > 0 else np.ones(size)


def simulated_waits(rho, servers, scv, arrival_scv=1.0, *, runs=16, customers=40_000, seed=0):
    """Waits in GI/G/n with gamma laws, units of ``mean service / n``; warm-up cut, (runs, m)."""
    rng = np.random.default_rng(seed)
    gaps = gamma(rng, arrival_scv, (runs, customers)) / rho
    services = gamma(rng, scv, (runs, customers)) * servers
    return np.asarray(_kiefer_wolfowitz(gaps, services, servers))[:, customers // 10 :]


def mean_and_error(values):
    """Mean over independent runs (the first axis) and its standard error."""
    means = np.asarray(values, float).mean(axis=1)
    return means.mean(), means.std(ddof=1) / np.sqrt(len(means))


def md1_cdf(t, rho):
    """P(W <= t) in M/D/1 with service 1, by a series of positive terms.

    Franx, Operations Research Letters 29, 2001: ``exp(-z) sum_{j<k} Q_{k-j} z**j / j!`` with k the
    whole part of t plus 1, z = rho (k - t) and Q_m the chance of at most m in system, whose law
    comes from its balance equations. All terms are positive, so nothing cancels.
    """
    k = int(t) + 1
    arrivals = np.exp(-rho) * np.cumprod([1.0, *(rho / j for j in range(1, k + 2))])
    beyond = 1.0 - np.cumsum(arrivals)  # more than m arrivals during a service
    number = [1.0 - rho]
    for j in range(1, k + 1):
        flow = number[0] * beyond[j - 1]
        flow += sum(number[i] * beyond[j - i] for i in range(1, j))
        number.append(flow / arrivals[0])
    at_most = np.cumsum(number)
    z = rho * (k - t)
    terms = np.cumprod([1.0, *(z / j for j in range(1, k))])
    return float(np.exp(-z) * np.dot(at_most[k:0:-1], terms))
