"""What is measured inside one process: scores, tables, goodput, the event simulator."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.speed.cases import PROFILES, grid_for, problem_for, rows_of, single_stages
from benchmarks.speed.registry import Finding, Row, Throughput, measurement
from benchmarks.speed.timing import timed
from fluidserve.eventsim import simulate
from fluidserve.search.aggregated import aggregated_grid
from fluidserve.search.pairs import attainment_of_all, goodput_of_pairs
from fluidserve.search.rates import attain_grid
from fluidserve.search.score import question_of, score_grid
from fluidserve.search.tables import place_of, pools_of, tables_of
from fluidserve.specs.deployment import parse_label
from fluidserve.status import confidence_level

SCORES = 400_000
PAIRS_BUDGET = 390
GRID_BUDGET = 64
BUDGETS = (64, 128, 256)


def exponentials(count: int = 1_000_000) -> Throughput:
    """What the machine does: exponentials of NumPy in float32, one core."""
    x = np.linspace(-20.0, 0.0, count, dtype=np.float32)
    return Throughput("exponential of NumPy, float32", count, timed(lambda: np.exp(x)))


@measurement("scores")
def scores() -> Iterator[Row]:
    """Attainment and status at one rate, from scratch."""
    for profile, told in PROFILES.items():
        question, grid = question_of(problem_for(profile)), grid_for(profile, 128)
        for kind, some, aim in (
            ("tp only", single_stages(grid), 3e6),
            ("pp in the mix", grid, None),
        ):
            count = SCORES if aim else len(some)
            many = rows_of(some, np.resize(np.arange(len(some)), count))
            rates = np.random.default_rng(0).uniform(1.0, 60.0, count)
            time = timed(lambda q=question, g=many, r=rates: attain_grid(g, q, r))
            yield Throughput(f"score at a rate, from scratch, {kind}, {told}", count, time, aim)


@measurement("pairs")
def pairs() -> Iterator[Row]:
    """Attainment of all pairs of pools at a rate, through tables."""
    for profile, told in PROFILES.items():
        question, grid = question_of(problem_for(profile)), grid_for(profile, GRID_BUDGET)
        pools = pools_of(grid.shapes, PAIRS_BUDGET)
        count = len(pools.shape)
        built = timed(lambda q=question, g=grid, p=pools: tables_of(g, q, p), repeat=2)
        tables = tables_of(grid, question, pools)
        rate = jnp.asarray(20.0)
        time = timed(lambda t=tables, r=rate: attainment_of_all(t, r))
        yield Throughput(f"table of a pool, pp in the mix, {told}", count, built)
        yield Throughput(f"pair of pools at a rate, through tables, {told}", count**2, time, 50e6)


@measurement("goodput")
def goodput() -> Iterator[Row]:
    """Goodput searched from scratch and out of tables, and what tables are off."""
    for profile, told in PROFILES.items():
        question, grid = question_of(problem_for(profile)), grid_for(profile, GRID_BUDGET)
        pools = pools_of(grid.shapes, GRID_BUDGET)
        prefill = place_of(pools, grid.prefill, grid.n_prefill)
        decode = place_of(pools, grid.decode, grid.n_decode)
        tables = jax.block_until_ready(tables_of(grid, question, pools))
        time = timed(lambda t=tables, p=prefill, d=decode: goodput_of_pairs(t, p, d))
        yield Throughput(f"goodput through tables, {told}", len(grid), time, 1e5)
        exact = score_grid(grid, question)
        found = goodput_of_pairs(tables, prefill, decode)
        yield from _errors(told, found, exact.goodput, exact.doubts)


def _errors(told: str, found: np.ndarray, exact: np.ndarray, doubts: np.ndarray) -> Iterator[Row]:
    """How far goodput out of tables is from that of the formulas, by confidence."""
    red = np.array([confidence_level(int(d)) == "red" for d in doubts])
    both = (found > 0) & (exact > 0)
    for name, some in (("green and amber", both & ~red), ("red", both & red)):
        error = 100.0 * np.abs(found[some] / exact[some] - 1.0)
        if len(error):
            median, p99, worst = np.quantile(error, [0.5, 0.99, 1.0])
            value = f"{median:.4f} / {p99:.3f} / {worst:.2f} % of {len(error):,}"
            what = f"goodput through tables off by, median / P99 / worst, {name}, {told}"
            yield Finding(what, value)
    missed = int(((found > 0) != (exact > 0)).sum())
    yield Finding(f"zero by one way and not by the other, {told}", f"{missed} of {len(exact):,}")


@measurement("grids")
def grids() -> Iterator[Row]:
    """Whole grids scored exactly: goodput, what binds, doubts."""
    for profile, told in PROFILES.items():
        question, sizes, times = question_of(problem_for(profile)), [], []
        for budget in BUDGETS:
            grid = grid_for(profile, budget)
            repeat = 1 if budget == BUDGETS[-1] else 3
            time = timed(lambda q=question, g=grid: score_grid(g, q), repeat=repeat)
            sizes.append(len(grid))
            times.append(time.cpu)
            what = f"goodput and status from scratch, {budget} GPUs, {told}"
            yield Throughput(what, len(grid), time)
        slope = np.polyfit(np.log(sizes), np.log(times), 1)[0]
        yield Finding(f"slope of log CPU time over log candidates, {told}", f"{slope:.2f}")


@measurement("kinds")
def kinds() -> Iterator[Row]:
    """The same of whole grids of colocated and chunked candidates."""
    for profile, told in PROFILES.items():
        problem = problem_for(profile)
        question = question_of(problem)
        for kind in ("colocated", "chunked"):
            grid = aggregated_grid(problem, kind, BUDGETS[-1])
            time = timed(lambda q=question, g=grid: score_grid(g, q))
            what = f"goodput and status from scratch, {BUDGETS[-1]} GPUs, {kind}, {told}"
            yield Throughput(what, len(grid), time)


@measurement("simulator")
def simulator() -> Iterator[Row]:
    """Requests of the event simulator."""
    problem, requests = problem_for("paper"), 10_000
    system = problem.system(parse_label("4P1D tp2/tp4", gpu="H100-SXM"))
    work, rate = problem.workload, 20.0
    time = timed(lambda: simulate(system, work, rate, requests=requests, seed=0), repeat=2)
    yield Throughput("request of the event simulator, 4P1D tp2/tp4, chat", requests, time)
