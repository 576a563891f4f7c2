"""Bearer tokens (RFC 6750) of a server's clients, from a file that is followed as it changes."""

from __future__ import annotations

import hmac
import logging
import re
from pathlib import Path

from dra_agent import user_file
from dra_agent.errors import UsageError

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 64 << 10
MIN_TOKEN_CHARS = 16
"""96 bits in base64: a shorter token can be guessed."""
MAX_TOKENS = 16
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]+=*")
"""b64token of RFC 6750, 2.1."""
_HINT = f"write a token of at least {MIN_TOKEN_CHARS} letters and digits in each line: `openssl rand -hex 32`"


class BearerTokens:
    """The tokens of a file: one in each line, so that clients can change to a new one while the old one is valid."""

    def __init__(self, path: Path, *, setting: str) -> None:
        """Load them. Raises UsageError if the file cannot be used; `setting` is where the file is named."""
        self._path = path
        self._setting = setting
        self._logged = ""
        try:
            self._loaded = self._identity()
            self._tokens = read_tokens(self._path)
        except (OSError, ValueError) as error:
            raise UsageError(_reason(error), where=f"{setting} ({path})", hint=_HINT) from error

    def permit(self, authorization: str) -> bool:
        """Return whether the value of an Authorization header has one of the present tokens."""
        self._refresh()
        scheme, _, given = authorization.strip().partition(" ")
        if scheme.lower() != "bearer":
            return False
        given_bytes = given.strip().encode("utf-8", "replace")
        # All are compared, so that the duration does not depend on the position.
        matches = [hmac.compare_digest(given_bytes, token) for token in self._tokens]
        return any(matches)

    def _refresh(self) -> None:
        try:
            identity = self._identity()
            if identity != self._loaded:
                self._tokens = read_tokens(self._path)
                self._loaded = identity
            self._logged = ""
        except (OSError, ValueError) as error:
            # Clients have the old one until the file is complete.
            if (reason := _reason(error)) != self._logged:
                log.error(
                    "the new tokens cannot be used", extra={"reason": f"{self._setting}: {reason}", "file": self._path}
                )
            self._logged = reason

    def _identity(self) -> tuple[int, int, int]:
        status = self._path.stat()
        return status.st_ino, status.st_mtime_ns, status.st_size


def read_tokens(path: Path) -> tuple[bytes, ...]:
    """Return the tokens of a file. Raises OSError, or ValueError for a file that has none or something else."""
    lines = [line.strip() for line in user_file.read(path, MAX_FILE_BYTES).splitlines()]
    tokens = tuple(line for line in lines if line)
    if not tokens:
        raise ValueError("it has no token")
    if len(tokens) > MAX_TOKENS:
        raise ValueError(f"it has {len(tokens)} tokens, and {MAX_TOKENS} are possible")
    for number, token in enumerate(lines, 1):
        if token and (len(token) < MIN_TOKEN_CHARS or not _TOKEN.fullmatch(token)):
            raise ValueError(f"line {number} is not a token")
    return tokens


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
