"""Tables and a picture of the errors."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.accuracy.cases import Case
from benchmarks.accuracy.judge import LEVELS, SHARES
from fluidserve.results import DeploymentResult

CONFIDENCE = ("green", "amber", "red")
_UNCERTAIN = 0.05
"""Relative standard error of a simulated goodput beyond which a row says nothing."""
_COLOURS = {"green": "#2a9d4a", "amber": "#e39a17", "red": "#c0392b"}


@dataclasses.dataclass(frozen=True)
class Compared:
    """A case with its errors.

    Attributes:
      case: what was compared.
      confidence: of the formulas.
      reasons: why it is not green.
      binding: what keeps the goodput from being higher.
      goodput: by the formulas, 1/s.
      simulated: by the simulator, 1/s.
      se: standard error of that, 1/s.
      attainment: formulas minus simulation at each of `SHARES`.
      alone: goodput by the formulas alone, where a refining tier has its say besides, 1/s.
      latency: error of each quantile at each of `SHARES`, relative; by ``ttft p90`` and so on.
    """

    case: Case
    confidence: str
    reasons: tuple[str, ...]
    binding: str
    goodput: float
    simulated: float
    se: float
    attainment: tuple[float, ...]
    latency: dict[str, tuple[float, ...]]
    alone: float

    @property
    def error(self) -> float:
        """Goodput by the formulas over the simulated one, minus 1."""
        return self.goodput / self.simulated - 1.0 if self.simulated > 0 else np.nan


def compare(
    case: Case, row: DeploymentResult, points: list[DeploymentResult], simulated: dict
) -> Compared:
    """Puts formulas beside simulation."""
    latency = {}
    for name in ("ttft", "tpot"):
        for q in LEVELS:
            pairs = zip(points, simulated["points"], strict=True)
            latency[f"{name} p{q}"] = tuple(
                getattr(getattr(p, name), f"p{q}") / s[name][f"p{q}"] - 1.0 for p, s in pairs
            )
    pairs = zip(points, simulated["points"], strict=True)
    return Compared(
        case=case,
        confidence=row.confidence,
        reasons=row.reasons,
        binding=row.binding,
        goodput=row.goodput,
        simulated=simulated["goodput"],
        se=simulated["se"],
        attainment=tuple(p.attainment - s["attainment"] for p, s in pairs),
        latency=latency,
        alone=row.goodput / row.refined.factor if row.refined else row.goodput,
    )


def listing(rows: list[Compared]) -> str:
    """One line for each deployment."""
    lines = []
    for r in sorted(rows, key=lambda r: abs(r.error)):
        lines.append(
            f"{r.case.model:14} {r.case.gpu:15} {r.case.traffic:18} {r.case.label:24} "
            f"{r.case.dispatch:11} {r.goodput:9.3f} / {r.simulated:9.3f} ±{r.se:.3f} "
            f"{r.error:+7.1%} {r.confidence:6} {r.binding} {'; '.join(r.reasons)}"
        )
    return "\n".join(lines)


def tables(rows: list[Compared]) -> str:
    """Markdown: goodput by confidence and by what varies, attainment, latencies."""
    every = len(rows)
    rows = [r for r in rows if r.simulated > 0 and r.se <= _UNCERTAIN * r.simulated]
    trusted = [r for r in rows if r.confidence != "red"]
    if any(r.case.kind != "disaggregated" for r in rows):
        return "\n\n".join([_kinds_table(rows), *_of_kinds(rows), _latency_table(rows)])
    parts = [
        _goodput_table(
            "confidence",
            {level: [r for r in rows if r.confidence == level] for level in CONFIDENCE[:2]}
            | {"green and amber": trusted, "red": [r for r in rows if r.confidence == "red"]},
        ),
        _goodput_table("green and amber, by", _groups(trusted)),
        _attainment_table(rows),
        _latency_table(trusted),
    ]
    if every > len(rows):
        parts.append(
            f"Left out: {every - len(rows)} of {every} deployments, which meet the SLO at no rate "
            f"or whose simulated goodput has a standard error above {_UNCERTAIN:.0%}."
        )
    return "\n\n".join(parts)


def _kinds_table(rows: list[Compared]) -> str:
    """Goodput of formulas alone, and after the refining tier, by kind."""
    lines = [
        "| kind | how | deployments | median error | 90th percentile | worst | mean signed |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind in ("colocated", "chunked"):
        part = [r for r in rows if r.case.kind == kind]
        alone = np.array([r.alone / r.simulated - 1.0 for r in part])
        refined = np.array([r.error for r in part])
        for how, error in (("formulas alone", alone), ("refined", refined)):
            lines.append(
                f"| {kind} | {how} | {len(part)} | {_errors(error)} | {error.mean():+.1%} |"
            )
    return "\n".join(lines)


def _of_kinds(rows: list[Compared]) -> list[str]:
    """Refined goodput by what varies."""
    keys: dict[str, Callable[[Compared], str]] = {
        "question": lambda r: f"{r.case.model} {r.case.traffic}",
        "token budget": lambda r: r.case.label.partition(" b")[2] or "none (colocated)",
        "tp": lambda r: r.case.label.split()[1],
        "instances": lambda r: "one" if r.case.label.startswith("1") else "several",
        "confidence": lambda r: r.confidence,
    }
    return [
        _goodput_table(
            f"refined, by {name}",
            {value: [r for r in rows if key(r) == value] for value in sorted({*map(key, rows)})},
        )
        for name, key in keys.items()
    ]


def _groups(rows: list[Compared]) -> dict[str, list[Compared]]:
    """Rows by what varies between them."""
    keys: list[Callable[[Compared], str]] = [
        lambda r: r.case.model,
        lambda r: r.case.traffic,
        lambda r: r.case.gpu,
        lambda r: f"dispatch {r.case.dispatch}",
        lambda r: "pp > 1 in a pool" if "pp" in r.case.label else "pp = 1 in both pools",
        lambda r: "link 25-100 Gb/s" if (r.case.link or np.inf) < 13e9 else "faster link",
        lambda r: f"binding {r.binding}",
    ]
    found: dict[str, list[Compared]] = {}
    for key in keys:
        for name in sorted({key(r) for r in rows}):
            found[name] = [r for r in rows if key(r) == name]
    return found


def _goodput_table(first: str, groups: dict[str, list[Compared]]) -> str:
    lines = [
        f"| {first} | deployments | median error | 90th percentile | worst | mean signed |",
        "|---|---|---|---|---|---|",
    ]
    for name, part in groups.items():
        if part:
            error = np.array([r.error for r in part])
            lines.append(f"| {name} | {len(part)} | {_errors(error)} | {error.mean():+.1%} |")
    return "\n".join(lines)


def _errors(error: np.ndarray) -> str:
    size = np.abs(error)
    return f"{np.median(size):.1%} | {np.quantile(size, 0.9):.1%} | {size.max():.1%}"


def _attainment_table(rows: list[Compared]) -> str:
    lines = [
        "| attainment, points | load | within 2 points | median | 90th percentile | worst | mean "
        "signed |",
        "|---|---|---|---|---|---|---|",
    ]
    for level in CONFIDENCE:
        part = [r for r in rows if r.confidence == level]
        for i, share in enumerate(SHARES if part else ()):
            error = 100.0 * np.array([r.attainment[i] for r in part])
            size = np.abs(error)
            lines.append(
                f"| {level} | {share:.0%} of goodput | {np.mean(size <= 2.0):.0%} | "
                f"{np.median(size):.2f} | {np.quantile(size, 0.9):.2f} | {size.max():.2f} | "
                f"{error.mean():+.2f} |"
            )
    return "\n".join(lines)


def _latency_table(rows: list[Compared]) -> str:
    lines = [
        "| latency, green and amber | load | median error | 90th percentile | worst "
        "| mean signed |",
        "|---|---|---|---|---|---|",
    ]
    for name in rows[0].latency if rows else ():
        for i, share in enumerate(SHARES):
            error = np.array([r.latency[name][i] for r in rows])
            error = error[np.isfinite(error)]
            kind, level = name.split()
            lines.append(
                f"| {kind.upper()} {level.upper()} | {share:.0%} | {_errors(error)} | "
                f"{error.mean():+.1%} |"
            )
    return "\n".join(lines)


def scatter(rows: list[Compared], path: Path) -> None:
    """Goodput by the formulas over the simulated one, and their ratio."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.6), constrained_layout=True)
    for level in reversed(CONFIDENCE):
        part = [
            r
            for r in rows
            if r.confidence == level
            and min(r.simulated, r.goodput) > 0
            and r.se <= _UNCERTAIN * r.simulated
        ]
        x = np.array([r.simulated for r in part])
        y = np.array([r.goodput for r in part])
        label = f"{level} ({len(part)})"
        left.loglog(x, y, "o", ms=4, alpha=0.7, color=_COLOURS[level], label=label)
        right.semilogx(x, 100.0 * (y / x - 1.0), "o", ms=4, alpha=0.7, color=_COLOURS[level])
    ends = np.array(left.get_xlim())
    left.loglog(ends, ends, color="0.5", lw=0.8, zorder=0)
    right.axhline(0.0, color="0.5", lw=0.8, zorder=0)
    right.axhspan(-5.0, 5.0, color="0.9", zorder=0)
    left.set(xlabel="simulated goodput, requests/s", ylabel="goodput by the formulas, requests/s")
    right.set(xlabel="simulated goodput, requests/s", ylabel="formulas over simulation, %")
    left.legend(title="confidence")
    figure.savefig(path)
    pyplot.close(figure)
