"""/metrics, /healthz and /readyz, on separate threads, so that they respond when the event loop does not.

Metrics and checks are passed in. Probes can have a separate listener.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

from dra_agent.bounded_http import BoundedHandler, HttpListener

if TYPE_CHECKING:
    from dra_agent.metrics.access import EndpointAccess

Render = Callable[[str], tuple[bytes, str]]
Check = Callable[[], list[str]]
"""Returns failures; empty if healthy."""

_NOT_FOUND = {True: b"there are /metrics, /healthz and /readyz\n", False: b"there are /healthz and /readyz\n"}


class HttpServer(HttpListener):
    """Listens from `start` to `close`."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        healthy: Check,
        ready: Check,
        render: Render | None = None,
        access: EndpointAccess | None = None,
        flag: str = "--metrics-address",
    ) -> None:
        """Bind the address, without serving yet; without `render` there is no /metrics.

        Raises:
            UsageError: if the address cannot be bound; `flag` names the option that configures it.
        """
        handler = _handler(render, healthy, ready, access)
        super().__init__(address, handler, flag=flag, tls=(lambda: None) if access is None else access.context)


def _handler(
    render: Render | None, healthy: Check, ready: Check, access: EndpointAccess | None
) -> type[BoundedHandler]:
    class Handler(BoundedHandler):
        probes = frozenset((b"/healthz", b"/readyz"))

        def do_GET(self) -> None:  # noqa: N802  (the base class finds methods by the verb)
            match self.path.partition("?")[0]:
                case "/metrics" if render is not None:
                    if access is not None and not access.permits(self.headers.get("Authorization", "")):
                        refusal = b"a bearer token is required\n"
                        self.respond(HTTPStatus.UNAUTHORIZED, refusal, headers=[("WWW-Authenticate", "Bearer")])
                        return
                    body, kind = render(self.headers.get("Accept", ""))
                    self.respond(HTTPStatus.OK, body, kind)
                case "/healthz":
                    self._check(healthy())
                case "/readyz":
                    self._check(ready())
                case _:
                    self.respond(HTTPStatus.NOT_FOUND, _NOT_FOUND[render is not None])

        do_HEAD = do_GET  # noqa: N815

        def _check(self, failures: list[str]) -> None:
            text = "ok\n" if not failures else "".join(f"{failure}\n" for failure in failures)
            self.respond(HTTPStatus.SERVICE_UNAVAILABLE if failures else HTTPStatus.OK, text.encode())

    return Handler
