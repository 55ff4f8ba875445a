"""Rows on both phases in one instance, by the event simulator."""

import numpy as np
import pytest
from lecture_rows import A100, OPT_13B, OPT_66B, PROFILE, row

from fluidserve.eventsim import attainment, goodput, simulate, simulate_first
from fluidserve.problem import Problem, engine_for
from fluidserve.specs.applications import find_application, synthetic_workload
from fluidserve.specs.deployment import parse_label
from fluidserve.specs.scale import least_scale
from fluidserve.specs.slo import Slo


def problem(model, workload, ttft, tpot):
    return Problem(
        model=model,
        gpu=A100,
        workload=workload,
        slo=Slo(ttft=ttft, tpot=tpot, attainment=0.9),
        engine=engine_for(PROFILE, A100, link_bandwidth=float("inf")),
    )


FIGURE_1 = problem(OPT_13B, synthetic_workload(512, 64), 0.4, 0.04)
CHAT = problem(OPT_13B, find_application("chatbot"), 0.25, 0.1)
SUMMARIES = problem(OPT_66B, find_application("summarization"), 15.0, 0.15)


def system(question, label):
    return question.system(parse_label(label, gpu=A100.name))


def goodput_of(question, label, guess, *, requests=4000):
    found = goodput(
        system(question, label),
        question.workload,
        question.slo,
        guess=guess,
        requests=requests,
        seeds=(0,),
        tolerance=0.01,
    )
    return found.value


def served(label, rate, *, requests=4000):
    found = simulate(
        system(CHAT, label), CHAT.workload, rate, requests=requests, seed=0, record_gaps=True
    )
    return found.window()


def test_goodput_of_one_instance_and_what_splitting_gains():
    together = goodput_of(FIGURE_1, "1C tp1", 4.7)
    assert together == row("coloc-goodput").expected
    apart = goodput_of(FIGURE_1, "2P1D tp1/tp1", 24.0)
    assert apart / 3 / together == row("2p1d-per-gpu-gain").expected


@pytest.mark.parametrize(
    ("id", "label"),
    [
        ("tbt-p99-coloc", "1C tp1"),
        ("tbt-p99-chunked", "1S tp1 b512"),
        ("tbt-p99-disagg", "2P1D tp1/tp1"),
    ],
)
def test_time_between_tokens(id, label):
    assert np.quantile(served(label, 1.5).gaps.values, 0.99) == row(id).expected


def test_longest_stall():
    """It grows with the length of the run: prompts that come together are computed together."""
    longest = served("1C tp1", 1.5, requests=500).gaps.values.max()
    assert row("stall-max").number / 2 < longest < 2 * row("stall-max").number


def test_attainment_collapses_while_throughput_rises():
    """The row has 4.1 requests/s and about 1 % of them in time; here 4.1 and 7 %, 3 % of those
    that are not among the first tenth.
    """
    rates, throughput, met, late = range(1, 9), [], [], []
    for rate in rates:
        runs = simulate_first(system(CHAT, "1C tp1"), CHAT.workload, rate, horizon=500, runs=4)
        ends = [np.sort(r.last_token) for r in runs]
        throughput.append(np.mean([300 / (t[400] - t[100]) for t in ends]))
        met.append(np.mean([attainment(r, CHAT.slo) for r in runs]))
        late.append(np.mean([attainment(r.window(), CHAT.slo) for r in runs]))
    assert "at rate 8 throughput 4.1" in row("coloc-cliff").quantity
    assert (np.diff(throughput) > -0.02).all()
    assert throughput[-1] == pytest.approx(4.1, rel=0.1)
    assert min(met[:3]) > 0.8
    assert max(met[4:]) < 0.35
    assert met[-1] < 0.1
    assert late[-1] < 0.05


@pytest.mark.parametrize(
    ("id", "label"), [("slo-scale-coloc", "1C tp1"), ("slo-scale-disagg", "1P1D tp2/tp1")]
)
def test_tightest_limits_at_one_request_per_second_and_gpu(id, label):
    r = served(label, 1.0 * parse_label(label, gpu=A100.name).gpus)
    scale = least_scale(CHAT.slo, ttft=r.ttft, tpot=r.tpot, e2e=r.e2e, n_out=r.n_out)
    assert scale == row(id).expected


def test_pieces_help_summaries():
    """On tensor parallel 4 and with 512 tokens: 1.5; larger pieces gain less."""
    labels = ("1C tp4", "1S tp4 b512")
    first, pieces = (goodput_of(SUMMARIES, x, 1.7, requests=3000) for x in labels)
    assert "above 1.3" in row("chunk-helps-summarization").tolerance
    assert pieces / first > 1.3


def test_pieces_hurt_chat():
    """At a rate below the goodput of prompts first (1.96), any budget up to 1024 misses."""
    assert row("chunk-hurts-chat").quantity.endswith("below 1")
    rate = 1.6
    assert attainment(served("1C tp1", rate, requests=2000), CHAT.slo) > 0.9
    for budget in (256, 512, 1024):
        assert attainment(served(f"1S tp1 b{budget}", rate, requests=2000), CHAT.slo) < 0.89
