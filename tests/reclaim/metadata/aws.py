"""EC2's instance metadata service, version 2: tokens, 401, 404 with the service's own page.

State: `spot`, `rebalance`, `maintenance` (JSON values), `autoscaling` (text); None is 404. `token_seconds` caps the life of
tokens, and `takes_tokens_for` is how long they are taken after all; `forget_tokens` set to anything makes every token given so far void.
"""  # noqa: E501

from __future__ import annotations

import json
import time
from typing import Any

from reclaim.metadata.server import FakeService, Request

PAGE = """<?xml version="1.0" encoding="iso-8859-1"?>
<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Transitional//EN"
\t"http://www.w3.org/TR/xhtml1/DTD/xhtml1-transitional.dtd">
<html xmlns="http://www.w3.org/1999/xhtml" xml:lang="en" lang="en">
 <head>
  <title>{status} - {reason}</title>
 </head>
 <body>
  <h1>{status} - {reason}</h1>
 </body>
</html>
"""
PATHS = {
    "/latest/meta-data/spot/instance-action": "spot",
    "/latest/meta-data/events/recommendations/rebalance": "rebalance",
    "/latest/meta-data/events/maintenance/scheduled": "maintenance",
    "/latest/meta-data/autoscaling/target-lifecycle-state": "autoscaling",
}
REASONS = {400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found"}


class FakeAws(FakeService):
    def __init__(self, port: int = 0) -> None:
        self._tokens: dict[str, float] = {}
        super().__init__(port)
        self.set(maintenance=[], autoscaling="InService", token_seconds=21600)

    def on_change(self, values: dict[str, Any]) -> None:
        if "forget_tokens" in values:
            self._tokens.clear()

    def answer(self, request: Request) -> tuple[int, str, dict[str, str]]:
        if request.path == "/latest/api/token":
            return self._token(request)
        if request.method != "GET":
            return self._page(403)
        if self._tokens.get(request.headers.get("x-aws-ec2-metadata-token", ""), 0.0) < time.monotonic():
            return self._page(401)
        value = self.state.get(PATHS.get(request.path, ""))
        if value is None:
            return self._page(404)
        return 200, value if isinstance(value, str) else json.dumps(value), {}

    def _token(self, request: Request) -> tuple[int, str, dict[str, str]]:
        seconds = request.headers.get("x-aws-ec2-metadata-token-ttl-seconds", "")
        if request.method != "PUT" or not seconds.isdigit() or not 1 <= int(seconds) <= 21600:
            return self._page(400)
        # The service refuses proxied requests: the token would belong to another host.
        if "x-forwarded-for" in request.headers:
            return self._page(403)
        lifetime = min(int(seconds), self.state["token_seconds"])
        token = f"AQAEA{len(self._tokens):04d}=="
        self._tokens[token] = time.monotonic() + self.state.get("takes_tokens_for", lifetime)
        return 200, token, {"X-Aws-Ec2-Metadata-Token-Ttl-Seconds": str(max(1, int(lifetime)))}

    def _page(self, status: int) -> tuple[int, str, dict[str, str]]:
        return status, PAGE.format(status=status, reason=REASONS[status]), {"Content-Type": "text/html"}
