"""Pictures: the numbers behind them, and files that are complete or not there."""

import dataclasses

import numpy as np
import pytest
from analysis_helpers import make_problem

from fluidserve.errors import InputError
from fluidserve.report.plots import points
from fluidserve.report.plots.figure import check_plot, plot_deployment, plot_plan
from fluidserve.search.plan import analyse, grids_of, plan
from fluidserve.specs.deployment import parse_label

PROBLEM = make_problem(link=25e9)
BUDGET = 4
GRIDS = list(grids_of(PROBLEM, BUDGET, token_budgets=(1024,)).values())


@pytest.fixture(scope="module")
def best():
    return plan(PROBLEM, budget=BUDGET, kinds=("disaggregated",)).deployments[0]


@pytest.fixture(autouse=True)
def short_runs(monkeypatch):
    monkeypatch.setattr("fluidserve.report.plots.figure.requests_for", lambda *_: 400)


def test_no_point_beats_the_front():
    trade = points.tradeoff(PROBLEM, GRIDS)
    front = points.pareto_front(trade.ttft, trade.throughput)
    for i in range(len(trade.ttft)):
        beaten = (trade.ttft[front] <= trade.ttft[i]) & (
            trade.throughput[front] >= trade.throughput[i]
        )
        assert beaten.any()
    assert (np.diff(trade.ttft[front]) >= 0).all()
    assert (np.diff(trade.throughput[front]) > 0).all()


def test_tradeoff_holds_the_best_of_the_plan(best):
    trade = points.tradeoff(PROBLEM, GRIDS)
    mine = [i for i, name in enumerate(trade.labels) if name == best.deployment.label]
    assert len(mine) == len(points.LOADS)
    assert trade.throughput[mine].max() == pytest.approx(best.goodput_per_gpu, rel=1e-5)
    assert trade.meets[mine].all()


def test_curve_crosses_the_target_at_the_goodput(best):
    line = points.curve(PROBLEM, best, best.goodput)
    at_goodput = np.interp(best.goodput, line.rate, line.attainment)
    assert at_goodput == pytest.approx(0.9, abs=0.02)
    assert line.attainment[0] > 0.99
    assert (np.diff(line.attainment) < 1e-4).all()


def test_simulated_points_lie_around_the_curve(best):
    runs = points.simulated_curve(PROBLEM, best.deployment, best.goodput, 3000)
    assert runs.attainment[0] > 0.99
    assert ((runs.low <= runs.attainment) & (runs.attainment <= runs.high)).all()
    below = runs.rate < 0.9 * best.goodput
    assert (runs.attainment[below] > 0.9).all()


@pytest.mark.parametrize("profile", ["paper", "default"])
def test_no_pass_is_above_the_roof(best, profile):
    problem = make_problem(profile=profile)
    gpu = problem.gpu
    found = points.roofline_points(problem, best.deployment, best.batch)
    assert {p.phase for p in found} == {"prefill", "decode"}
    for p in found:
        roof = min(gpu.flop_rate("float16"), gpu.bandwidth * p.intensity)
        assert 0 < p.achieved < roof


def test_typical_requests_have_the_quantiles_of_ttft(best):
    records = points.sample_run(PROBLEM, best.deployment, 0.8 * best.goodput, 2000)
    chosen = points.typical_requests(records)
    several = records.ttft[records.n_out > 1]
    for index, level in zip(chosen, (0.5, 0.9, 0.99), strict=True):
        assert np.mean(several < records.ttft[index]) == pytest.approx(level, abs=2e-3)


def test_files(best, tmp_path):
    png, svg = tmp_path / "a.png", tmp_path / "b.SVG"
    plot_plan(str(png), PROBLEM, GRIDS, best)
    plot_deployment(str(svg), PROBLEM, dataclasses.replace(best, goodput=0.0))
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text()[:2000]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.png", "b.SVG"]


def test_nothing_is_left_of_a_picture_that_failed(best, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("broken")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    with pytest.raises(RuntimeError):
        plot_deployment(str(tmp_path / "a.png"), PROBLEM, best)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a.pdf", "must end in .png or .svg"),
        ("a", "must end in .png or .svg"),
        ("missing/a.png", "there is no directory"),
    ],
)
def test_wrong_names_are_refused_at_once(tmp_path, name, said):
    with pytest.raises(InputError, match=said):
        check_plot(str(tmp_path / name))


def test_a_directory_is_no_picture(tmp_path):
    (tmp_path / "a.png").mkdir()
    with pytest.raises(InputError, match="not a regular file"):
        check_plot(str(tmp_path / "a.png"))


def test_simulated_points_of_a_horizon_are_those_of_the_first_requests(best):
    """Above capacity the first requests meet the SLO more often than those of a long run."""
    goodput = 1.3 * best.goodput
    steady = points.simulated_curve(PROBLEM, best.deployment, goodput, 3000)
    problem = dataclasses.replace(PROBLEM, horizon=100)
    first = points.simulated_curve(problem, best.deployment, goodput, 3000)
    assert first.attainment[-1] > steady.attainment[-1] + 0.1


def test_curves_show_the_percentile_of_the_limit(best):
    slo = dataclasses.replace(PROBLEM.slo, ttft_share=0.99)
    asked = points.curve(dataclasses.replace(PROBLEM, slo=slo), best, best.goodput)
    usual = points.curve(PROBLEM, best, best.goodput)
    assert (asked.ttft > usual.ttft).all()
    assert asked.tpot == pytest.approx(usual.tpot)


def test_curves_of_a_refined_row_meet_the_slo_at_its_goodput():
    """The rates of a curve are scaled as the goodput was."""
    row = analyse(PROBLEM, parse_label("1S tp2 b2048", gpu=PROBLEM.gpu.name), None)
    assert row.refined is not None
    line = points.curve(PROBLEM, row, row.goodput)
    at_goodput = np.interp(row.goodput, line.rate, line.attainment)
    assert at_goodput == pytest.approx(0.9, abs=0.01)
