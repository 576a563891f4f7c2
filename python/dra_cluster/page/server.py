"""The server of the page: on the loopback address, below a secret path, for GET and HEAD from this machine's browser.

Other users of the host can connect to a loopback address, so the path has a secret that only the user of the command
sees. It is not a cookie: a browser sends those of 127.0.0.1 to every port. A page of another site that resolves to
127.0.0.1 (DNS rebinding) is refused by its Host header.
"""

from __future__ import annotations

import hmac
import re
import secrets
from http import HTTPStatus
from typing import Any

from dra_agent.bounded_http import BoundedHandler, HttpListener
from dra_cluster.page.site import POLICY, Site

ADDRESS = "127.0.0.1"
SECRET_BYTES = 16
_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
"""Names of the loopback address, with any port: a tunnel may have another one."""
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class PageServer:
    """Listens from `start` to `close`."""

    def __init__(self, site: Site, port: int, *, secret: str | None = None) -> None:
        """Bind the port, 0 for a free one; raises UsageError if it cannot be bound. The secret is random by default."""
        self._secret = secrets.token_urlsafe(SECRET_BYTES) if secret is None else secret
        self._listener = HttpListener((ADDRESS, port), _handler(site, self._secret), flag="--port")

    @property
    def url(self) -> str:
        """The address of the page, with its secret."""
        return f"http://{ADDRESS}:{self._listener.port}/{self._secret}/"

    def start(self) -> None:
        """Start to serve."""
        self._listener.start()

    def close(self) -> None:
        """Stop serving."""
        self._listener.close()


def _handler(site: Site, secret: str) -> type[BoundedHandler]:
    class Handler(BoundedHandler):
        policy = POLICY

        def do_GET(self) -> None:  # noqa: N802  (the base class finds methods by the verb)
            if not self._is_local():
                self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
                return
            if self._is_of_another_site():
                self.send_error(HTTPStatus.FORBIDDEN)
                return
            path, _, query = self.path.partition("?")
            given, slash, name = path.removeprefix("/").partition("/")
            allowed = hmac.compare_digest(given.encode("utf-8", "replace"), secret.encode())
            try:
                page = site.page(name, query) if allowed and slash else None
            except Exception:  # noqa: BLE001 - a defect of one page must not leave its reader without a response
                self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR)
                return
            if page is None:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            self.policy = page.policy
            self.respond(HTTPStatus.OK, page.body, page.kind)

        do_HEAD = do_GET  # noqa: N815

        def _is_local(self) -> bool:
            hosts = self.headers.get_all("Host") or []
            return len(hosts) == 1 and _HOST.fullmatch(hosts[0].strip()) is not None

        def _is_of_another_site(self) -> bool:
            """Whether a browser reports that another site requests it, other than by a link."""
            return (
                self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")
                and self.headers.get("Sec-Fetch-Mode") != "navigate"
            )

        def end_headers(self) -> None:
            self.send_header("Content-Security-Policy", self.policy)
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            super().end_headers()

        def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
            """Respond without words of the request."""
            status = HTTPStatus(code)
            if status is HTTPStatus.NOT_IMPLEMENTED:  # http.server's response to a method that is not defined
                status = HTTPStatus.METHOD_NOT_ALLOWED
            self.respond(status, f"{status.phrase}\n".encode())

        def send_response(self, code: int, message: Any = None) -> None:
            super().send_response(code, message)
            if code == HTTPStatus.METHOD_NOT_ALLOWED:
                self.send_header("Allow", "GET, HEAD")

    return Handler
