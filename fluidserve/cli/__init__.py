"""The command line. Only typer is imported here, so that ``--help`` is instant.

Exit codes: 0 answer, 2 wrong input, 3 nothing feasible, 1 a bug (with its traceback), 130
interrupted, 74 the output cannot be written, 141 nobody reads it any more.
"""

import sys
from collections.abc import Sequence
from typing import Annotated, Any, cast

import typer

from fluidserve.cli import options
from fluidserve.errors import InputError, NoFeasibleDeployment

OK, WRONG_INPUT, NOTHING_FEASIBLE = 0, 2, 3
_LONGEST_MESSAGE = 1200

# the base of every usage error: BadParameter, UsageError, ClickException. Which module holds it
# depends on the version of typer.
_ClickException = cast(type[typer.BadParameter], typer.BadParameter.__mro__[2])

app = typer.Typer(
    help="Plan LLM serving on GPUs: which deployment (disaggregated, colocated or chunked) serves "
    "most, or which least GPUs serve a rate, within limits on TTFT and TPOT.",
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(_version())
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("plan")
@options.takes(
    options.QUESTION,
    options.OFFLINE,
    options.TRAFFIC,
    options.PROMISE,
    options.ENGINE,
    options.ANSWER,
)
def _plan(**flags: Any) -> None:
    """Rank deployments: the most goodput within --gpus, or the fewest GPUs that serve --rate.

    --offline asks for the most tokens/s within --gpus instead, without any limit.
    """
    from fluidserve.cli.plan import run

    run(flags)


@app.command("simulate")
@options.takes(
    options.QUESTION,
    options.TRAFFIC,
    options.PROMISE,
    options.ENGINE,
    options.SIMULATION,
    options.ANSWER,
)
def _simulate(**flags: Any) -> None:
    """Serve one deployment request by request, with the formulas beside it.

    Without --rate it runs at the goodput of the formulas. --gpus and --max-gpus only limit the
    deployment; --verify 1 also searches the simulated goodput.
    """
    from fluidserve.cli.simulate import run

    run(flags)


@app.command("curve")
@options.takes(
    options.QUESTION,
    options.TRAFFIC,
    options.PROMISE,
    options.ENGINE,
    options.CURVE,
    options.ANSWER,
)
def _curve(**flags: Any) -> None:
    """Show attainment, latencies and throughput over the rate, for the best of each kind.

    --verify K simulates K rates of each deployment (default 3); --csv and --plot write the curves.
    """
    from fluidserve.cli.curve import run

    run(flags)


@app.command("scale")
@options.takes(
    options.SCALED,
    options.TRAFFIC,
    {name: hint for name, hint in options.PROMISE.items() if name != "horizon"},
    options.ENGINE,
    options.SCALE,
    {name: options.ANSWER[name] for name in ("verify", "json")},
)
def _scale(**flags: Any) -> None:
    """Show by which factor all limits can be tightened at a rate per GPU, for each kind.

    --verify K simulates the first K of each kind by the formulas (default 3) and takes the best.
    """
    from fluidserve.cli.scale import run

    run(flags)


@app.command("fit")
@options.takes(options.FIT, options.MEMORY, {"json": options.ANSWER["json"]})
def _fit(**flags: Any) -> None:
    """Say on how many GPUs a model fits, and how many requests of a length it then holds."""
    from fluidserve.cli.fit import run

    run(flags)


@app.command("check")
@options.takes(
    options.QUESTION,
    options.TRAFFIC,
    options.PROMISE,
    options.ENGINE,
    options.SIMULATION,
    options.ANSWER,
)
def _check(**flags: Any) -> None:
    """Validate inputs and show how they are understood, without computing anything."""
    from fluidserve.cli.check import run

    run(flags)


@app.command("models")
def _models(
    name: Annotated[str | None, typer.Argument(metavar="NAME|PATH", show_default=False)] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    weight_dtype: Annotated[
        str | None, typer.Option(metavar="T", help="Format of the weights.", show_default=False)
    ] = None,
    kv_dtype: Annotated[
        str | None, typer.Option(metavar="T", help="Format of the KV cache.", show_default=False)
    ] = None,
) -> None:
    """List the models of the catalog, or describe one (or a config.json)."""
    from fluidserve.cli.catalog import show_models

    show_models(name, weight_dtype, kv_dtype, as_json=json)


@app.command("gpus")
def _gpus(
    name: Annotated[str | None, typer.Argument(metavar="NAME|PATH", show_default=False)] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the GPUs of the catalog, or describe one with the source of each number."""
    from fluidserve.cli.catalog import show_gpus

    show_gpus(name, as_json=json)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line and returns its exit code; bugs leave as exceptions."""
    try:
        code = app(args=argv, prog_name="fluidserve", standalone_mode=False)
    except InputError as error:
        return _complain(str(error), WRONG_INPUT)
    except NoFeasibleDeployment as error:
        return _complain(_nothing(error), NOTHING_FEASIBLE)
    except _ClickException as error:
        return _complain(error.format_message(), WRONG_INPUT)
    except KeyboardInterrupt:
        return 130
    return code if isinstance(code, int) else OK


def _version() -> str:
    """Of the installed package, or of the source tree that is run without being installed."""
    import tomllib
    from importlib.metadata import PackageNotFoundError, version
    from pathlib import Path

    try:
        return version("fluidserve")
    except PackageNotFoundError:
        source = Path(__file__).resolve().parents[2] / "pyproject.toml"
        return str(tomllib.loads(source.read_text(encoding="utf-8"))["project"]["version"])


def _complain(message: str, code: int) -> int:
    if len(message) > _LONGEST_MESSAGE:  # someone gave a novel for a name
        message = f"{message[:_LONGEST_MESSAGE]} ..."
    print(f"error: {message}", file=sys.stderr)
    return code


def _nothing(error: NoFeasibleDeployment) -> str:
    """The message with the reasons counted and the candidate that comes closest."""
    counted = "; ".join(f"{count:,} x {reason}" for reason, count in error.reasons.items())
    lines = [f"nothing feasible: {error}"]
    if counted:
        lines.append(f"  why: {counted}")
    if error.nearest:
        lines.append(f"  nearest: {error.nearest}")
    return "\n".join(lines)
