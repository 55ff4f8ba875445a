"""What all tables look like."""

from rich import box
from rich.cells import cell_len
from rich.table import Table

CONFIDENCE_STYLE = {"green": "green", "amber": "yellow", "red": "red"}


def plain_table(first: str, *numeric: str) -> Table:
    """A plain table with a text column and right-aligned ones."""
    table = Table(box=box.SIMPLE, pad_edge=False, padding=0)
    table.add_column(first, no_wrap=True, overflow="fold")
    for header in numeric:
        table.add_column(header, justify="right", no_wrap=True)
    return table


def keep_whole(table: Table) -> None:
    """Keeps columns that must not wrap from being cut either, however narrow the terminal is."""
    for column in table.columns:
        if column.no_wrap:
            lines = [line for cell in (column.header, *column.cells) for line in _lines(cell)]
            column.min_width = max([column.min_width or 0, *map(cell_len, lines)])


def _lines(cell: object) -> list[str]:
    return str(cell).splitlines()
