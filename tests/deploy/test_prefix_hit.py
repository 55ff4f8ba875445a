"""A prefix cache: the work that is left, the same on both paths, and nothing without one."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from analysis_helpers import make_problem
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidserve.eventsim import goodput, run
from fluidserve.report.traffic import prefix_sentences
from fluidserve.search.plan import analyse
from fluidserve.specs.applications import find_application, synthetic_workload
from fluidserve.specs.deployment import parse_label
from fluidserve.timing.model import prefill_time, prefill_work

LABEL = "1P1D tp1pp2/tp2"


def question(hit, **changes):
    workload = dataclasses.replace(find_application("chatbot"), prefix_hit=hit)
    return make_problem("OPT-13B", workload=workload, **changes)


def analysed(problem, label=LABEL, rate=None):
    return analyse(problem, parse_label(label, gpu=problem.gpu.name), rate)


def test_work_of_a_half_cached_prompt():
    work = prefill_work(1000.0, 0.5)
    assert (work.new, work.kv_read) == (500.0, 500.0)
    # 500 new tokens see 500 cached ones each, and one another in 500 * 500 / 2 pairs
    assert work.attended == 500 * 500 + 500 * 500 / 2


def test_the_last_token_is_always_computed():
    work = prefill_work(10.0, 0.999)
    assert work.new == pytest.approx(1.0)
    assert prefill_work(1.0, 0.9).new == 1.0


@settings(deadline=None, max_examples=50)
@given(n_in=st.floats(1.0, 1e6), hit=st.floats(0.0, 0.999))
def test_work_adds_up(n_in, hit):
    """Cached and new parts together are the whole prompt."""
    work, whole = prefill_work(n_in, hit), prefill_work(n_in)
    assert work.new + work.kv_read == pytest.approx(n_in)
    assert work.attended + prefill_work(work.kv_read).attended == pytest.approx(whole.attended)
    assert work.new >= 1.0 - 1e-9 * n_in


def test_arrays_and_floats_agree():
    lengths = np.array([1.0, 3.0, 700.0, 2e4])
    for hit in (0.0, 0.37, 0.99):
        one_by_one = [prefill_work(float(n), hit) for n in lengths]
        for many in (prefill_work(lengths, hit), prefill_work(jnp.array(lengths), hit)):
            np.testing.assert_allclose(many.new, [w.new for w in one_by_one], rtol=1e-6)
            np.testing.assert_allclose(many.attended, [w.attended for w in one_by_one], rtol=1e-6)


def test_no_hit_is_no_cache_to_the_last_bit():
    assert analysed(question(0.0)) == analysed(make_problem("OPT-13B"))
    assert question(0.0).prefix_hit is None


def test_goodput_grows_with_the_hit_rate():
    found = [analysed(question(hit)).goodput for hit in (0.0, 1e-6, 0.2, 0.5, 0.8)]
    assert found[1] == pytest.approx(found[0], rel=1e-4)
    assert np.all(np.diff(found[1:]) > 0)


def test_the_answer_names_benchmark_traffic_with_that_hit_rate():
    workload = dataclasses.replace(synthetic_workload(600, 40), prefix_hit=0.25)
    text = " ".join(prefix_sentences(make_problem("OPT-13B", workload=workload)))
    assert "25.0% of every prompt is taken as found" in text
    assert "--random-prefix-len 150 --random-input-len 450 --random-output-len 40" in text
    assert prefix_sentences(question(0.0)) == []


def test_link_and_memory_know_nothing_of_the_cache():
    with_cache, without = (analysed(question(h, link=25e9), rate=2.0) for h in (0.5, 0.0))
    assert with_cache.link_load == without.link_load
    assert with_cache.kv_use == pytest.approx(without.kv_use, rel=1e-3)
    assert with_cache.prefill_load < 0.7 * without.prefill_load


@pytest.mark.parametrize("hit", [0.0, 0.3, 0.95])
def test_an_idle_system_takes_the_time_of_what_is_left(hit):
    problem = dataclasses.replace(question(hit), workload=synthetic_workload(800, 2))
    problem = dataclasses.replace(
        problem, workload=dataclasses.replace(problem.workload, prefix_hit=hit)
    )
    system = problem.system(parse_label(LABEL, gpu=problem.gpu.name))
    records = run(system, np.array([0.0]), np.array([800]), np.array([2]))
    expected = 2 * float(prefill_time(system.prefill.times, 800.0, problem.prefix_hit))
    assert records.ttft[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("label", "hit"), [("1P3D tp1/tp1", 0.4), ("1P2D tp1pp2/tp2", 0.4), ("1P2D tp1/tp2", 0.7)]
)
def test_formulas_and_simulator_agree(label, hit):
    """Prefill binds in all three; three runs of 6,000 requests tell 1.5 %."""
    problem = question(hit)
    row = analysed(problem, label)
    assert row.binding == "ttft"
    system = problem.system(row.deployment)
    found = goodput(
        system, problem.workload, problem.slo, guess=row.goodput, requests=6000, tolerance=0.02
    )
    assert row.goodput == pytest.approx(found.value, rel=0.04)
    # the comparison can fail: without the cache the formulas are far off
    assert analysed(question(0.0), label).goodput < 0.8 * found.value
