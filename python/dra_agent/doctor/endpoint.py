"""Checks of the files that protect /metrics: its certificate and key, and the tokens that it requires."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from pathlib import Path

from dra_agent import user_file
from dra_agent.bearer_tokens import BearerTokens
from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.finding import Finding, ok, problem, warning
from dra_agent.errors import UsageError
from dra_agent.server_certificate import MAX_FILE_BYTES, SETTINGS, ReloadingCertificate

EXPIRY_WARNING_S = 7 * 86400


def check_endpoint(context: CheckContext) -> Iterator[Finding]:
    """Check the files as the agent reads them; nothing without a metrics address."""
    endpoint = context.endpoint
    if endpoint is None:
        return
    if endpoint.certificate is not None and endpoint.key is not None:
        yield from _certificate(endpoint.certificate, endpoint.key)
    if endpoint.tokens is None:
        return
    try:
        BearerTokens(endpoint.tokens, setting="metrics_token_file")
    except UsageError as error:
        yield _unusable(error)
    else:
        yield ok("/metrics requires a bearer token", str(endpoint.tokens))
    if endpoint.certificate is None and not endpoint.is_loopback:
        yield warning(
            "the bearer token of /metrics is sent without encryption",
            str(endpoint.tokens),
            "set metrics_tls_cert and metrics_tls_key",
        )


def _unusable(error: UsageError) -> Finding:
    hint = f"{error.hint}; a running agent uses the earlier file, and does not start again with this one"
    return problem(f"protects /metrics and cannot be used: {error.message}", error.where or "", hint)


def _certificate(certificate: Path, key: Path) -> Iterator[Finding]:
    where = f"{SETTINGS[0]} ({certificate})"
    try:
        shown = ReloadingCertificate(certificate, key)
        anchor = user_file.read(certificate, MAX_FILE_BYTES).decode("ascii", "replace")
        expiry_s, reason = _verify(shown.context, anchor)
    except UsageError as error:
        yield _unusable(error)
        return
    if expiry_s is None:
        yield problem(f"clients of /metrics refuse it: {reason}", where, "replace the certificate and its key")
        return
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(expiry_s))
    if expiry_s - time.time() < EXPIRY_WARNING_S:  # noqa: TID251 - certificates expire at a moment of the wall clock
        yield warning(f"expires at {date}", where, "replace the certificate and its key; the agent reads them again")
    else:
        yield ok(f"the certificate of /metrics is valid until {date}", where)


def _verify(server: ssl.SSLContext, anchor: str) -> tuple[float | None, str]:
    """Return when the certificate expires, in seconds since the epoch; or why it is not valid now.

    A handshake in memory, with a client that trusts the certificate itself: the standard library has no other way to
    read one.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(cadata=anchor)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
    waiting = True
    while waiting:
        waiting = False
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                waiting = True
            except ssl.SSLCertVerificationError as error:
                return None, error.verify_message
    found = ends[0].getpeercert() or {}
    return float(ssl.cert_time_to_seconds(str(found["notAfter"]))), ""
