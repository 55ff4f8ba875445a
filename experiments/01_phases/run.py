"""The two phases of a request, and why throughput is not goodput.

``python -m experiments.01_phases.run`` puts numbers into the README beside this file and draws its
pictures: OPT-13B on one A100, profile `paper`. With FLUIDSERVE_DATA set it also compares with
Splitwise's measurements of Llama-2-70B.
"""

import csv
import dataclasses
import os
from pathlib import Path

import numpy as np

from experiments.lecture import A100, chat, comparison, markdown, save_picture, write_blocks
from fluidserve.eventsim import attainment, simulate, simulate_first
from fluidserve.io.catalog import find_gpu, find_model
from fluidserve.problem import Problem, engine_for
from fluidserve.report.plots.figure import new_figure
from fluidserve.report.plots.panels import BLUE, GREEN, GREY, ORANGE, RED
from fluidserve.search.plan import analyse, at_rates
from fluidserve.specs.deployment import parse_label
from fluidserve.timing.instance import Instance
from fluidserve.timing.intensity import arithmetic_intensity, compute_bound_length, ridge_point
from fluidserve.timing.kv import prompt_work
from fluidserve.timing.model import Work, decode_work
from fluidserve.timing.profile import load_profile
from fluidserve.timing.request import end_to_end_latency
from fluidserve.timing.saturation import saturation_length

HERE = Path(__file__).parent
CHAT = chat()
MODEL = CHAT.model
CONTEXT = 512
PROMPTS = tuple(2**i for i in range(5, 14))
BATCHES = (1, 8, 32, 64, 128, 256)
RATES = tuple(range(1, 9))
FIRST, RUNS, LONG = 500, 20, 20_000
SPLITWISE = (("a100-80gb", "A100-SXM4-80GB"), ("h100-80gb", "H100-SXM"))
COLOCATED = "1C tp1"


def prefill(instance: Instance, tokens: float) -> float:
    """Time of a prompt on an idle instance, s."""
    return float(instance.pp * instance.prefill_time(float(tokens)))


def step(instance: Instance, batch: float, context: float = CONTEXT) -> float:
    """Time of a decode step, s."""
    total = float(batch) * context
    return float(instance.pp * instance.decode_time(float(batch), total, total))


def intensity(work: Work) -> float:
    """FLOP per byte of a pass of OPT-13B."""
    return float(arithmetic_intensity(MODEL, work))


@dataclasses.dataclass(frozen=True)
class Served:
    """The first requests into an empty instance, and steady state, at `RATES`.

    Attributes:
      throughput: requests finished per second between the 101st and the 401st, 1/s.
      met: share of the first requests within both limits.
      behind: the same without the first tenth of them, which meet an empty instance.
      long: share of `LONG` requests, without the first tenth.
      fine: rates of `formulas`, 1/s.
      formulas: share in steady state by the formulas.
    """

    throughput: np.ndarray
    met: np.ndarray
    behind: np.ndarray
    long: np.ndarray
    fine: np.ndarray
    formulas: np.ndarray


def serve() -> Served:
    """Serves chat on one colocated instance."""
    deployment = parse_label(COLOCATED, gpu=A100.name)
    system = CHAT.system(deployment)
    throughput, met, behind, long = [], [], [], []
    for rate in RATES:
        runs = simulate_first(system, CHAT.workload, rate, horizon=FIRST, runs=RUNS)
        ends = [np.sort(r.last_token) for r in runs]
        throughput.append(np.mean([300 / (t[400] - t[100]) for t in ends]))
        met.append(np.mean([attainment(r, CHAT.slo) for r in runs]))
        behind.append(np.mean([attainment(r.window(), CHAT.slo) for r in runs]))
        many = simulate(system, CHAT.workload, rate, requests=LONG, seed=0).window()
        long.append(attainment(many, CHAT.slo))
    row = analyse(CHAT, deployment, None)
    fine = np.linspace(RATES[0], RATES[-1], 8 * (len(RATES) - 1) + 1)
    found = at_rates(CHAT, row, fine).asked.attainment
    return Served(*map(np.asarray, (throughput, met, behind, long, fine, found)))


def rows_of(one: Instance, served: Served) -> dict[str, float | str]:
    """Our numbers for the lecture's rows on the phases."""
    alone, many = step(one, 1), step(one, 128)
    cliff = (
        f"{served.throughput[-1]:.1f} request/s at rate {RATES[-1]}, {served.met[-1]:.0%} in time; "
        f"{served.behind[-1]:.0%} without the first tenth"
    )
    return {
        "ridge-a100": ridge_point(A100),
        "prefill-compute-bound": compute_bound_length(MODEL, A100),
        "prefill-saturation": saturation_length(one),
        "l-m": f"{saturation_length(one)}",
        "decode-b1": alone,
        "decode-b1-tput": 1 / alone,
        "decode-b1-vs-prefill": prefill(one, 2048) / 2048 / alone,
        "decode-b128-tput": 128 * alone / many,
        "decode-b128-step": many / alone,
        "decode-intensity": intensity(decode_work(256.0, 256.0 * CONTEXT)),
        "kv-per-token-opt13b": MODEL.kv_bytes_per_token / 2**10,
        "kv-capacity": float(one.kv_capacity),
        "kv-max-batch": float(one.kv_capacity) // CONTEXT,
        "idle-ttft-chat": prefill(one, 755),
        "e2e-chat": float(end_to_end_latency(0.104, 0.0307, 200)),
        "coloc-cliff": cliff,
    }


def phase_tables(one: Instance) -> tuple[str, str]:
    """Prefill over the prompt, and decode over the batch."""
    prompts = [
        [
            f"{n:,}",
            f"{1e3 * prefill(one, n):.1f} ms",
            f"{n / prefill(one, n):,.0f}",
            f"{intensity(prompt_work(MODEL, float(n))):.0f}",
        ]
        for n in PROMPTS
    ]
    batches = [
        [
            f"{b}",
            f"{1e3 * step(one, b):.1f} ms",
            f"{b / step(one, b):,.0f}",
            f"{intensity(decode_work(float(b), float(b * CONTEXT))):.1f}",
            "yes" if b * CONTEXT <= float(one.kv_capacity) else "no",
        ]
        for b in BATCHES
    ]
    return (
        markdown(["prompt", "prefill", "tokens/s", "FLOP/B"], prompts),
        markdown(["batch", "step", "tokens/s", "FLOP/B", "fits into memory"], batches),
    )


def goodput_table(served: Served) -> str:
    """Throughput and what of it is in time."""
    lines = [
        [rate, f"{t:.2f}", f"{m:.0%}", f"{t * m:.2f}", f"{long:.0%}", f"{f:.0%}"]
        for rate, t, m, long, f in zip(
            RATES, served.throughput, served.met, served.long,
            served.formulas[np.isin(served.fine, RATES)], strict=True,
        )
    ]  # fmt: skip
    header = ["arrivals /s", "finished /s", "in time", "in time /s"]
    return markdown([*header, f"{LONG:,} requests, simulated", "steady state, formulas"], lines)


def splitwise(folder: Path) -> str:
    """Ratios that Splitwise measured for Llama-2-70B on eight GPUs beside ours."""
    with (folder / "data" / "simulators" / "splitwise_measured.csv").open() as file:
        lines = [r for r in csv.DictReader(file) if r["model"] == "llama2-70b"]
    table = []
    for theirs, name in SPLITWISE:
        seen = {
            (int(r["prompt_size"]), int(r["batch_size"])): r
            for r in lines
            if (r["hardware"], r["tensor_parallel"], r["token_size"]) == (theirs, "8", "128")
        }
        prompts = {n: float(seen[n, 1]["prompt_ms"]) for n in (512, 2048, 8192)}
        steps = {b: float(seen[512, b]["token_ms"]) for b in (1, 8, 64)}
        table.append([name, "measured", *_ratios(prompts, steps)])
        for profile in ("paper", "vllm-0.2"):
            one = _llama(name, profile).instance(8, 1)
            prompts = {n: prefill(one, n) for n in prompts}
            steps = {b: step(one, b, CONTEXT + 64) for b in steps}
            table.append([name, f"`{profile}`", *_ratios(prompts, steps)])
    header = ["prefill tokens/s, 512 over 2,048", "8,192 over 2,048"]
    header += ["decode step, batch 8 over 1", "64 over 1", "decode tokens/s, 64 over 1"]
    return markdown(["GPU", "by", *header], table)


def _llama(gpu_name: str, profile: str) -> Problem:
    gpu = find_gpu(gpu_name)
    engine = engine_for(load_profile(profile), gpu)
    return dataclasses.replace(CHAT, model=find_model("Llama-2-70B"), gpu=gpu, engine=engine)


def _ratios(prompts: dict[int, float], steps: dict[int, float]) -> list[str]:
    speed = {n: n / t for n, t in prompts.items()}
    found = [speed[512] / speed[2048], speed[8192] / speed[2048]]
    found += [steps[8] / steps[1], steps[64] / steps[1], 64 * steps[1] / steps[64]]
    return [f"{x:.2f}" for x in found]


def draw_phases(one: Instance) -> None:
    """Roofline, prefill over the prompt, decode over the batch."""
    figure, axes = new_figure(3, rows=1)
    peak, bandwidth = float(A100.flop_rate(MODEL.compute_dtype)), float(A100.bandwidth)
    roof, speed, decode = axes[0]
    x = np.geomspace(0.5, 2e4, 200)
    roof.loglog(x, np.minimum(peak, bandwidth * x) / 1e12, color="0.2")
    passes = {
        ("prompt, tokens", BLUE): [
            (prompt_work(MODEL, float(n)), prefill(one, n), n) for n in (16, *PROMPTS)
        ],
        ("decode batch, context 512", GREEN): [
            (decode_work(float(b), float(b * CONTEXT)), step(one, b), b) for b in BATCHES
        ],
    }
    for (name, colour), points in passes.items():
        flop = [_flop(work) / seconds / 1e12 for work, seconds, _ in points]
        roof.plot([intensity(w) for w, _, _ in points], flop, "o-", ms=4, color=colour, label=name)
        for i in (0, -1):
            text, at = f"{points[i][2]:,}", (intensity(points[i][0]), flop[i])
            place = (4, -12) if colour == BLUE or i == 0 else (-18, 8)
            roof.annotate(text, at, textcoords="offset points", xytext=place, fontsize=8)
    roof.axvline(ridge_point(A100), color=GREY, ls=":", lw=1, label="ridge")
    roof.set(xlabel="FLOP per byte", ylabel="TFLOP/s", title="What a pass achieves, under the roof")
    roof.legend(fontsize=8, loc="lower right")

    n = np.geomspace(16, PROMPTS[-1], 100)
    speed.semilogx(n, [t / prefill(one, t) / 1e3 for t in n], color=BLUE)
    speed.set_xticks(ticks := [2**i for i in range(4, 14, 2)], [f"{t:,}" for t in ticks])
    speed.minorticks_off()
    marks = ((compute_bound_length(MODEL, A100), "compute bound", GREY),)
    for at, name, colour in (*marks, (saturation_length(one), "$L_m$: 90% of the most", ORANGE)):
        speed.axvline(at, color=colour, ls="--", lw=1, label=f"{name}, {at:,} tokens")
    speed.set(xlabel="prompt, tokens", ylabel="thousand tokens/s", title="Prefill of one prompt")
    speed.set_ylim(0, 9.5)
    speed.legend(fontsize=8, loc="upper left")

    b = range(1, 257)
    most = float(one.kv_capacity) // CONTEXT
    decode.plot(b, [k / step(one, k) / 1e3 for k in b], color=GREEN, label="tokens/s")
    decode.axvline(most, color=RED, ls="--", lw=1, label=f"memory is full, {most:.0f} requests")
    decode.set(
        xlabel="decode batch", ylabel="thousand tokens/s", title=f"Decode at {CONTEXT} tokens each"
    )
    other = decode.twinx()
    other.plot(b, [1e3 * step(one, k) for k in b], color=ORANGE, label="step")
    other.set_ylabel("step, ms")
    for side in (decode, other):
        side.set_ylim(bottom=0)
    lines = [*decode.get_lines(), *other.get_lines()]
    decode.legend(lines, [line.get_label() for line in lines], fontsize=8, loc="lower right")
    save_picture(figure, HERE / "phases.png")


def _flop(work: Work) -> float:
    return float(MODEL.flop_per_token * work.new + MODEL.attention_flop * work.attended)


def draw_goodput(served: Served) -> None:
    """Throughput rises while what is in time falls."""
    figure, axes = new_figure(2, rows=1)
    rate, share = axes[0]
    rate.plot(RATES, served.throughput, "o-", ms=4, color=BLUE, label="finished")
    rate.plot(
        RATES, served.throughput * served.met, "o-", ms=4, color=ORANGE, label="finished in time"
    )
    rate.plot(RATES, RATES, color=GREY, ls=":", lw=1, label="arriving")
    rate.set(ylabel="requests/s", title=f"First {FIRST} requests", ylim=(0, 8.2))
    share.plot(RATES, 100 * served.met, "o-", ms=4, color=ORANGE, label=f"first {FIRST} requests")
    share.plot(RATES, 100 * served.long, "o", ms=4, color=GREEN, label=f"{LONG:,} requests")
    share.plot(served.fine, 100 * served.formulas, color=BLUE, label="steady state, formulas")
    share.axhline(90, color=RED, ls="--", lw=1, label="SLO: 90%")
    share.set(ylabel="requests within both limits, %", title="Attainment", ylim=(0, 103))
    for ax in (rate, share):
        ax.set_xlabel("arrivals, requests/s")
        ax.legend(fontsize=8)
    save_picture(figure, HERE / "goodput.png")


def main() -> None:
    """Writes the README's numbers and draws the pictures."""
    one = CHAT.instance(1, 1)
    served = serve()
    goodput = analyse(CHAT, parse_label(COLOCATED, gpu=A100.name), None).goodput
    prompts, batches = phase_tables(one)
    full = float(one.kv_capacity) // CONTEXT
    reached = intensity(decode_work(full, full * CONTEXT))
    claim = (
        f"A prompt of {saturation_length(one):,} tokens fills an A100. One decoding request makes "
        f"{prefill(one, 2048) / 2048 / step(one, 1):.1%} of the tokens per second that prefill "
        f"reads, and {full:.0f} of them, all that memory holds, ask for {reached:.0f} FLOP/B where "
        f"the ridge is at {ridge_point(A100):.0f}. An instance offered {RATES[-1]} requests/s "
        f"finishes {served.throughput[-1]:.1f} and keeps its promise to {served.met[-1]:.0%} of "
        f"them; its goodput is {goodput:.2f}."
    )
    blocks = {
        "claim": claim,
        "rows": comparison(rows_of(one, served)),
        "prefill": prompts,
        "decode": batches,
        "goodput": goodput_table(served),
    }
    if folder := os.environ.get("FLUIDSERVE_DATA"):
        blocks["splitwise"] = splitwise(Path(folder))
    write_blocks(HERE, blocks)
    draw_phases(one)
    draw_goodput(served)


if __name__ == "__main__":
    main()
