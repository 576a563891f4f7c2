"""GCP: the metadata server's `preempted` and `maintenance-event`, each with a question that waits for a change.

Compute Engine documentation: "Querying VM metadata" (wait_for_change, last_etag, timeout_sec), "Preemptible VM
instances", "Monitor and plan for a host maintenance event".
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from dra_agent.reclaim.reading import Kind, Reading, SourceError, Watch, printable
from dra_agent.reclaim.signals.http import Answer, MetadataService
from dra_agent.reclaim.signals.polling import Look, Pace, keep_looking

WAIT = 15
"""Seconds that one question waits for a change. A connection that died without a word is noticed after that and
`_LATE`, which a notice of 30 s outlasts."""
_LATE = 3.0
FIRST = 5.0
EVERY = 1.0
"""Seconds between two questions at least; the question itself is what waits."""
_ETAG = re.compile(r"[!-~]{1,256}")
_ROOT = "/computeMetadata/v1/instance"


class Value:
    """One value of the metadata server, and the words that it can be.

    Every change is seen: a question names the etag of the answer before it, and is answered at once if that is old.
    """

    def __init__(
        self, endpoint: str, path: str, words: dict[str, tuple[Kind, str, timedelta] | None], name: str
    ) -> None:
        """`words`: what each value means, as kind, text and time to the end; None for "nothing"."""
        self._service = MetadataService(endpoint)
        self._path = path
        self._words = words
        self._name = name
        self._etag = ""
        self._word = ""
        self._since: datetime | None = None

    async def look(self) -> Sequence[Reading]:
        """Ask for the value at first, then for its next change; an unchanged value is an answer too."""
        headers = {"Metadata-Flavor": "Google"}
        if self._etag:
            query = f"?wait_for_change=true&last_etag={self._etag}&timeout_sec={WAIT}"
            answer = await self._asked(_ROOT + self._path + query, headers, WAIT + _LATE)
        else:
            answer = await self._asked(_ROOT + self._path, headers, FIRST)
        word = answer.text().strip().upper()
        if word not in self._words:
            raise SourceError(f"{self._path} is {printable(word)!r}, which is no value that it has")
        etag = answer.headers.get("etag", "")
        # Without an etag the question cannot wait without missing an edge, so the value is asked for again and again.
        self._etag = etag if _ETAG.fullmatch(etag) and not set(etag) & set("&#%+") else ""
        if word != self._word:
            self._word, self._since = word, answer.received
        meaning = self._words[word]
        if meaning is None:
            return ()
        kind, what, left = meaning
        assert self._since is not None
        deadline = self._since + left if kind == "notice" else None
        return (Reading(self._name, kind, word, what, deadline, lasting=self._name == "gcp.preempted"),)

    def close(self) -> None:
        """Hang up."""
        self._service.close()

    async def _asked(self, target: str, headers: dict[str, str], at_most: float) -> Answer:
        try:
            answer = await self._service.ask(target, headers=headers, at_most=at_most)
        except SourceError:
            self._etag = ""  # the next question is a plain one: it tells at once how things stand
            raise
        if answer.status != 200:
            self._etag = ""
            raise answer.refusal()
        if answer.headers.get("metadata-flavor", "").lower() != "google":
            self._etag = ""
            raise SourceError("the answer is not from Google's metadata server: it has no Metadata-Flavor")
        return answer


class Gcp:
    """The source."""

    names = ("gcp.preempted", "gcp.maintenance")

    def __init__(
        self,
        endpoint: str,
        *,
        preemption: timedelta,
        maintenance: timedelta,
        pace: Callable[[float], Pace] = Pace,
    ) -> None:
        """`preemption` and `maintenance`: from the word to the end of the instance."""
        self._pace = pace
        self._values = {
            "gcp.preempted": Value(
                endpoint,
                "/preempted",
                {"FALSE": None, "TRUE": ("notice", "the instance is preempted", preemption)},
                "gcp.preempted",
            ),
            # An instance that migrates goes on where it is: its claims have nothing to fear.
            "gcp.maintenance": Value(
                endpoint,
                "/maintenance-event",
                {
                    "NONE": None,
                    "MIGRATE_ON_HOST_MAINTENANCE": None,
                    "TERMINATE_ON_HOST_MAINTENANCE": ("notice", "host maintenance ends the instance", maintenance),
                },
                "gcp.maintenance",
            ),
        }

    async def run(self, watch: Watch) -> None:
        """Keep one question waiting for each value, on a connection of its own."""
        try:
            async with asyncio.TaskGroup() as group:
                for name, value in self._values.items():
                    look: Look = value.look
                    group.create_task(keep_looking(name, look, self._pace(EVERY), watch))
        finally:
            for value in self._values.values():
                value.close()

    async def released(self) -> None:
        """Nothing waits for this host."""
