"""The vocabulary of the command line: flags that several commands have, as kubectl spells them."""

from __future__ import annotations

import argparse
import re

MAX_SECONDS = 3600
"""Bound of a timeout, in seconds."""
_NUMBER = r"\d+(?:\.\d+)?"
_DURATION = re.compile(rf"{_NUMBER}|(?:{_NUMBER}[hms])+")
_PART = re.compile(rf"({_NUMBER})([hms]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}


def seconds(text: str, maximum_s: int = MAX_SECONDS) -> float:
    """Read a number of seconds, or a duration such as 30s, 5m or 1h30m."""
    value = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
    if not _DURATION.fullmatch(text) or not value <= maximum_s:
        raise argparse.ArgumentTypeError(
            f"{text} is not a number of seconds between 0 and {maximum_s}, or a duration such as 90s, 5m or 1h30m"
        )
    return value


def add_timeout_flag(
    parser: argparse.ArgumentParser, default_s: float, name: str = "--timeout", purpose: str = ""
) -> None:
    """Add a timeout flag, in seconds; `purpose` continues "how long to wait" in its help."""
    parser.add_argument(
        name,
        type=seconds,
        default=default_s,
        metavar="SECONDS",
        help=f"how long to wait{purpose and ' ' + purpose}, such as 90 or 5m (default {default_s:.0f} seconds)",
    )


def add_namespace_flags(parser: argparse.ArgumentParser, *, default: str, every: bool = False) -> None:
    """Add `-n`, and with `every` also `-A`; `default` describes the namespace without them."""
    parser.add_argument("-n", "--namespace", metavar="NAMESPACE", help=f"namespace (default: {default})")
    if every:
        parser.add_argument(
            "-A", "--all-namespaces", action="store_true", help="every namespace; overrides --namespace"
        )


def chosen_namespace(args: argparse.Namespace) -> str | None:
    """Return the namespace that a list is limited to; None is every one."""
    named: str | None = args.namespace
    return None if args.all_namespaces else named


def in_namespace(namespace: str | None) -> str:
    """Return the end of a message about a list; empty for every namespace."""
    return "" if namespace is None else f" in namespace {namespace}"


def add_filename_flags(parser: argparse.ArgumentParser, summary: str, *, required: bool = False) -> None:
    """Add `-f` and `-R`; `summary` describes the objects of the files."""
    parser.add_argument(
        "-f",
        "--filename",
        action="extend",
        nargs="+",
        default=[],
        required=required,
        metavar="FILE",
        help=f"{summary}: YAML or JSON files, directories of them, or - for standard input; may be repeated",
    )
    parser.add_argument(
        "-R", "--recursive", action="store_true", help="also read subdirectories of the directories of -f"
    )


def add_watch_flag(parser: argparse.ArgumentParser) -> None:
    """Add `-w`."""
    parser.add_argument("-w", "--watch", action="store_true", help="continue to print rows as they change")


def add_dry_run_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--dry-run`, also with the values of kubectl's flag."""
    parser.add_argument(
        "--dry-run",
        "--dry-run=client",
        "--dry-run=server",
        dest="dry_run",
        action="store_true",
        help="check everything and print the result, but change nothing",
    )


def add_ignore_not_found_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--ignore-not-found`."""
    parser.add_argument("--ignore-not-found", action="store_true", help="exit with 0 if a named object does not exist")


def add_dump_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--from`."""
    parser.add_argument(
        "--from",
        dest="dump",
        action="extend",
        nargs="+",
        default=[],
        metavar="FILE",
        help="read the cluster from files as kubectl prints them, or directories of them; may be repeated",
    )
    parser.add_argument(
        "--scheduler-version",
        metavar="VERSION",
        help="the version of kube-scheduler whose rules decide (default: that of the API server; 1.37 for files)",
    )
