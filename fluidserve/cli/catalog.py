"""``fluidserve models`` and ``fluidserve gpus``."""

from typing import Any

from fluidserve.cli.output import print_answer, print_json
from fluidserve.io.catalog import find_model, gpu_names, model_names
from fluidserve.io.describe import describe_gpu, describe_model
from fluidserve.report.tables import gpu_table, gpus_table, models_table, pairs_table


def show_models(
    name: str | None, weight_dtype: str | None, kv_dtype: str | None, *, as_json: bool
) -> None:
    """Describes one model, or lists those of the catalog.

    Raises:
      InputError: no such model, or a config that cannot be read.
    """

    def described(one: str) -> dict[str, Any]:
        return describe_model(find_model(one, weight_dtype, kv_dtype))

    if name is None:
        every = [described(one) for one in model_names()]
        if as_json:
            print_json({"models": every})
        else:
            print_answer([models_table(every)])
        return
    values = described(name)
    if as_json:
        print_json(values)
    else:
        notes = values.pop("notes")
        shown = {k: f"{v:,}" if isinstance(v, int) else v for k, v in values.items()}
        print_answer([pairs_table(shown), *([""] if notes else []), *notes])


def show_gpus(name: str | None, *, as_json: bool) -> None:
    """Describes one accelerator, or lists those of the catalog.

    Raises:
      InputError: no such accelerator, or a file that cannot be read.
    """
    if name is None:
        every = [describe_gpu(one) for one in gpu_names()]
        if as_json:
            print_json({"gpus": every})
        else:
            print_answer([gpus_table(every)])
        return
    values = describe_gpu(name)
    if as_json:
        print_json(values)
    else:
        print_answer([gpu_table(values)])
