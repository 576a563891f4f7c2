"""Headers of a file, such as a token for the collector. Its content never appears in a message."""

from __future__ import annotations

import re
from pathlib import Path

from dra_agent import user_file
from dra_agent.errors import UsageError

MAX_FILE_BYTES = 16 << 10
MAX_HEADERS = 32
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""token of RFC 9110, 5.6.2."""
_VALUE = re.compile(r"[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?")
_OWN = frozenset(
    {"host", "connection", "content-length", "content-type", "content-encoding", "transfer-encoding", "expect", "te"}
)
"""Headers that the agent sets itself, and those that change the framing of a message."""


def read_headers(path: Path) -> list[tuple[str, str]]:
    """Return the headers of a file. Raises UsageError with the file, and the line of an invalid header."""
    where = f"otlp.headers_file ({path})"
    try:
        text = user_file.read(path, MAX_FILE_BYTES).decode("ascii")
    except OSError as error:
        raise UsageError(error.strerror or str(error), where=where, hint="create it, or remove the key") from error
    except UnicodeDecodeError as error:
        raise UsageError("it is not ASCII text", where=where, hint="encode values that are not") from error
    found: list[tuple[str, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value.strip()):
            raise UsageError(f"line {number} is not a header", where=where, hint="write `Name: value` in each line")
        if name.lower() in _OWN:
            raise UsageError(f"line {number}: {name} cannot be set", where=where, hint="remove the line")
        found.append((name, value.strip()))
    if len(found) > MAX_HEADERS:
        raise UsageError(f"it has {len(found)} headers, and {MAX_HEADERS} are possible", where=where)
    return found
