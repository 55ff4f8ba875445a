"""The input of the question whether a model fits."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

from fluidserve.io.schema import MOST_GPUS, Count, GpuNames, Number, check_hardware, flag
from fluidserve.units import parse_tokens

FIT_ONLY = frozenset({"context", "users"})
"""Inputs that only this question has."""


def _tokens(value: Any, info: ValidationInfo) -> int:
    name = (info.context or {}).get(info.field_name, flag(str(info.field_name)))
    return parse_tokens(str(value), name=name)


class FitInputs(BaseModel):
    """Every input of ``fit``; see `fluidserve.io.schema.Inputs` for those that it shares.

    Attributes:
      gpus: most GPUs of one instance; those of a node when left out.
      context: tokens of a request; the longest that the model was built for when left out.
      users: requests of that length to hold at once.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    gpu: GpuNames = None
    gpu_spec: str | None = None
    gpus: Count | None = Field(None, ge=1, le=MOST_GPUS)
    context: Annotated[int, BeforeValidator(_tokens)] | None = None
    users: Count = Field(1, ge=1, le=1_000_000)
    profile: str = "default"
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    memory_utilization: Number | None = Field(None, gt=0, le=1)
    as_json: bool = Field(False, alias="json")

    @model_validator(mode="after")
    def _one_accelerator(self) -> Self:
        check_hardware(self.gpu, self.gpu_spec)
        return self
