"""Formats of commands' output: the flag `-o`, JSON and YAML, and CDI device ids."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import Any

from dra_agent.printable import is_printable, json_printable, printable

FORMATS = ("table", "wide", "name", "json", "yaml")
CDI = "cdi"
"""The format of commands that show claims: their CDI device ids only, one a line."""
FLAGS = "flags"
"""The same ids for a command line: one line with `--device ID` for each, as podman, docker and ctr take it."""
ID_FORMATS = (CDI, FLAGS)


def add_output_flag(parser: argparse.ArgumentParser, *, cdi: bool = False, names: bool = True) -> None:
    """Add `-o table|wide|name|json|yaml`, with `cdi` also ID_FORMATS; `wide` and `name` are other layouts of tables.

    `names`: the command lists objects, so it has names to print.
    """
    _layout.name = "table"
    parser.add_argument(
        "-o",
        "--output",
        action=_OutputAction,
        choices=(*(one for one in FORMATS if names or one != "name"), *(ID_FORMATS if cdi else ())),
        default="table",
        help="output format: wide is a table with every column"
        + (", name prints names only" if names else "")
        + (", cdi prints CDI device ids only, flags prints them as one line of --device flags" if cdi else ""),
    )


class _Layout:
    """The layout of this command's tables."""

    name = "table"


_layout = _Layout()


class _OutputAction(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        _layout.name = values
        setattr(namespace, self.dest, "table" if values in ("wide", "name") else values)


def emit_ids(ids: Iterable[str], output: str) -> None:
    """Print CDI device ids in one of ID_FORMATS; nothing without any. An id has no character that a shell expands."""
    if output == CDI:
        for name in ids:
            print(name)
    # Claims that share a device have the same id of the device's vendor, which a container needs once.
    elif flags := " ".join(f"--device {name}" for name in dict.fromkeys(ids)):
        print(flags)


def emit(value: Any, output: str, *, stream: bool = False) -> None:
    """Print a JSON-like value as JSON or YAML; `stream`: as one of several, which a parser can separate.

    In a stream JSON has one line, and YAML begins with `---`.
    """
    import msgspec

    if output == "json":
        encoded = msgspec.json.encode(value)
        text = json_printable((encoded if stream else msgspec.json.format(encoded, indent=2)).decode())
    else:
        import yaml

        plain = msgspec.json.decode(msgspec.json.encode(value))  # noqa: TID251 - encoded in the same line
        text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120).rstrip("\n")
        if not is_printable(text):
            # In ASCII every string with such a character is quoted and escaped, and reads as the same value.
            text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=False, width=120).rstrip("\n")
        if stream:
            text = f"---\n{text}"
    print(text)


def print_notes(notes: Iterable[str]) -> None:
    """Print on standard error what a list of objects lacks: its formats have no place for it."""
    for note in notes:
        print(printable(f"note: {note}", line=True), file=sys.stderr)


def rounded(quantity: str) -> str:
    """Format bytes as a Kubernetes quantity.

    A number that is not a multiple of 1 Mi is rounded: 3435973836 is ~3.2Gi.
    """
    if not quantity.isascii() or not quantity.isdigit() or int(quantity) < 1 << 20:
        return quantity
    amount = int(quantity)
    shift, unit = next((shift, unit) for shift, unit in ((40, "Ti"), (30, "Gi"), (20, "Mi")) if amount >= 1 << shift)
    return f"~{amount / (1 << shift):.1f}{unit}" if amount % (1 << shift) else f"{amount >> shift}{unit}"


def is_wide() -> bool:
    """Return True for `-o wide`."""
    return _layout.name == "wide"


def prints_names() -> bool:
    """Return True for `-o name`: only names are printed."""
    return _layout.name == "name"
