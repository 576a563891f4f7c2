"""The revision of the sources that this agent was built from.

`deploy/revision.py` writes it into the package at build time, because neither git nor the repository exists where the
agent runs.
"""

from __future__ import annotations

import re
from pathlib import Path

from dra_agent import __version__

FILE = Path(__file__).with_name("revision.txt")
UNKNOWN = "unknown"
_DIRTY = "-dirty"
_SHOWN_DIGITS = 12


def read(file: Path = FILE) -> str:
    """Return the commit in 40 hexadecimal digits, with `-dirty` after uncommitted changes; UNKNOWN without a record."""
    try:
        text = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return UNKNOWN
    return text if re.fullmatch(rf"[0-9a-f]{{40}}({_DIRTY})?", text) else UNKNOWN


def describe(revision: str | None = None) -> str:
    """Return version and revision for messages: `1.2.3 (revision 0123456789ab, dirty)`."""
    revision = read() if revision is None else revision
    commit = revision.removesuffix(_DIRTY)
    return f"{__version__} (revision {commit[:_SHOWN_DIGITS]}{', dirty' if commit != revision else ''})"
