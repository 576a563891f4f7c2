"""/metrics, /healthz and /readyz, on separate threads, so that they respond when the event loop does not.

Metrics and checks are passed in. Probes can have a separate listener.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from dra_agent.bounded_http import BoundedHandler, HttpListener

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
        flag: str = "--metrics-address",
    ) -> None:
        """Bind the address, without serving yet; without `render` there is no /metrics.

        Raises:
            UsageError: if the address cannot be bound; `flag` names the option that configures it.
        """
        super().__init__(address, _handler(render, healthy, ready), flag=flag)


def _handler(render: Render | None, healthy: Check, ready: Check) -> type[BoundedHandler]:
    class Handler(BoundedHandler):
        def do_GET(self) -> None:  # noqa: N802  (the base class finds methods by the verb)
            match self.path.partition("?")[0]:
                case "/metrics" if render is not None:
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
