"""Profiles: the constants of a time model and the habits of an engine, read from TOML.

A profile names its form (``paper``, ``layers`` or ``polynomial``), where the first token leaves,
how much memory an engine takes, and constants per accelerator with their provenance. Shipped ones
lie in ``profiles/``; a user's file has the same keys.
"""

import dataclasses
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from fluidserve.errors import InputError
from fluidserve.timing.polynomial import (
    DecodeCoefficients,
    PolynomialConstants,
    PrefillCoefficients,
)

FirstToken = Literal["prefill", "decode"]


@dataclasses.dataclass(frozen=True)
class PaperConstants:
    """Constants of `fluidserve.timing.paper`.

    Attributes:
      compute_efficiency: share of the peak at many tokens.
      token_offset: tokens added to a batch: efficiency is ``n / (n + token_offset)`` of the above.
      memory_efficiency: share of the peak bandwidth.
      tp_speedup: speed-up of doubling the tensor-parallel degree.
      overhead: fixed time of one stage, s.
    """

    compute_efficiency: float
    token_offset: float
    memory_efficiency: float
    tp_speedup: float
    overhead: float


@dataclasses.dataclass(frozen=True)
class LayerConstants:
    """Constants of `fluidserve.timing.layers` for one accelerator; times in s.

    Attributes:
      gemm_efficiency: share of the peak FLOP rate in matrix products.
      weight_read_efficiency: share of the bandwidth when reading weights.
      activation_efficiency: share of the bandwidth for activation traffic.
      kv_read_efficiency: share of the bandwidth when reading KV.
      attention_efficiency: share of the 16-bit peak over the attended pairs of a causal prompt.
      gemm_norm: exponent of the smooth roofline.
      layer_launch: launches of one layer.
      attention_launch: launch of the attention kernel.
      prompt_attention_launch: what it takes more for a prompt.
      all_reduce_latency: latency of one all-reduce.
      all_reduce_efficiency: bus bandwidth over the scale-up link's bandwidth.
      hop_latency: latency of handing activations to the next stage.
      host_floor: host time of a decode pass.
      host_floor_prompt: host time of a pass with a prompt.
      host_norm: exponent that joins GPU and host time.
      host_per_sequence: host time of each sequence.
      provenance: where the constants come from: ``fitted: ...`` or ``assumed: ...``.
    """

    gemm_efficiency: float
    weight_read_efficiency: float
    activation_efficiency: float
    kv_read_efficiency: float
    attention_efficiency: float
    gemm_norm: float
    layer_launch: float
    attention_launch: float
    prompt_attention_launch: float
    all_reduce_latency: float
    all_reduce_efficiency: float
    hop_latency: float
    host_floor: float
    host_floor_prompt: float
    host_norm: float
    host_per_sequence: float
    provenance: str


Constants = PaperConstants | LayerConstants | PolynomialConstants


@dataclasses.dataclass(frozen=True)
class Profile:
    """A time model with its constants, and what an engine does by default.

    Attributes:
      name: what the profile is called.
      description: one sentence for people.
      form: ``paper``, ``layers`` or ``polynomial``.
      first_token: whether the first token leaves at the end of prefill or after the first decode
        step.
      memory_utilization: share of the usable bytes that an engine takes for weights and KV.
      memory_of: ``usable`` (driver-reported bytes) or ``datasheet`` bytes.
      handover_overhead: fixed time of one KV transfer, s.
      constants: per accelerator name, lower case; ``*`` is used where a name is missing.
    """

    name: str
    description: str
    form: Literal["paper", "layers", "polynomial"]
    first_token: FirstToken
    memory_utilization: float
    memory_of: Literal["usable", "datasheet"]
    handover_overhead: float
    constants: dict[str, Constants]

    def constants_for(self, gpu: str) -> Constants:
        """Constants of an accelerator; those of ``*`` where it has none of its own."""
        found = self.constants.get(gpu.lower(), self.constants.get("*"))
        if found is None:
            known = ", ".join(sorted(self.constants))
            raise InputError(f"profile {self.name}: no constants for {gpu}; it has {known}")
        return found

    def degrees(self, gpu: str, wanted: list[int]) -> list[int]:
        """Which of some tensor-parallel degrees there are step times for."""
        constants = self.constants_for(gpu)
        if isinstance(constants, PolynomialConstants):
            return [tp for tp in wanted if tp in constants.degrees()]
        return wanted

    def provenance(self, gpu: str) -> str:
        """Where the constants of an accelerator come from."""
        return getattr(self.constants_for(gpu), "provenance", "assumed: the lecture's paper GPU")

    def measured(self, gpu: str) -> bool:
        """Whether the constants of an accelerator were fitted to measurements on it."""
        found = self.constants.get(gpu.lower(), self.constants.get("*"))
        return getattr(found, "provenance", "").startswith("fitted")


def shipped_profiles() -> list[str]:
    """Names of the profiles that come with the package."""
    folder = resources.files("fluidserve.timing") / "profiles"
    return sorted(
        f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml")
    )


def load_profile(name_or_path: str) -> Profile:
    """Reads a shipped profile by name, or a user's TOML file.

    Raises:
      InputError: no such profile, not TOML, an unknown or missing key.
    """
    if name_or_path.lower() in shipped_profiles():
        file = resources.files("fluidserve.timing") / "profiles" / f"{name_or_path.lower()}.toml"
        return _build(tomllib.loads(file.read_text()), where=name_or_path)
    path = Path(name_or_path)
    if not path.is_file():
        known = ", ".join(shipped_profiles())
        raise InputError(f"profile: {name_or_path!r} is neither a file nor one of {known}")
    try:
        return _build(tomllib.loads(path.read_text()), where=str(path))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"profile {path}: not a TOML file ({error})") from None


def _build(table: dict[str, Any], *, where: str) -> Profile:
    kinds = {
        "paper": PaperConstants,
        "layers": LayerConstants,
        "polynomial": PolynomialConstants,
    }
    form = table.get("form")
    if form not in kinds:
        raise InputError(f"profile {where}: form is {form!r}; it must be one of {', '.join(kinds)}")
    entries = table.pop("constants", {})
    shared = entries.pop("shared", {})
    constants = {}
    for gpu, values in entries.items():
        place = f"profile {where}, constants.{gpu}"
        values = shared | values
        if form == "polynomial":
            values = _by_degree(values, place)
        constants[gpu.lower()] = _record(kinds[form], values, place)
    return _record(Profile, table | {"constants": constants}, f"profile {where}")


def _by_degree(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Reads the tables of coefficients, which are by tensor-parallel degree."""
    kinds = {"prefill": PrefillCoefficients, "decode": DecodeCoefficients}
    read = dict(values)
    for phase, kind in kinds.items():
        tables = values.get(phase, {})
        if not isinstance(tables, dict) or not tables:
            raise InputError(f"{where}: {phase} needs a table for each tp, such as {phase}.1")
        read[phase] = {}
        for degree, table in tables.items():
            place = f"{where}.{phase}.{degree}"
            if not degree.isdecimal() or int(degree) < 1:
                raise InputError(f"{place}: {degree!r} is no tensor-parallel degree")
            sets = table if isinstance(table, list) else [table]
            if not 1 <= len(sets) <= (2 if phase == "decode" else 1):
                raise InputError(f"{place}: one set of coefficients; for decode one or two")
            found = tuple(_record(kind, dict(one), place) for one in sets)
            read[phase][int(degree)] = found if phase == "decode" else found[0]
    return read


def _record(kind: type, values: dict[str, Any], where: str) -> Any:
    """Builds a dataclass from a table; names what is missing, unknown or not a number."""
    fields = {f.name: f for f in dataclasses.fields(kind)}
    if unknown := sorted(values.keys() - fields.keys()):
        raise InputError(f"{where}: unknown key {unknown[0]!r}; known: {', '.join(fields)}")
    needed = {name for name, f in fields.items() if f.default is dataclasses.MISSING}
    if missing := sorted(needed - values.keys()):
        raise InputError(f"{where}: {missing[0]!r} is missing")
    for key, value in values.items():
        if fields[key].type is float:
            if not isinstance(value, float | int) or not 0 <= value < float("inf"):
                raise InputError(f"{where}: {key} = {value!r} must be a non-negative number")
            values[key] = float(value)
    return kind(**values)
