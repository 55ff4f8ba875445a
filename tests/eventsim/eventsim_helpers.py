"""Small systems and intervals that the simulator's tests share."""

import dataclasses
import math

import numpy as np

from fluidserve._pytree import pytree
from fluidserve._typing import Leaf, Number
from fluidserve.specs.workload import JointLengths, Workload
from fluidserve.timing.instance import AggregatedSystem, Instance, System
from fluidserve.timing.model import AbstractTimeModel, Work

INF = math.inf


@pytree
class LinearTimes(AbstractTimeModel):
    """Time linear in what a batch asks for, so that lengths prescribe service times."""

    fixed: Leaf
    per_new: Leaf = 0.0
    per_pair: Leaf = 0.0
    per_read: Leaf = 0.0
    per_sequence: Leaf = 0.0

    def stage_time(self, work: Work) -> Number:
        by_length = self.per_new * work.new + self.per_pair * work.attended
        return (
            self.fixed
            + by_length
            + self.per_read * work.kv_read
            + self.per_sequence * work.sequences
        )


def workload(n_in, n_out, **changes):
    """These pairs of lengths, each equally often."""
    pairs = JointLengths(n_in=np.array(n_in), n_out=np.array(n_out))
    return Workload(name="test", lengths=pairs, **changes)


def make_instance(times, *, pp=1, kv_capacity=INF, kv=None):
    return Instance(times=times, pp=pp, kv_capacity=kv_capacity, kv=kv)


def make_system(prefill, decode=None, /, **changes):
    """Instances with nothing in the way: no link, no limits; `changes` puts things in the way."""
    nothing = LinearTimes(fixed=1e-9)
    base = System(
        prefill=make_instance(prefill),
        decode=make_instance(decode or nothing),
        n_prefill=1,
        n_decode=1,
        kv_bytes_per_token=1.0,
        link_bandwidth=INF,
        handover_overhead=0.0,
        max_batch=INF,
    )
    return dataclasses.replace(base, **changes)


def make_aggregated(times, /, *, pp=1, kv_capacity=INF, kv=None, **changes):
    """One instance for both phases without limits; `changes` sets some."""
    base = AggregatedSystem(
        instance=make_instance(times, pp=pp, kv_capacity=kv_capacity, kv=kv),
        replicas=1,
        max_batch=INF,
        prefill_tokens=INF,
    )
    return dataclasses.replace(base, **changes)


def batch_means(values, *, batches=30):
    """Mean and its standard error from consecutive batches."""
    means = np.array([b.mean() for b in np.array_split(np.asarray(values, float), batches)])
    return float(np.mean(values)), float(means.std(ddof=1) / math.sqrt(batches))


def within(values, expected, *, sigmas=4.0, resolution=0.1, slack=0.0, batches=30):
    """Whether a sample agrees with a mean, and is long enough to tell.

    Args:
      values: the sample, in the order of time.
      expected: what its mean should be.
      sigmas: allowed deviation in standard errors of the sample.
      resolution: largest allowed relative width of that bound; a wider one tells nothing.
      slack: relative error that the expectation itself has.
      batches: for the standard error.
    """
    mean, se = batch_means(values, batches=batches)
    assert sigmas * se <= resolution * abs(expected), f"bound {sigmas * se} too wide"
    return abs(mean - expected) <= sigmas * se + slack * abs(expected)
