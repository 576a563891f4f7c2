"""The certificate that the webhook shows, from two files that others replace while it serves."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from dra_agent.errors import UsageError

log = logging.getLogger(__name__)

_Identity = tuple[tuple[int, int, int], ...]


class Certificate:
    """A TLS context that follows its files: new connections get the newest pair that is whole."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Load them; UsageError where they cannot be used."""
        self._files = (certificate, key)
        self._seen: _Identity | None = None
        self._told = ""
        self.context = _context()
        try:
            identity = self._identity()
            self._load(self.context)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                _said(error),
                where=f"{certificate} and {key}",
                todo="give a PEM certificate and its key, without passphrase",
            ) from error
        self._seen = identity

    @property
    def unusable(self) -> bool:
        """Whether the files hold something newer that cannot be used, so that the old pair serves to its end."""
        return bool(self._told)

    def refresh(self) -> bool:
        """Take up files that were replaced; what is not whole yet is tried again, and the old pair serves meanwhile."""
        try:
            identity = self._identity()
            if identity == self._seen:
                self._told = ""  # put back as it was
                return False
            # In a context of its own first: a pair that does not fit must not spoil the one that serves.
            self._load(_context())
            if self._identity() != identity:
                return False
            self._load(self.context)
        except (OSError, ssl.SSLError) as error:
            if (what := _said(error)) != self._told:
                log.error("the new certificate cannot be used", extra={"reason": what, "files": self._names()})
            self._told = what
            return False
        self._seen, self._told = identity, ""
        log.info("certificate replaced", extra={"files": self._names()})
        return True

    def _load(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(*self._files, password=_no_passphrase)

    def _identity(self) -> _Identity:
        found = [path.stat() for path in self._files]  # through the links that a Secret's volume is made of
        return tuple((status.st_ino, status.st_mtime_ns, status.st_size) for status in found)

    def _names(self) -> list[str]:
        return [str(path) for path in self._files]


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _no_passphrase() -> str:
    return ""  # instead of asking on the terminal


def _said(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return error.strerror or str(error)
