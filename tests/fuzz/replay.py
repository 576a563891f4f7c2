"""Check inputs of one Python target in a separate process: `python -m fuzz.replay NAME FILE...`."""

from __future__ import annotations

import importlib
import logging
import sys
from pathlib import Path


def main(arguments: list[str]) -> None:
    """Fail with the name of the first input that breaks a property of its target."""
    name, *files = arguments
    logging.disable(logging.CRITICAL)
    check = importlib.import_module(f"fuzz.inputs.{name}").check
    for file in files:
        try:
            check(Path(file).read_bytes())
        except Exception as error:
            raise AssertionError(f"{file}: {type(error).__name__}: {error}") from error


if __name__ == "__main__":
    main(sys.argv[1:])
