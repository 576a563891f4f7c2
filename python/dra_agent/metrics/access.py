"""Who may read /metrics: the certificate that the server shows, and the tokens that it requires."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

    from dra_agent.bearer_tokens import BearerTokens
    from dra_agent.server_certificate import ReloadingCertificate

TOKEN_SETTING = "metrics_token_file"  # noqa: S105 - the name of a key


class EndpointAccess:
    """TLS for all paths of a listener, and a token for /metrics; probes need none."""

    def __init__(self, certificate: Path | None, key: Path | None, tokens: Path | None) -> None:
        """Load the files that are given. Raises UsageError with the key and the file of one that cannot be used."""
        self._certificate: ReloadingCertificate | None = None
        self._tokens: BearerTokens | None = None
        # An agent without such files needs no memory for them.
        if certificate is not None and key is not None:
            from dra_agent.server_certificate import ReloadingCertificate

            self._certificate = ReloadingCertificate(certificate, key)
        if tokens is not None:
            from dra_agent.bearer_tokens import BearerTokens

            self._tokens = BearerTokens(tokens, setting=TOKEN_SETTING)

    def context(self) -> ssl.SSLContext | None:
        """Return the context of the present files for a new connection; None: without TLS."""
        if self._certificate is None:
            return None
        self._certificate.refresh()
        return self._certificate.context

    def permits(self, authorization: str) -> bool:
        """Return whether a client with this Authorization header may read /metrics."""
        return self._tokens is None or self._tokens.permit(authorization)
