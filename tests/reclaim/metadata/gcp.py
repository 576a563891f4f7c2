"""The metadata server of Google Cloud: Metadata-Flavor header, etags, and requests that wait for a change.

State: `preempted`, `maintenance`; `no_etag` omits the etags.
"""

from __future__ import annotations

import hashlib
from typing import Any
from urllib.parse import parse_qs, urlsplit

from reclaim.metadata.server import FakeService, Request

PATHS = {
    "/computeMetadata/v1/instance/preempted": "preempted",
    "/computeMetadata/v1/instance/maintenance-event": "maintenance",
}
FORBIDDEN = (
    "<!DOCTYPE html>\n<html lang=en>\n<title>Error 403 (Forbidden)!!1</title>\nYour client does not have permission."
)


class FakeGcp(FakeService):
    def __init__(self, port: int = 0) -> None:
        self.waiting = 0
        super().__init__(port)
        self.set(preempted="FALSE", maintenance="NONE")

    def etag(self, value: Any) -> str:
        return hashlib.sha256(str(value).encode()).hexdigest()[:16]

    def answer(self, request: Request) -> tuple[int, str, dict[str, str]]:
        headers = {"Content-Type": "application/text", "Server": "Metadata Server for VM", "Metadata-Flavor": "Google"}
        if request.headers.get("metadata-flavor") != "Google" or "x-forwarded-for" in request.headers:
            return 403, FORBIDDEN, {"Content-Type": "text/html"}
        parts = urlsplit(request.path)
        name = PATHS.get(parts.path)
        if name is None:
            return (
                404,
                "<!DOCTYPE html>\n<title>Error 404 (Not Found)!!1</title>",
                {**headers, "Content-Type": "text/html"},
            )
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        with self.changed:
            if query.get("wait_for_change") == "true":
                known = query.get("last_etag", self.etag(self.state[name]))
                self.waiting += 1
                self.changed.wait_for(
                    lambda: self.closing or self.etag(self.state[name]) != known, float(query.get("timeout_sec", 3600))
                )
                self.waiting -= 1
            value = self.state[name]
        if not self.state.get("no_etag"):
            headers["ETag"] = self.etag(value)
        return 200, value, headers
