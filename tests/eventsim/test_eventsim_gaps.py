"""Single gaps between tokens: counted by hand, as a limit, and in closed form."""

import dataclasses

import numpy as np
import pytest
from eventsim_helpers import LinearTimes, make_instance, make_system, workload

from fluidserve.errors import InputError
from fluidserve.eventsim import Gaps, goodput, run, simulate, summarise
from fluidserve.eventsim.measure import attainment, margins, summarise_gaps
from fluidserve.specs.slo import Slo, limits_of
from fluidserve.timing.instance import AggregatedSystem

SYSTEM = make_system(LinearTimes(fixed=1.0), LinearTimes(fixed=1.0))


def with_gaps(gaps: list[list[float]]):
    """Records of some requests with these gaps."""
    n_out = np.array([1 + len(g) for g in gaps])
    records = run(SYSTEM, np.arange(len(gaps)) * 1e3, np.ones(len(gaps)), n_out)
    offsets = np.concatenate([[0], np.cumsum(n_out - 1)])
    return dataclasses.replace(records, gaps=Gaps(np.concatenate(gaps), offsets))


def test_gaps_are_counted_by_hand():
    """Of six gaps four are at most 2; TTFT is 1 for all."""
    records = with_gaps([[1.0, 1.0, 7.0], [], [2.0], [1.0, 9.0]])
    only = Slo(itl=2.0, itl_share=0.5)
    np.testing.assert_allclose(margins(records, only), [4 / 6 - 0.5])
    assert attainment(records, only) == pytest.approx(4 / 6)
    more = dataclasses.replace(only, ttft=1.5)
    np.testing.assert_allclose(margins(records, more), [0.1, 4 / 6 - 0.5])
    assert attainment(records, more) == 1.0
    found = summarise_gaps([records], 0.5)
    assert found is not None
    assert found.longest.p50 == 7.0
    assert found.stalled == pytest.approx(1 / 3)  # 9 is above 5 times 1.5, 7 is not
    assert found.itl.mean == pytest.approx(21 / 6)
    assert found.itl.at_share == found.itl.p50 == 1.5


def test_a_limit_on_gaps_has_a_share():
    (limit,) = limits_of(Slo(itl=0.1))
    assert tuple(limit) == ("itl", 0.1, 0.99)


def test_records_without_gaps_are_refused():
    records = run(SYSTEM, np.zeros(2), np.ones(2), np.full(2, 3))
    assert summarise_gaps([records]) is None
    with pytest.raises(InputError, match="P99 ITL: the records have no gaps; run with record_gaps"):
        margins(records, Slo(itl=1.0))


def test_single_tokens_have_no_gap_to_miss():
    records = run(SYSTEM, np.arange(30.0), np.ones(30), np.ones(30), record_gaps=True)
    assert margins(records, Slo(itl=1e-3)) == pytest.approx([0.01])
    found = summarise(records, Slo(itl=1e-3)).gaps
    assert found is not None
    assert np.isnan(found.itl.p99)
    assert found.stalled == 0.0


def colocated(**changes) -> AggregatedSystem:
    """One instance: a prompt of 1,000 tokens takes 0.5 s, a decode step hardly above 0.1 s."""
    times = LinearTimes(fixed=0.1, per_pair=8e-7)
    system = AggregatedSystem(
        instance=make_instance(times), replicas=1, max_batch=1e9, prefill_tokens=1000.0
    )
    return dataclasses.replace(system, **changes)


def test_stalls_are_as_frequent_as_steps_in_which_prompts_come():
    """A gap holds no prompt if none came in the step before; the first of 40 follows a prompt."""
    run = simulate(
        colocated(), workload([1000], [41]), 0.5, requests=3000, seed=3, record_gaps=True
    )
    gaps = run.window().gaps
    assert gaps is not None
    expected = 39 / 40 * np.exp(-0.5 * 0.1) + np.exp(-0.5 * 0.5) / 40
    assert (gaps.values < 0.3).mean() == pytest.approx(expected, abs=0.006)


def test_goodput_of_a_limit_on_gaps_is_where_prompts_come_rarely_enough():
    """At 96 % of the gaps: exp(-0.1 rate) in 39 of 40, exp(-0.5 rate) in the first of them."""
    slo = Slo(itl=0.3, itl_share=0.96)
    found = goodput(
        colocated(), workload([1000], [41]), slo, guess=0.4, requests=3000, tolerance=0.02
    )
    rate = found.value
    expected = 39 / 40 * np.exp(-0.1 * rate) + np.exp(-0.5 * rate) / 40
    assert expected == pytest.approx(0.96, abs=0.004)
    assert rate > 0.3
