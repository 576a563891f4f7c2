"""How commands answer: tables for people, JSON and YAML for programs, and progress while something takes its time."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dra_agent.cli.terminal import console
from dra_agent.printable import is_printable, json_printable, printable

FORMATS = ("table", "json", "yaml")


def add_output_flag(parser: argparse.ArgumentParser) -> None:
    """Add `-o table|json|yaml`."""
    parser.add_argument("-o", "--output", choices=FORMATS, default="table", help="how to print the answer")


def emit(value: Any, output: str) -> None:
    """Print a JSON-like value as JSON or YAML."""
    import msgspec

    if output == "json":
        text = json_printable(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
    else:
        import yaml

        plain = msgspec.json.decode(msgspec.json.encode(value))
        text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120).rstrip("\n")
        if not is_printable(text):
            # In ASCII every string with such a character is quoted and escaped, and reads as the same value.
            text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=False, width=120).rstrip("\n")
    print(text)


def rounded(quantity: str) -> str:
    """Write a number of bytes as capacities are written; one that is no whole Mi is rounded: 3435973836 is ~3.2Gi."""
    if not quantity.isascii() or not quantity.isdigit() or int(quantity) < 1 << 20:
        return quantity
    amount = int(quantity)
    shift, unit = next((shift, unit) for shift, unit in ((40, "Ti"), (30, "Gi"), (20, "Mi")) if amount >= 1 << shift)
    return f"~{amount / (1 << shift):.1f}{unit}" if amount % (1 << shift) else f"{amount >> shift}{unit}"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """Print rows under upper-case headings; None becomes a dash. Cells are plain text, never markup."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(
        box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, show_edge=False, header_style="bold"
    )
    for column in columns:
        drawn.add_column(column.upper(), overflow="fold")
    for row in rows:
        drawn.add_row(*(Text("-" if cell is None or cell == "" else printable(str(cell))) for cell in row))
    # Into a file or a pipe nothing is folded: whoever reads it there cuts columns by himself.
    console(width=None if sys.stdout.isatty() else 400).print(drawn, soft_wrap=False)


@contextmanager
def progress(doing: str) -> Iterator[None]:
    """Say on the terminal what is going on while it goes on; silent where nobody watches."""
    if not sys.stderr.isatty():
        yield
        return
    with console(stderr=True).status(printable(doing)):
        yield
