"""The TLS side of an access: whom to trust, and the client's own certificate."""

from __future__ import annotations

import os
import ssl

from dra_agent.cluster.access import Access, Pem
from dra_agent.cluster.errors import UnavailableError


def tls_context(access: Access, certificate: Pem | None = None, key: Pem | None = None) -> ssl.SSLContext | None:
    """Make the context for new connections; none for plain http. `certificate` and `key` stand for the access' own.

    Raises UnavailableError where a file is missing or no certificate: it may be about to be replaced.
    """
    if access.server.startswith("http://"):
        return None
    authority = access.authority
    try:
        context = ssl.create_default_context(
            cafile=None if authority is None or authority.path is None else str(authority.path),
            cadata=None if authority is None or authority.data is None else _text(authority.data),
        )
    except (ssl.SSLError, OSError) as error:
        raise UnavailableError(
            f"the certificate of the cluster's authority cannot be used: {error.strerror or error}",
            where=str(authority.path if authority is not None and authority.path is not None else access.source),
        ) from error
    if access.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate, key = certificate or access.certificate, key or access.key
    if certificate is not None and key is not None:
        with _File(certificate) as certificate_path, _File(key) as key_path:
            try:
                context.load_cert_chain(certificate_path, key_path, password="")  # never ask a terminal
            except (ssl.SSLError, OSError) as error:
                raise UnavailableError(
                    f"the client certificate cannot be used: {error.strerror or error}", where=access.source
                ) from error
    return context


def _text(data: bytes) -> str:
    return data.decode("ascii", errors="replace")


class _File:
    """OpenSSL reads keys from files only: one that is data becomes a file in memory for as long as it is read."""

    def __init__(self, pem: Pem) -> None:
        self._pem = pem
        self._handle: int | None = None

    def __enter__(self) -> str:
        if self._pem.data is None:
            return str(self._pem.path)
        self._handle = os.memfd_create("pem", os.MFD_CLOEXEC)
        os.write(self._handle, self._pem.data)
        return f"/proc/self/fd/{self._handle}"

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            os.close(self._handle)
