"""The objects of `-f`: of files, of directories of them, and of standard input."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dra_agent.errors import UsageError

if TYPE_CHECKING:
    from dra_agent.manifests import LoadedObject

SUFFIXES = (".yaml", ".yml", ".json")
"""Of the files of a directory that are read, as kubectl has them."""


def load_files(args: argparse.Namespace) -> list[LoadedObject]:
    """Read every object that `-f` and `-R` name; raises UsageError for unreadable or invalid files."""
    from dra_agent.manifests import load_manifests

    return [loaded for path in filenames(args) for loaded in load_manifests(path)]


def filenames(args: argparse.Namespace) -> list[str]:
    """Return the files that `-f` and `-R` name; files of a directory are sorted by name.

    Raises:
        UsageError: A directory has no file of objects, or standard input is named twice.
    """
    found = [file for name in args.filename for file in files_of(name, recursive=args.recursive)]
    if found.count("-") > 1:
        raise UsageError("standard input can be read once", where="-f -", hint="name it once")
    return found


def files_of(name: str, *, recursive: bool) -> Iterator[str]:
    """Yield a file, or the files of a directory sorted by name; raises UsageError for a directory without any."""
    directory = Path(name)
    if name == "-" or not directory.is_dir():
        yield name
        return
    entries = directory.rglob("*") if recursive else directory.iterdir()
    found = sorted(str(path) for path in entries if path.suffix in SUFFIXES and path.is_file())
    if not found:
        hint = "name a file" if recursive else "name a file, or read its directories too with -R"
        raise UsageError(f"has no {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file", where=name, hint=hint)
    yield from found
