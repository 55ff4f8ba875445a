"""Numbers for people: no more digits than are known."""

import math
from collections.abc import Sequence

from fluidserve.results import Latency
from fluidserve.units import format_bandwidth

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def three_digits(value: float) -> str:
    """A number with three significant digits, the precision of the formulas.

    Example:
      >>> three_digits(9.997), three_digits(12345.6), three_digits(0.05214), three_digits(0.0)
      ('10.0', '12,300', '0.0521', '0')
    """
    if not math.isfinite(value):
        return "∞" if value > 0 else "-"
    if value == 0:
        return "0"
    value = float(f"{value:.3g}")
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(digits, 0)}f}"


def half_width(interval: tuple[float, float]) -> str:
    """Half an interval, to follow its middle; nothing where there is none.

    Example:
      >>> half_width((0.5, 1.0)), half_width((-math.inf, math.inf))
      (' ±0.25', '')
    """
    low, high = interval
    return f" ±{(high - low) / 2:.2g}" if math.isfinite(high - low) else ""


def tpot_seconds(times: Latency, attainment: float) -> list[float]:
    """Mean, P50, P90 and P99 of TPOT; ``nan`` where no request has a second token.

    Such requests meet any limit, although the formulas have no finite TPOT for them.
    """
    figures = [times.mean, times.p50, times.p90, times.p99]
    absent = math.isinf(times.mean) and attainment > 0.0
    return [math.nan] * len(figures) if absent else figures


def percent(share: float) -> str:
    """A share in whole percent.

    Example:
      >>> percent(0.928), percent(float("inf"))
      ('93%', '∞')
    """
    return f"{share:.0%}" if math.isfinite(share) else "∞"


def times_more(share: float) -> str:
    """How much more there is than wanted: in percent, and beyond ten times in times.

    Example:
      >>> times_more(0.25), times_more(30.9)
      ('25.0%', '31 times')
    """
    return f"{share:.0f} times" if share >= 10.0 else f"{share:.1%}"


def in_one_unit(seconds: Sequence[float]) -> tuple[str, list[str]]:
    """Times in the unit that suits all of them.

    Example:
      >>> in_one_unit([0.2165, 0.04])
      ('ms', ['216', '40.0'])
    """
    finite = [s for s in seconds if math.isfinite(s)]
    scale, unit = (1.0, "s") if finite and min(finite) >= 1.0 else (1e3, "ms")
    return unit, [three_digits(s * scale) for s in seconds]


def large(value: float) -> str:
    """A count or an amount with the prefix of thousands that suits it.

    Example:
      >>> large(12853473280.0), large(640), large(999_900_000.0)
      ('12.9G', '640', '1G')
    """
    value = float(f"{value:.3g}")
    for scale, prefix in _PREFIXES:
        if abs(value) >= scale:
            return f"{value / scale:.3g}{prefix}"
    return f"{value:g}"


def with_unit(value: float, unit: str) -> str:
    """A number of a data sheet with its unit.

    Example:
      >>> with_unit(2.039e12, "B/s"), with_unit(8, "1"), with_unit(80e9, "B")
      ('2.04TB/s', '8', '80GB')
    """
    if unit == "1":
        return f"{value:g}"
    return format_bandwidth(value) if unit == "B/s" else f"{large(value)}{unit}"
