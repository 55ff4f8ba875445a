"""The files that a command writes besides its answer: a table of the rows, and a picture."""

from collections.abc import Callable, Sequence

from fluidserve.cli.output import note, progress
from fluidserve.io.export import write_csv
from fluidserve.io.files import check_target
from fluidserve.io.schema import Inputs
from fluidserve.report.plots.figure import check_plot
from fluidserve.results import DeploymentResult


def check_files(inputs: Inputs) -> None:
    """Refuses files that could not be written, before anything is computed.

    Raises:
      InputError: the first of them.
    """
    if inputs.csv is not None:
        check_target(inputs.csv, "--csv")
    if inputs.plot is not None:
        check_plot(inputs.plot)


def write_files(
    inputs: Inputs, rows: Sequence[DeploymentResult], draw: Callable[[str], None]
) -> None:
    """Writes the files that were asked for.

    Args:
      inputs: names the files.
      rows: deployments, best first.
      draw: draws the picture into the file of a name.

    Raises:
      InputError: a file that cannot be written.
    """
    if inputs.csv is not None:
        write_csv(inputs.csv, rows)
        note(f"wrote {len(rows)} deployment{'s' if len(rows) > 1 else ''} to {inputs.csv}")
    if inputs.plot is not None:
        progress(f"drawing {inputs.plot} ...")
        draw(inputs.plot)
        note(f"drew {inputs.plot}")
