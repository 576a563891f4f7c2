"""The TLS files of a server: certificate and key, followed as they change."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from pathlib import Path

from dra_agent import user_file
from dra_agent.errors import UsageError
from dra_agent.memory_file import memory_file

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 1 << 20
"""Of a certificate with its chain, or of a key."""
SETTINGS = ("metrics_tls_cert", "metrics_tls_key")
"""The keys of the configuration that name the files."""

_Identity = tuple[tuple[int, int, int], ...]
_CERTIFICATE, _KEY = range(2)
_HINTS = (
    "give a PEM certificate, followed by its chain",
    "give the PEM key of the certificate, without passphrase",
)


class ReloadingCertificate:
    """A TLS context that follows its files: `context` is of the newest files that are whole and fit."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Load them. Raises UsageError for a file that cannot be used."""
        self._paths = (certificate, key)
        self._logged = ""
        try:
            self._loaded = self._identity()
            self.context = self._load()
        except _UnusableError as error:
            where = f"{SETTINGS[error.file]} ({self._paths[error.file]})"
            raise UsageError(error.reason, where=where, hint=_HINTS[error.file]) from error

    def refresh(self) -> bool:
        """Return whether `context` was reloaded from replaced files; incomplete files are retried."""
        try:
            identity = self._identity()
            if identity == self._loaded:
                self._logged = ""  # restored
                return False
            context = self._load()
            if self._identity() != identity:
                return False
        except _UnusableError as error:
            reason = f"{SETTINGS[error.file]}: {error.reason}"
            if reason != self._logged:
                log.error(
                    "the new certificate cannot be used",
                    extra={"reason": reason, "files": [str(path) for path in self._paths]},
                )
            self._logged = reason
            return False
        self.context, self._loaded, self._logged = context, identity, ""
        return True

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        shown, key = self._read(_CERTIFICATE), self._read(_KEY)
        # OpenSSL reports "pem lib" for either file.
        if b"CERTIFICATE-----" not in shown:
            raise _UnusableError(_CERTIFICATE, "it has no PEM certificate")
        if b"PRIVATE KEY-----" not in key:
            raise _UnusableError(_KEY, "it has no PEM key")
        with memory_file(shown) as path:
            _use(_CERTIFICATE, lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path))
            with memory_file(key) as key_path:
                _use(_KEY, lambda: context.load_cert_chain(path, key_path, password=_no_passphrase))
        return context

    def _read(self, file: int) -> bytes:
        try:
            return user_file.read(self._paths[file], MAX_FILE_BYTES)
        except OSError as error:
            raise _UnusableError(file, error.strerror or str(error)) from error

    def _identity(self) -> _Identity:
        found = []
        for file, path in enumerate(self._paths):
            try:
                status = path.stat()  # through the links that a Secret's volume is made of
            except OSError as error:
                raise _UnusableError(file, error.strerror or str(error)) from error
            found.append((status.st_ino, status.st_mtime_ns, status.st_size))
        return tuple(found)


class _UnusableError(Exception):
    def __init__(self, file: int, reason: str) -> None:
        self.file = file
        self.reason = reason
        super().__init__(reason)


def _use(file: int, load: Callable[[], None]) -> None:
    try:
        load()
    except ssl.SSLError as error:
        raise _UnusableError(file, (error.reason or str(error)).replace("_", " ").lower()) from error


def _no_passphrase() -> str:
    return ""  # else OpenSSL prompts on the terminal
