"""Traffic that other planners got wrong: full links, clipped prompts, caches, long prompts."""

import dataclasses

import numpy as np
import pytest
from analysis_helpers import make_problem

from fluidserve.errors import NoFeasibleDeployment
from fluidserve.io.load import build_problem, load_inputs
from fluidserve.search.plan import analyse, plan
from fluidserve.specs.applications import synthetic_workload
from fluidserve.specs.deployment import parse_label

LABEL = "4P2D tp2/tp4"
GIGABIT = 1e9 / 8


def transfers(link):
    """OPT-66B, prompts of 512 tokens: 1.208 GB of KV each."""
    return make_problem(
        "OPT-66B", workload=synthetic_workload(512, 64), ttft=2.5, tpot=0.15, link=link
    )


def at_10_per_second(link):
    problem = transfers(link)
    return analyse(problem, parse_label(LABEL, gpu=problem.gpu.name), 10.0)


def test_kv_of_a_prompt():
    assert transfers(1.0).model.kv_bytes_per_token * 512 == pytest.approx(1.208e9, rel=1e-3)


def test_25_gigabits_carry_2_59_requests_whatever_the_gpus():
    row = at_10_per_second(25 * GIGABIT)
    assert 10.0 / row.link_load == pytest.approx(2.59, abs=0.005)
    assert row.goodput < 2.59
    assert row.confidence == "red"
    assert any("unstable" in reason for reason in row.reasons)
    with pytest.raises(NoFeasibleDeployment) as caught:
        plan(transfers(25 * GIGABIT), budget=16, rate=10.0, kinds=("disaggregated",))
    assert "the KV link saturates below the rate" in caught.value.reasons


def test_100_gigabits_carry_10_requests_with_a_queue_to_see():
    row, free = at_10_per_second(100 * GIGABIT), at_10_per_second(np.inf)
    assert row.link_load == pytest.approx(0.97, abs=0.005)
    assert row.goodput > 10.0
    # 97 ms on the link by itself, above one second in its line
    waiting = 63 * (row.tpot.mean - free.tpot.mean)
    assert waiting > 10 * 0.0966
    assert plan(
        transfers(100 * GIGABIT), budget=16, rate=10.0, top=1, kinds=("disaggregated",)
    ).deployments


@pytest.mark.parametrize("link", [250e9, 450e9])
def test_a_scale_up_link_takes_milliseconds(link):
    row, free = at_10_per_second(link), at_10_per_second(np.inf)
    assert 2e-3 < 63 * (row.tpot.mean - free.tpot.mean) < 5.5e-3
    assert row.goodput == pytest.approx(free.goodput, rel=0.01)


@pytest.fixture(scope="module")
def too_long(tmp_path_factory) -> str:
    """A trace with 5 % of its prompts beyond 8192 tokens, and one that is so with its output."""
    rng = np.random.default_rng(0)
    n_in = rng.integers(100, 4000, 1000)
    n_in[rng.choice(1000, 50, replace=False)] = rng.integers(8193, 20_000, 50)
    n_in[np.argmax(n_in < 8000)] = 8100
    rows = "".join(f"{0.1 * i:.1f},{n},100\n" for i, n in enumerate(n_in))
    path = tmp_path_factory.mktemp("traces") / "long.csv"
    path.write_text("t_s,isl,osl\n" + rows)
    return str(path)


def asked(trace, **flags):
    question = {"model": "Llama-3-70B", "gpu": "H100", "gpus": "16", "ttft": "2s", "tpot": "50ms"}
    inputs = load_inputs(question | {"trace": trace} | flags)
    return build_problem(inputs)


def test_prompts_beyond_the_limit_are_dropped_and_counted_never_clipped(too_long):
    problem, notes = asked(too_long, max_model_len="8192")
    assert any("51 of 1,000 requests (5.10%) are longer than 8,192" in note for note in notes)
    assert problem.workload.refused == pytest.approx(0.051)
    lengths = problem.workload.lengths
    assert len(lengths.n_in) == len(problem.workload.arrivals) == 949
    assert np.max(lengths.n_in + lengths.n_out) <= 8192
    # clipped prompts would pile up at the limit
    assert np.max(lengths.n_in) < 4000
    whole, notes = asked(too_long)
    assert np.max(whole.workload.lengths.n_in) > 8192
    assert whole.workload.refused == 0.0


def test_prefill_work_scales_with_what_is_not_cached():
    """Short attention, so that prefill time is nearly proportional to the tokens computed."""
    plain = make_problem("OPT-13B", workload=synthetic_workload(2000, 50), ttft=2.0, tpot=0.2)
    label = parse_label("2P2D tp1/tp1", gpu=plain.gpu.name)

    def load(hit):
        workload = dataclasses.replace(plain.workload, prefix_hit=hit)
        return analyse(dataclasses.replace(plain, workload=workload), label, 1.0).prefill_load

    assert load(0.0) == analyse(plain, label, 1.0).prefill_load
    assert load(0.5) / load(0.0) == pytest.approx(0.5, abs=0.06)
    assert load(0.8) / load(0.0) == pytest.approx(0.2, abs=0.06)


def test_long_prompts_want_prefill():
    """32,768 tokens in, 512 out, TTFT loose: most GPUs prefill; not so for short prompts."""

    def share_of_prefill(isl):
        problem = make_problem(
            "Llama-3.1-8B",
            "H100",
            profile="default",
            workload=synthetic_workload(isl, 512),
            ttft=60.0,
            tpot=0.05,
        )
        found = plan(problem, budget=16, top=1, kinds=("disaggregated",)).deployments[0].deployment
        pool = found.prefill
        return pool.replicas * pool.tp * pool.pp / found.gpus

    short, long = share_of_prefill(1024), share_of_prefill(32_768)
    assert short < 0.5 < long
