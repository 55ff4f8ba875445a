"""What must hold of any deployment: more is not less, units do not matter, physics is a floor.

Deployments are drawn from the catalog. All variants of one are evaluated together, and every
example has the same shapes, so that nothing compiles twice.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from analysis_helpers import quick_jit
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fluidserve.deploy.disaggregated import evaluate, largest_rate, prepare
from fluidserve.goodput import largest_meeting
from fluidserve.io.catalog import find_gpu, find_model, gpu_names, model_names
from fluidserve.search.score import as_arrays
from fluidserve.specs.applications import synthetic_workload
from fluidserve.specs.lengths import length_bins
from fluidserve.specs.slo import Slo
from fluidserve.timing.instance import System, build_instance
from fluidserve.timing.kv import kv_shape, token_bytes
from fluidserve.timing.profile import load_profile

WITHOUT_WINDOWS = [name for name in model_names() if kv_shape(find_model(name)) is None]
SMOOTH = 2e-4
"""What the search for the root leaves open, where attainment jumps."""
BUSY_LINK = 0.6
DOCUMENTED = {
    "prefill instances": (0.01, 0.1),
    "decode instances": (1e-3, SMOOTH),
    "peak": (0.01, 0.1),
    "bandwidth": (0.01, 0.1),
}
"""How far goodput may fall by the formulas, with a calm and with a busy link (docs/accuracy.md)."""

profile_of = functools.cache(load_profile)


@quick_jit
def goodput_and_link_load(system, bins, slo, arrival_scv):
    plan = prepare(system, bins, arrival_scv)
    limits = largest_rate(plan)
    upper = functools.reduce(jnp.minimum, limits)
    found = largest_meeting(lambda r: evaluate(plan, slo, r).attainment, slo.attainment, upper)
    return found, found / limits[1]


def logs(low, high):
    """Numbers whose logarithm is uniform."""
    return st.floats(np.log(low), np.log(high)).map(lambda x: float(np.exp(x)))


@dataclasses.dataclass(frozen=True)
class Question:
    """A deployment and what is asked of it; ``changed`` multiplies or replaces some of it."""

    profile: str
    model: str
    gpu: str
    prefill: tuple[int, int]
    decode: tuple[int, int]
    n_prefill: int
    n_decode: int
    max_batch: int
    link: float
    ttft: float
    tpot: float
    attainment: float
    arrival_scv: float
    prompt: float
    output: float
    cv_prompt: float
    cv_output: float

    def bins(self, prompt=1.0, output=1.0):
        lengths = synthetic_workload(
            self.prompt * prompt, self.output * output, self.cv_prompt, self.cv_output
        ).lengths
        return length_bins(lengths)

    def instance(self, shape, bandwidth=1.0, peak=1.0, unit=1.0):
        gpu = find_gpu(self.gpu)
        gpu = dataclasses.replace(
            gpu,
            bandwidth=gpu.bandwidth * bandwidth,
            flop_rate_16=gpu.flop_rate_16 * peak,
            flop_rate_8=gpu.flop_rate_8 * peak,
        )
        build = dict(tp=shape[0], pp=shape[1], profile=profile_of(self.profile), utilization=0.9)
        return slowed(build_instance(find_model(self.model), gpu, **build), unit)

    def variant(self, *, more=(0, 0), link=1.0, ttft=1.0, tpot=1.0, unit=1.0, **hardware):
        """System and promise; `unit` multiplies every time."""
        system = System(
            prefill=self.instance(self.prefill, unit=unit, **hardware),
            decode=self.instance(self.decode, unit=unit, **hardware),
            n_prefill=float(self.n_prefill + more[0]),
            n_decode=float(self.n_decode + more[1]),
            kv_bytes_per_token=token_bytes(find_model(self.model)),
            link_bandwidth=self.link * link / unit,
            handover_overhead=5e-4 * unit,
            max_batch=float(self.max_batch),
            first_token=profile_of(self.profile).first_token,
        )
        limits = dict(ttft=self.ttft * ttft * unit, tpot=self.tpot * tpot * unit)
        return system, Slo(attainment=self.attainment, **limits)


def slowed(instance, unit):
    """The instance with all its times multiplied."""
    pure = ("gemm_norm", "host_norm", "expert_miss", "token_offset")
    times = {k: v * unit for k, v in vars(instance.times).items() if k not in pure}
    return dataclasses.replace(instance, times=dataclasses.replace(instance.times, **times))


@st.composite
def questions(draw, profile, links):
    pick, variabilities = st.sampled_from, st.sampled_from([0.0, 0.5, 1.0, 2.0])
    shapes = st.tuples(pick([1, 2, 4, 8]), pick([1, 1, 2, 4]))
    asked = Question(
        profile=profile,
        model=draw(pick(WITHOUT_WINDOWS)),
        gpu=draw(pick(gpu_names())),
        prefill=draw(shapes),
        decode=draw(shapes),
        n_prefill=draw(st.integers(1, 12)),
        n_decode=draw(st.integers(1, 12)),
        max_batch=int(draw(logs(3, 1024))),
        link=draw(links),
        ttft=draw(logs(0.05, 20.0)),
        tpot=draw(logs(0.005, 0.5)),
        attainment=draw(pick([0.5, 0.9, 0.99])),
        arrival_scv=draw(pick([0.0, 0.3, 1.0, 4.0])),
        prompt=draw(logs(16, 30_000)),
        output=draw(logs(2, 3_000)),
        cv_prompt=draw(variabilities),
        cv_output=draw(variabilities),
    )
    assume(max(asked.prefill[0], asked.decode[0]) <= find_gpu(asked.gpu).gpus_per_node)
    room = min(asked.instance(shape).kv_capacity for shape in (asked.prefill, asked.decode))
    assume(room > asked.bins().longest)
    return asked


def goodputs(asked, factor, unit):
    """Goodput of the variants by name, and the load of the link, as asked and in each of them."""
    variants = {
        "as asked": asked.variant(),
        "prefill instances": asked.variant(more=(1, 0)),
        "decode instances": asked.variant(more=(0, 1)),
        "link": asked.variant(link=factor),
        "bandwidth": asked.variant(bandwidth=factor),
        "peak": asked.variant(peak=factor),
        "ttft": asked.variant(ttft=factor),
        "tpot": asked.variant(tpot=factor),
        "unit": asked.variant(unit=unit),
    }
    system, slo = as_arrays(jax.tree.map(lambda *x: np.asarray(x, float), *variants.values()))
    found, load = goodput_and_link_load(system, *as_arrays((asked.bins(), slo, asked.arrival_scv)))
    rates = dict(zip(variants, np.asarray(found), strict=True))
    for name, factors in (("prompt", (factor, 1.0)), ("output", (1.0, factor))):
        longer = as_arrays((asked.bins(*factors), slo, asked.arrival_scv))
        rates[name] = float(np.asarray(goodput_and_link_load(system, *longer)[0])[0])
    return rates, float(np.max(load))


def check(rates, load, unit, falls):
    """Every variant but those in `falls` serves at least what was asked for; those at most."""
    base = rates["as asked"]
    assert rates.pop("unit") * unit == pytest.approx(base, rel=1e-6)
    for name, rate in rates.items():
        if name in falls:
            assert rate <= base * (1.0 + SMOOTH), name
        elif name not in ("prompt", "output"):
            slack = DOCUMENTED.get(name, (SMOOTH, SMOOTH))[int(load > BUSY_LINK)]
            assert rate >= base * (1.0 - slack), name


FACTORS, UNITS = logs(1.01, 4.0), logs(0.1, 10.0)
LINKS = logs(1e8, 5e10)


@settings(deadline=None, max_examples=50, derandomize=True)
@given(asked=questions("default", LINKS), factor=FACTORS, unit=UNITS)
def test_more_is_not_less_where_decode_makes_the_first_token(asked, factor, unit):
    rates, load = goodputs(asked, factor, unit)
    check(rates, load, unit, falls=("prompt", "output"))


@settings(deadline=None, max_examples=50, derandomize=True)
@given(asked=questions("paper", st.just(np.inf)), factor=FACTORS, unit=UNITS)
def test_more_is_not_less_where_prefill_makes_the_first_token(asked, factor, unit):
    """Behind an infinite link; longer answers dilute what comes before them, so they are left out.

    With a link more prefill instances send prompts to it less evenly, and it is TPOT that waits.
    """
    rates, _ = goodputs(asked, factor, unit)
    check(rates, 0.0, unit, falls=("prompt",))


def floor(model, gpu, work, gpus):
    """What no kernel beats, s: FLOP at the full peak, bytes at the full bandwidth, on all GPUs.

    Of a mixture of experts only the experts of one token are read, and embeddings are not.
    """
    active = model.active_parameters - model.embedding_parameters - model.head_parameters
    flop = 2.0 * active * work.new + model.attention_flop * work.attended
    peak = max(gpu.flop_rate_16, gpu.flop_rate(model.weight_dtype))
    moved = active * model.weight_bytes / model.parameters
    moved += token_bytes(model) * (work.kv_read + work.new)
    return max(flop / peak, moved / gpu.bandwidth) / gpus


@settings(deadline=None, max_examples=400)
@given(
    profile=st.sampled_from(["default", "paper", "vllm-0.2"]),
    model=st.sampled_from(model_names()),
    gpu=st.sampled_from(gpu_names()),
    shape=st.tuples(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4])),
    tokens=logs(1, 1e5),
    batch=logs(1, 1e3),
)
def test_no_step_is_faster_than_its_roofline(profile, model, gpu, shape, tokens, batch):
    spec, device, (tp, pp) = find_model(model), find_gpu(gpu), shape
    assume({device.name.lower(), "*"} & profile_of(profile).constants.keys())
    instance = build_instance(
        spec, device, tp=tp, pp=pp, profile=profile_of(profile), utilization=0.9
    )
    inside = min(tokens, float(spec.window or spec.sparse_tokens or np.inf))
    works = (
        instance.prefill_work(tokens),
        instance.decode_work(batch, batch * tokens, batch * inside),
    )
    for work in works:
        least = floor(spec, device, work, tp * pp)
        assert pp * instance.times.stage_time(work) >= least
