"""Rows on goodput and on the split of GPUs, by the formulas and by the event simulator."""

import dataclasses

import numpy as np
import pytest
from lecture_rows import A100, OPT_13B, PROFILE, row

from fluidserve.deploy.ratio import best_split, pooled_goodput
from fluidserve.eventsim import goodput
from fluidserve.problem import Problem, engine_for
from fluidserve.search.grid import disaggregated_grid
from fluidserve.search.plan import plan
from fluidserve.search.score import question_of, score_grid
from fluidserve.specs.applications import find_application, synthetic_workload
from fluidserve.specs.deployment import parse_label
from fluidserve.specs.slo import Slo

FIGURE_1 = Slo(ttft=0.4, tpot=0.04, attainment=0.9)
CHAT = Slo(ttft=0.25, tpot=0.1, attainment=0.9)
MANY = 16
"""Instances of the other pool, so that one pool sets goodput by itself."""


def problem(workload, slo):
    engine = engine_for(PROFILE, A100, link_bandwidth=float("inf"))
    return Problem(model=OPT_13B, gpu=A100, workload=workload, slo=slo, engine=engine)


def figure_1():
    return problem(synthetic_workload(512, 64), FIGURE_1)


def analysed(question, label):
    deployment = parse_label(label, gpu=A100.name)
    grid = disaggregated_grid(question, deployment.gpus, only=deployment)
    return float(score_grid(grid, question_of(question)).goodput[0])


def simulated(question, label, *, guess, requests=4000, seeds=(0, 1)):
    system = question.system(parse_label(label, gpu=A100.name))
    found = goodput(
        system,
        question.workload,
        question.slo,
        guess=guess,
        requests=requests,
        seeds=seeds,
        tolerance=0.01,
    )
    return found.value


@pytest.mark.parametrize("way", [analysed, simulated])
@pytest.mark.parametrize(
    ("id", "label"),
    [
        ("prefill-only-goodput", f"1P{MANY}D tp1/tp1"),
        ("decode-only-goodput", f"{MANY}P1D tp1/tp1"),
        ("2p1d-goodput", "2P1D tp1/tp1"),
    ],
)
def test_goodput_of_pools(id, label, way):
    if way is simulated:
        assert simulated(figure_1(), label, guess=row(id).number) == row(id).expected
    else:
        assert analysed(figure_1(), label) == row(id).expected


SPLITS = [
    ("ratio-6gpu-short", figure_1()),
    ("ratio-6gpu-chat", problem(find_application("chatbot"), CHAT)),
]


def splits_of_six(question):
    labels = [f"{n}P{6 - n}D tp1/tp1" for n in range(1, 6)]
    return labels, np.array([analysed(question, label) for label in labels])


@pytest.mark.parametrize(("id", "question"), SPLITS)
def test_best_split_of_six_gpus(id, question):
    labels, rates = splits_of_six(question)
    assert labels[rates.argmax()].startswith(row(id).value)


@pytest.mark.parametrize(("id", "question"), SPLITS)
def test_best_split_of_six_gpus_simulated(id, question):
    labels, rates = splits_of_six(question)
    best = np.argsort(-rates)[:3]
    found = {
        labels[i]: simulated(question, labels[i], guess=rates[i], requests=3000, seeds=(0,))
        for i in best
    }
    assert max(found, key=found.get).startswith(row(id).value)


def test_split_by_rates_of_single_gpus():
    n, k = best_split(6.0, 15.0, most=16)
    assert f"{n}P{k}D" == row("xpyd-ex").value.split(",")[0]
    assert pooled_goodput(6.0, 15.0, n, k) / (n + k) == row("xpyd-ex").expected
    assert pooled_goodput(6.0, 15.0, 2, 1) / 3 == row("xpyd-ex-2p1d").expected
    assert pooled_goodput(6.0, 15.0, 3, 1) / 4 == row("xpyd-ex-3p1d").expected


def test_plan_prefers_the_split_of_the_lecture():
    """The search itself, not only single deployments, over splits of one GPU each."""
    question = figure_1()
    three = dataclasses.replace(question, gpu=dataclasses.replace(A100, gpus_per_node=1))
    best = plan(three, budget=3, kinds=("disaggregated",)).deployments[0]
    assert best.deployment.label.startswith("2P1D")
    assert best.goodput == row("2p1d-goodput").expected
