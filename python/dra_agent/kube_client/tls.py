"""The TLS side of an access: whom to trust, and the client's own certificate."""

from __future__ import annotations

import ssl

from dra_agent import user_file
from dra_agent.kube_client.config import MAX_FILE_BYTES, ClientConfig, Pem
from dra_agent.kube_client.errors import UnavailableError
from dra_agent.memory_file import memory_file


def tls_context(access: ClientConfig, certificate: Pem | None = None, key: Pem | None = None) -> ssl.SSLContext | None:
    """Make the context for new connections; none for plain http. `certificate` and `key` stand for the access' own.

    Raises UnavailableError where a file is missing or no certificate: it may be about to be replaced.
    """
    if access.server.startswith("http://"):
        return None
    authority = access.authority
    try:
        if authority is None:
            context = ssl.create_default_context()
        elif authority.data is not None:
            context = ssl.create_default_context(cadata=_text(authority.data))
        else:
            with memory_file(_read(authority)) as path:
                context = ssl.create_default_context(cafile=path)
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
        try:
            with memory_file(_read(certificate)) as certificate_path, memory_file(_read(key)) as key_path:
                context.load_cert_chain(certificate_path, key_path, password="")  # never ask a terminal
        except (ssl.SSLError, OSError) as error:
            raise UnavailableError(
                f"the client certificate cannot be used: {error.strerror or error}", where=access.source
            ) from error
    return context


def _text(data: bytes) -> str:
    return data.decode("ascii", errors="replace")


def _read(pem: Pem) -> bytes:
    if pem.data is not None:
        return pem.data
    assert pem.path is not None
    return user_file.read(pem.path, MAX_FILE_BYTES)
