"""The files of the webhook: certificate, key and the authority of its clients, followed as they change."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from dra_agent import user_file
from dra_agent.errors import UsageError
from dra_agent.memory_file import memory_file

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 1 << 20
"""Of a certificate with its chain, of a key, or of a bundle of authorities."""

_Identity = tuple[tuple[int, int, int], ...]


class ReloadingCertificate:
    """A TLS context that follows its files: `context` is of the newest files that are whole and fit.

    With `client_ca`, clients may show a certificate, and the handshake fails for one that this authority did not issue
    for clients, or that is not valid now. That one was shown is not enforced here, as probes have none.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        """Load them. Raises UsageError where they cannot be used."""
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        self._paths = [path for path in (certificate, key, client_ca) if path is not None]
        self._logged = ""
        try:
            self._loaded = self._identity()
            self.context = self._load()
        except (OSError, ssl.SSLError) as error:
            where, hint = f"{certificate} and {key}", "give a PEM certificate and its key, without passphrase"
            if client_ca is not None:
                where = f"{certificate}, {key} and {client_ca}"
                hint += ", and a PEM bundle with the authority of the clients' certificates"
            raise UsageError(_reason(error), where=where, hint=hint) from error

    @property
    def unusable(self) -> bool:
        """True if the files are newer but unusable, so that the old certificate is used until it expires."""
        return bool(self._logged)

    @property
    def files(self) -> list[str]:
        """The paths of all that is followed."""
        return [str(path) for path in self._paths]

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
        except (OSError, ssl.SSLError) as error:
            if (reason := _reason(error)) != self._logged:
                log.error("the new certificate cannot be used", extra={"reason": reason, "files": self.files})
            self._logged = reason
            return False
        self.context, self._loaded, self._logged = context, identity, ""
        return True

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        shown, key = (user_file.read(path, MAX_FILE_BYTES) for path in (self._certificate, self._key))
        with memory_file(shown) as certificate_path, memory_file(key) as key_path:
            context.load_cert_chain(certificate_path, key_path, password=_no_passphrase)
        if self._client_ca is not None:
            with memory_file(user_file.read(self._client_ca, MAX_FILE_BYTES)) as path:
                context.load_verify_locations(path)
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def _identity(self) -> _Identity:
        found = [path.stat() for path in self._paths]  # through the links that a Secret's volume is made of
        return tuple((status.st_ino, status.st_mtime_ns, status.st_size) for status in found)


def _no_passphrase() -> str:
    return ""  # instead of asking on the terminal


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return error.strerror or str(error)
