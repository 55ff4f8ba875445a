"""The deployments that are compared: drawn by a seed over everything that a user can vary."""

import dataclasses
import os
from pathlib import Path

import numpy as np

from fluidserve.io.catalog import find_gpu, find_model
from fluidserve.io.trace import trace_workload
from fluidserve.io.traces import read_trace
from fluidserve.problem import Problem, engine_for
from fluidserve.search.grid import Shape, fitting_shapes
from fluidserve.specs.applications import find_application, synthetic_workload
from fluidserve.specs.deployment import Deployment, Disaggregated, Dispatch, Pool, parse_label
from fluidserve.specs.slo import Slo
from fluidserve.specs.workload import Workload
from fluidserve.timing.kv import tokens_held
from fluidserve.timing.profile import load_profile

PAPER_GPU = "A100-SXM4-80GB"
MODELS = {
    "judge": ("OPT-13B", "OPT-66B", "Llama-3.1-70B", "Mixtral-8x7B", "Qwen2.5-14B"),
    "tune": ("OPT-30B", "Llama-2-13B", "Llama-3.1-8B", "Qwen3-32B", "OPT-175B"),
}
TRAFFIC = {
    "judge": ("chatbot", "code-completion", "summarization", "azure2023_conv", "3000/300/0.8/0.9"),
    "tune": ("600/150/0.8/0.9", "300/120/0.5/0.7", "1024/256/0.6/0.8", "4000/500/0/0",
             "azure2023_code"),
}  # fmt: skip
GPUS = ("A100-SXM4-80GB", "H100-SXM", "H200-SXM", "B200", "MI300X")
LINKS = (None, None, 25e9 / 8, 100e9 / 8, 400e9 / 8, np.inf)
RULES: tuple[Dispatch, ...] = ("shared", "shared", "shared", "jsq", "round-robin", "random")
QUESTIONS = (
    ("OPT-13B", "chatbot", 0.25, 0.1),
    ("OPT-66B", "chatbot", 2.5, 0.15),
    ("OPT-175B", "chatbot", 4.0, 0.2),
    ("OPT-66B", "code-completion", 0.125, 0.2),
    ("OPT-66B", "summarization", 15.0, 0.15),
)
"""Model, application, and limits on TTFT and TPOT, s (Zhong et al., DistServe, table 1)."""
TOKEN_BUDGETS = (256, 512, 1024, 2048)
DRAWS = {"judge": 9, "tune": 3}
"""Deployments for each pair of a model and a workload."""
_SEEDS = {"judge": 20261130, "tune": 77}
_LARGEST_INSTANCE = 16
_MOST_INSTANCES = 8
_MOST_GPUS = 96
_FLAT = 0.5
_ATTEMPTS = 40


@dataclasses.dataclass(frozen=True)
class Case:
    """One deployment and the question that it is judged by; times in s, bandwidth in B/s."""

    model: str
    gpu: str
    profile: str
    traffic: str
    label: str
    ttft: float
    tpot: float
    link: float | None
    dispatch: Dispatch

    @property
    def kind(self) -> str:
        """Kind of the deployment."""
        return self.deployment.kind

    @property
    def deployment(self) -> Deployment:
        """What is deployed."""
        return parse_label(self.label, gpu=self.gpu)


def workload_of(traffic: str) -> Workload:
    """An application, ``isl/osl/isl_cv/osl_cv``, or a trace's lengths with Poisson arrivals."""
    if "/" in traffic:
        isl, osl, isl_cv, osl_cv = (float(x) for x in traffic.split("/"))
        return synthetic_workload(isl, osl, isl_cv=isl_cv, osl_cv=osl_cv)
    if traffic.startswith("azure2023"):
        folder = Path(os.environ["FLUIDSERVE_DATA"]) / "data" / "traces"
        trace = trace_workload(read_trace(folder / f"{traffic}.csv.gz"), traffic)
        return dataclasses.replace(trace, arrivals=np.empty(0), arrival_scv=1.0, dispersion=1.0)
    return find_application(traffic)


def problem_of(case: Case) -> Problem:
    """The question of a case."""
    gpu = find_gpu(case.gpu)
    return Problem(
        model=find_model(case.model),
        gpu=gpu,
        workload=workload_of(case.traffic),
        slo=Slo(ttft=case.ttft, tpot=case.tpot, attainment=0.9),
        engine=engine_for(
            load_profile(case.profile), gpu, link_bandwidth=case.link, dispatch=case.dispatch
        ),
    )


def draw_cases(which: str) -> list[Case]:
    """All cases of a set, the same ones every time."""
    if which == "kinds":
        return _cases_of_kinds()
    cases = []
    for i, model in enumerate(MODELS[which]):
        for j, traffic in enumerate(TRAFFIC[which]):
            rng = np.random.default_rng([_SEEDS[which], i, j])
            cases += [_draw(model, traffic, rng) for _ in range(DRAWS[which])]
    return cases


def _cases_of_kinds() -> list[Case]:
    """Colocated and chunked deployments of DistServe's five questions, tp 1 to 8.

    One instance and a drawn number of them, limits as they are and loosened or tightened by up to
    a third.
    """
    rng, cases = np.random.default_rng(20261201), []
    for model, traffic, ttft, tpot in QUESTIONS:
        bare = Case(model, PAPER_GPU, "paper", traffic, "", ttft, tpot, np.inf, "shared")
        shapes = [s for s in fitting_shapes(problem_of(bare), 9)[0] if s.pp == 1]
        for shape in shapes:
            labels = [f"C tp{shape.tp}", *(f"S tp{shape.tp} b{b}" for b in TOKEN_BUDGETS)]
            for label in labels:
                replicas = int(rng.choice((1, 1, 2, 4)))
                scale = float(np.exp(rng.uniform(-0.3, 0.3)))
                cases.append(
                    dataclasses.replace(
                        bare,
                        label=f"{replicas}{label}",
                        ttft=round(ttft * scale, 4),
                        tpot=round(tpot * scale, 5),
                    )
                )
    return cases


def _draw(model: str, traffic: str, rng: np.random.Generator) -> Case:
    """A deployment whose instances fit, with limits that it can meet when idle."""
    for _ in range(_ATTEMPTS):
        paper = model.startswith("OPT")
        case = Case(
            model=model,
            gpu=PAPER_GPU if paper else str(rng.choice(GPUS)),
            profile="paper" if paper else "default",
            traffic=traffic,
            label="",
            ttft=np.inf,
            tpot=np.inf,
            link=LINKS[rng.integers(len(LINKS))],
            dispatch=RULES[rng.integers(len(RULES))],
        )
        problem = problem_of(case)
        shapes, _ = fitting_shapes(problem, _LARGEST_INSTANCE + 1)
        if not shapes:
            continue
        deployment = _deployment(shapes, case.gpu, rng)
        if deployment.gpus > _MOST_GPUS:
            continue
        ttft, tpot = _unloaded(problem, deployment)
        # from limits that a busy hour would break to ones that only saturation breaks
        case = dataclasses.replace(
            case,
            label=deployment.label,
            ttft=round(ttft * float(np.exp(rng.uniform(np.log(1.2), np.log(12.0)))), 4),
            tpot=round(tpot * float(np.exp(rng.uniform(np.log(1.1), np.log(3.0)))), 5),
        )
        return case
    raise RuntimeError(f"no deployment of {model} was found in {_ATTEMPTS} attempts")


def _deployment(shapes: list[Shape], gpu: str, rng: np.random.Generator) -> Disaggregated:
    def pool() -> Pool:
        flat = [s for s in shapes if s.pp == 1]
        among = flat if flat and rng.random() < _FLAT else shapes
        shape = among[rng.integers(len(among))]
        replicas = int(np.exp(rng.uniform(0.0, np.log(_MOST_INSTANCES + 1.0))))
        return Pool(replicas=replicas, tp=shape.tp, pp=shape.pp, gpu=gpu)

    return Disaggregated(prefill=pool(), decode=pool())


def _unloaded(problem: Problem, deployment: Disaggregated) -> tuple[float, float]:
    """TTFT and TPOT of a prompt at the 90th percentile without traffic, s, from step times alone.

    The formulas under test have no part in it, so that mending them draws the same cases.
    """
    system, bins = problem.system(deployment), problem.bins
    long = int(np.searchsorted(np.cumsum(bins.in_share), 0.9))
    n_in, gap = float(bins.in_mean[long]), float(np.sum(bins.out_share * bins.gap_mean))
    passing = float(system.prefill.prefill_time(n_in)) * float(system.prefill.pp)
    moved = tokens_held(system.kv, n_in) * system.kv_bytes_per_token / system.link_bandwidth
    handover = float(moved + system.handover_overhead)
    context = n_in + 0.5 * gap
    windowed = context if system.decode.kv is None else min(context, system.decode.kv.window)
    step = float(system.decode.decode_time(1.0, context, windowed)) * float(system.decode.pp)
    if system.first_token == "decode":
        return passing + handover + step, step
    return passing, step + handover / max(gap, 1.0)
