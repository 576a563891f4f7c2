"""The instance metadata service of Azure with Scheduled Events: Metadata header, versions and acknowledgements.

State: `events` (a list as in the document), `vm` (the name of this VM). An acknowledged event becomes Started.
"""

from __future__ import annotations

import json
from urllib.parse import parse_qs, urlsplit

from reclaim.metadata.server import FakeService, Request

JSON = {"Content-Type": "application/json; charset=utf-8"}


class FakeAzure(FakeService):
    def __init__(self, port: int = 0) -> None:
        self.acknowledged: list[str] = []
        super().__init__(port)
        self.set(events=[], vm="vmss_0")

    def answer(self, request: Request) -> tuple[int, str, dict[str, str]]:
        if request.headers.get("metadata", "").lower() != "true" or "x-forwarded-for" in request.headers:
            return 400, json.dumps({"error": "Bad request. Required metadata header not specified"}), JSON
        parts = urlsplit(request.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if "api-version" not in query:
            return 400, json.dumps({"error": "Bad request. api-version was not specified in the request"}), JSON
        if parts.path == "/metadata/instance/compute/name":
            return 200, self.state["vm"], {}
        if parts.path != "/metadata/scheduledevents":
            return 404, json.dumps({"error": "Not found"}), JSON
        if request.method == "POST":
            return self._start(request)
        document = {"DocumentIncarnation": len(self.requests), "Events": self.state["events"]}
        return 200, json.dumps(document), JSON

    def _start(self, request: Request) -> tuple[int, str, dict[str, str]]:
        event_ids = {start["EventId"] for start in json.loads(request.body)["StartRequests"]}
        known = {event["EventId"] for event in self.state["events"]}
        if not event_ids <= known:
            return 400, json.dumps({"error": "EventId not found"}), JSON
        self.acknowledged += sorted(event_ids)
        for event in self.state["events"]:
            if event["EventId"] in event_ids:
                event["EventStatus"] = "Started"
        return 200, "", JSON
