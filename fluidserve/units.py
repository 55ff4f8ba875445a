"""Quantities with units: text at the edge, SI floats inside.

Prefixes and units are case-sensitive, because `200Gb/s` (bits) and `200GB/s` (bytes) differ by a
factor of eight. SI inside: second, byte, FLOP, B/s, FLOP/s, 1/s.
"""

import math
import re

from fluidserve.errors import InputError

_PREFIX = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_TIME = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "min": 60.0, "h": 3600.0}

_SIZE = {p + "B": f for p, f in (_PREFIX | _BINARY).items()}
_BANDWIDTH = {p + "B/s": f for p, f in (_PREFIX | _BINARY).items()}
_BANDWIDTH |= {p + b: f / 8 for p, f in _PREFIX.items() for b in ("b/s", "bps", "bit/s")}
_RATE = {"/s": 1.0, "req/s": 1.0, "rps": 1.0, "/min": 1 / 60, "/h": 1 / 3600}
_FLOP_RATE = {p + u: f for p, f in _PREFIX.items() for u in ("FLOP/s", "FLOPS")}
_FLOP_RATE |= {p: _PREFIX[p] for p in "GTP"}  # 989T, as people write a peak

UNITS: dict[str, dict[str, float]] = {
    "s": _TIME,
    "B": _SIZE,
    "B/s": _BANDWIDTH,
    "1/s": _RATE,
    "FLOP/s": _FLOP_RATE,
}
_EXAMPLE = {"s": "300ms", "B": "80GB", "B/s": "200Gb/s", "1/s": "20", "FLOP/s": "989TFLOP/s"}
_BARE_NUMBER_OK = {"1/s"}
_PATTERN = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?inf|nan)\s*(\S*)\s*\Z")

LARGEST = 1e18
"""Quantities beyond this are taken for typing errors."""


def parse_quantity(text: str, unit: str, *, name: str, allow_inf: bool = False) -> float:
    """Reads a positive quantity such as ``300ms`` or ``200Gb/s`` into SI.

    Args:
      text: a number with a unit; rates may be bare numbers.
      unit: the SI unit wanted, a key of `UNITS`.
      name: what the quantity is called in the error message.
      allow_inf: whether ``inf`` is a value.

    Returns:
      the value in `unit`; ``math.inf`` only with `allow_inf`.

    Raises:
      InputError: not a number, a missing or unknown unit, zero, negative, NaN or absurdly large.

    Example:
      >>> parse_quantity("200Gb/s", "B/s", name="--link")
      25000000000.0
    """
    example = _EXAMPLE[unit]
    match = _PATTERN.match(str(text))
    if not match:
        raise InputError(f"{name}: {text!r} is not a quantity; write for example {example}")
    value, suffix = float(match[1]), match[2]
    if math.isinf(value) and value > 0 and allow_inf:
        return value
    if not suffix and unit not in _BARE_NUMBER_OK:
        raise InputError(f"{name}: {text!r} has no unit; write for example {example}")
    scales = UNITS[unit]
    if suffix and suffix not in scales:
        close = [u for u in scales if u.lower() == suffix.lower()]
        hint = f"; units are case-sensitive, did you mean {' or '.join(close)}?" if close else ""
        raise InputError(
            f"{name}: unknown unit {suffix!r} in {text!r}{hint or f' (for example {example})'}"
        )
    result = value * (scales[suffix] if suffix else 1.0)
    return check_positive(result, name=name, shown=str(text))


def check_positive(value: float, *, name: str, shown: str | None = None) -> float:
    """Returns `value` if it is finite, above zero and below `LARGEST`; otherwise raises.

    Raises:
      InputError: zero, negative, NaN, infinite or beyond `LARGEST`.
    """
    shown = shown if shown is not None else repr(value)
    if not value > 0:  # also NaN
        raise InputError(f"{name}: {shown} must be greater than zero")
    if value > LARGEST:
        raise InputError(
            f"{name}: {shown} is out of range (largest accepted: {LARGEST:g} in SI units)"
        )
    return value


LONGEST_CONTEXT = 10**9
"""Token counts beyond this are taken for typing errors."""
_TOKENS = re.compile(r"\s*(\d+\.?\d*(?:e\d+)?)\s*([kKmM]?)\Z")


def parse_tokens(text: str, *, name: str) -> int:
    """Reads a number of tokens; ``k`` means 1,024 and ``M`` 1,048,576, as model cards use them.

    Raises:
      InputError: not a number, not whole, zero or absurdly large.

    Example:
      >>> parse_tokens("128k", name="--context"), parse_tokens("1000", name="--context")
      (131072, 1000)
    """
    match = _TOKENS.match(text)
    if not match:
        raise InputError(f"{name}: {text!r} is not a number of tokens; write for example 128k")
    tokens = float(match[1]) * {"": 1, "k": 2**10, "m": 2**20}[match[2].lower()]
    if not 1 <= tokens <= LONGEST_CONTEXT or not tokens.is_integer():
        raise InputError(
            f"{name}: {text} must be a whole number of tokens from 1 to {LONGEST_CONTEXT:,}"
        )
    return int(tokens)


def format_time(seconds: float) -> str:
    """Seconds as people read them, three significant digits.

    Example:
      >>> format_time(0.0174), format_time(2.5), format_time(float("inf"))
      ('17.4ms', '2.5s', '∞')
    """
    if math.isinf(seconds):
        return "∞"
    for scale, suffix in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.3g}{suffix}"
    return f"{seconds:.3g}s"


def format_bandwidth(bytes_per_second: float) -> str:
    """Bandwidth with the unit that suits its size.

    Example:
      >>> format_bandwidth(25e9)
      '25GB/s'
    """
    if math.isinf(bytes_per_second):
        return "∞"
    for scale, suffix in ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s")):
        if bytes_per_second >= scale:
            return f"{bytes_per_second / scale:.3g}{suffix}"
    return f"{bytes_per_second:.3g}B/s"


def format_context(tokens: int) -> str:
    """A number of tokens, with the short form of model cards where it is a whole number of those.

    Example:
      >>> format_context(131072), format_context(1000)
      ('131,072 tokens (128k = 128 x 1,024)', '1,000 tokens')
    """
    if tokens % 2**10:
        return f"{tokens:,} tokens"
    return f"{tokens:,} tokens ({tokens // 2**10:,}k = {tokens // 2**10:,} x 1,024)"
