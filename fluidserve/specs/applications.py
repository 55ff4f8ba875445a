"""Traffic without a trace: applications, assumed or measured, and fixed or lognormal lengths."""

import difflib
import functools
import math
import re
import tomllib
from importlib import resources
from typing import Any

import numpy as np

from fluidserve.errors import InputError
from fluidserve.specs.tabulated import Tabulated, coupled
from fluidserve.specs.workload import IndependentLengths, JointLengths, Lognormal, Peak, Workload

LARGEST_LENGTH = 1e8
"""Prompts and outputs of this many tokens and more are taken for typing errors."""
LARGEST_CV = 10.0
"""Coefficients of variation beyond this are taken for typing errors."""


@functools.cache
def _catalog() -> dict[str, dict[str, Any]]:
    folder = resources.files("fluidserve.specs").joinpath("catalog")
    names = ("applications.toml", "measured_applications.toml")
    entries = [tomllib.loads(folder.joinpath(name).read_text()) for name in names]
    return {title: entry for catalog in entries for title, entry in catalog.items()}


def application_names() -> tuple[str, ...]:
    """Names of the applications that ship with the package, without their aliases."""
    return tuple(_catalog())


def find_application(name: str) -> Workload:
    """Looks an application up.

    Args:
      name: a name of `application_names` or an alias (the data set that stands for it); upper and
        lower case, ``_``, ``-`` and spaces make no difference.

    Returns:
      a workload named as in the catalog. One with assumed lengths is lognormal and Poisson and
      has no rate; one measured from a trace has its quantiles, its variability of arrivals, its
      mean rate and its peaks, and pairs of lengths that keep a coarse dependence.

    Raises:
      InputError: unknown name; the message gives the nearest one and the list.

    Source: means from DistServe (Zhong et al., OSDI 2024), figure 7; coefficients of variation and
      caps are assumed. Each number of ``catalog/applications.toml`` names its source, each table of
      ``catalog/measured_applications.toml`` its trace and licence.

    Example:
      >>> find_application("ShareGPT").name
      'chatbot'
    """
    known = {}
    for title, entry in _catalog().items():
        known |= {_key(spelling): title for spelling in (title, *entry["aliases"])}
    key = _key(name)
    if key not in known:
        close = difflib.get_close_matches(key, known, n=1)
        hint = f", did you mean {close[0]!r}?" if close else "."
        titles = ", ".join(f"{t} ({', '.join(e['aliases'])})" for t, e in _catalog().items())
        raise InputError(f"unknown application {name!r}{hint} Known: {titles}")
    title = known[key]
    entry = _catalog()[title]
    if "rate" in entry:
        return _measured(title, entry)
    n_in, n_out = (
        Lognormal(**{field: float(number["value"]) for field, number in entry[side].items()})
        for side in ("n_in", "n_out")
    )
    return Workload(name=title, lengths=IndependentLengths(n_in=n_in, n_out=n_out))


def _measured(title: str, entry: dict[str, Any]) -> Workload:
    """An application whose entry was measured from a trace."""
    n_in, n_out = (
        Tabulated(tokens=np.array(entry[side]["tokens"], float), mean=entry[side]["mean"])
        for side in ("n_in", "n_out")
    )
    pairs = coupled(n_in, n_out, np.array(entry["joint"], float))
    peak_10s, peak_60s = (
        Peak(
            window=entry[peak]["window"],
            rate=entry[peak]["rate"],
            arrival_scv=entry[peak]["arrival_cv"] ** 2,
        )
        for peak in ("peak_10s", "peak_60s")
    )
    return Workload(
        name=title,
        lengths=JointLengths(n_in=pairs[0], n_out=pairs[1]),
        arrival_scv=entry["arrival_cv"] ** 2,
        dispersion=entry["dispersion_60s"],
        rate=entry["rate"],
        peak_10s=peak_10s,
        peak_60s=peak_60s,
        prefix_bound=entry.get("prefix_hit_bound", math.nan),
    )


def synthetic_workload(
    isl: float | int,
    osl: float | int,
    isl_cv: float | int = 0.0,
    osl_cv: float | int = 0.0,
    *,
    arrival_cv: float | int = 1.0,
) -> Workload:
    """Traffic with lengths of a given mean and spread, prompt and output independent.

    Args:
      isl: mean prompt length, tokens.
      osl: mean output length, tokens.
      isl_cv: coefficient of variation of the prompt; 0 makes all equal, otherwise lognormal.
      osl_cv: the same of the output.
      arrival_cv: coefficient of variation of the times between arrivals; 1 is Poisson.

    Returns:
      a workload named ``isl/osl`` without a rate. Lengths are rounded to whole tokens, at least 1.

    Raises:
      InputError: a length outside [1, 1e8) or a coefficient of variation outside [0, 10].

    Example:
      >>> synthetic_workload(512, 64).name
      '512/64'
    """
    for field, tokens in (("isl", isl), ("osl", osl)):
        if not 1 <= tokens < LARGEST_LENGTH:  # also NaN
            raise InputError(
                f"{field}={tokens!r} is not a length; give at least 1 and below "
                f"{LARGEST_LENGTH:g} tokens"
            )
    for field, cv in (("isl_cv", isl_cv), ("osl_cv", osl_cv), ("arrival_cv", arrival_cv)):
        if not 0 <= cv <= LARGEST_CV:
            raise InputError(
                f"{field}={cv!r} is not a coefficient of variation; give 0 to {LARGEST_CV:g}"
            )
    return Workload(
        name=f"{isl:.10g}/{osl:.10g}",
        lengths=IndependentLengths(
            n_in=Lognormal(mean=float(isl), cv=float(isl_cv), cap=math.inf),
            n_out=Lognormal(mean=float(osl), cv=float(osl_cv), cap=math.inf),
        ),
        arrival_scv=float(arrival_cv) ** 2,
    )


def _key(name: str) -> str:
    return re.sub(r"[\s_-]+", "-", name.strip().lower())
