"""Azure's instance metadata service with Scheduled Events: the Metadata header, versions, acknowledgement.

State: `events` (a list as in the document), `vm` (the name of this VM). An acknowledged event becomes Started.
"""

from __future__ import annotations

import json
from urllib.parse import parse_qs, urlsplit

from reclaim.metadata.server import Asked, FakeService

JSON = {"Content-Type": "application/json; charset=utf-8"}


class FakeAzure(FakeService):
    def __init__(self, port: int = 0) -> None:
        self.acknowledged: list[str] = []
        super().__init__(port)
        self.set(events=[], vm="vmss_0")

    def answer(self, asked: Asked) -> tuple[int, str, dict[str, str]]:
        if asked.headers.get("metadata", "").lower() != "true" or "x-forwarded-for" in asked.headers:
            return 400, json.dumps({"error": "Bad request. Required metadata header not specified"}), JSON
        parts = urlsplit(asked.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if "api-version" not in query:
            return 400, json.dumps({"error": "Bad request. api-version was not specified in the request"}), JSON
        if parts.path == "/metadata/instance/compute/name":
            return 200, self.state["vm"], {}
        if parts.path != "/metadata/scheduledevents":
            return 404, json.dumps({"error": "Not found"}), JSON
        if asked.method == "POST":
            return self._start(asked)
        document = {"DocumentIncarnation": len(self.asked), "Events": self.state["events"]}
        return 200, json.dumps(document), JSON

    def _start(self, asked: Asked) -> tuple[int, str, dict[str, str]]:
        wanted = {request["EventId"] for request in json.loads(asked.body)["StartRequests"]}
        known = {event["EventId"] for event in self.state["events"]}
        if not wanted <= known:
            return 400, json.dumps({"error": "EventId not found"}), JSON
        self.acknowledged += sorted(wanted)
        for event in self.state["events"]:
            if event["EventId"] in wanted:
                event["EventStatus"] = "Started"
        return 200, "", JSON
