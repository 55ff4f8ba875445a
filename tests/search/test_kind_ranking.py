"""Which kind of deployment wins must not depend on who is asked: a plan or the event simulator."""

import itertools

import pytest
from analysis_helpers import make_problem

from fluidserve.eventsim import goodput
from fluidserve.search.plan import plan

CLEAR = 0.05
"""Differences between kinds, as a share, that both must order alike."""
QUESTIONS = {
    "chat": dict(ttft=0.25, tpot=0.1),
    "chat, tight tokens": dict(ttft=0.5, tpot=0.04),
    "chat, patient": dict(ttft=4.0, tpot=0.2),
    "code": dict(model="OPT-66B", workload="code-completion", ttft=0.25, tpot=0.2),
    "summaries": dict(model="OPT-66B", workload="summarization", ttft=15.0, tpot=0.15),
}


def ordered_alike(problem, budget, requests):
    """Pairs of kinds, by their best deployments, that differ clearly when simulated."""
    best = plan(problem, budget=budget, token_budgets=(512, 2048)).best_of_kind
    served = {}
    for kind, row in best.items():
        found = goodput(
            problem.system(row.deployment),
            problem.workload,
            problem.slo,
            guess=row.goodput,
            requests=requests,
            seeds=range(2),
        )
        served[kind] = found.value / row.gpus
    clear = []
    for one, other in itertools.combinations(best, 2):
        low, high = sorted((served[one], served[other]))
        if high > low * (1.0 + CLEAR):
            planned = best[one].goodput_per_gpu > best[other].goodput_per_gpu
            clear.append(planned == (served[one] > served[other]))
    return clear


def test_a_plan_orders_kinds_as_the_simulator_does():
    clear = ordered_alike(make_problem(**QUESTIONS["chat"]), 4, 4000)
    assert clear
    assert all(clear)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("budget", [8, 16])
def test_so_it_is_for_other_questions_and_budgets(name, budget):
    clear = ordered_alike(make_problem(**QUESTIONS[name]), budget, 6000)
    assert all(clear)
