"""Counts of a fleet: requests from the API server's audit log, bytes from its metrics, CPU and memory from /proc."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

ESTABLISHED = "01"
"""State of a socket in /proc/net/tcp; include/net/tcp_states.h."""


class Request(NamedTuple):
    """One request as the API server received it."""

    verb: str
    resource: str
    received: float
    """Unix time."""
    seconds: float
    """Until the response; of a watch, until it was open."""
    code: int


class AuditLog:
    """The requests of one user, read from the log as it grows."""

    def __init__(self, path: Path, user: str) -> None:
        self._path = path
        self._user = user
        self._offset = 0

    def read(self) -> list[Request]:
        """Return the complete lines since the last call. A watch counts when it is open."""
        try:
            with self._path.open("rb") as log:
                log.seek(self._offset)
                data = log.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        events = (json.loads(line) for line in whole.splitlines() if line)
        return [request for event in events if (request := self._request(event)) is not None]

    def _request(self, event: Mapping[str, Any]) -> Request | None:
        begun = event["stage"] == ("ResponseStarted" if event["verb"] == "watch" else "ResponseComplete")
        if not begun or event["user"]["username"] != self._user:
            return None
        about = event.get("objectRef") or {}
        resource = "/".join(str(about[key]) for key in ("resource", "subresource") if about.get(key))
        verb = event["verb"] + (" (dry run)" if "dryRun=All" in event["requestURI"] else "")
        received, stage = (_unix(event[key]) for key in ("requestReceivedTimestamp", "stageTimestamp"))
        code = int((event.get("responseStatus") or {}).get("code", 0))
        return Request(verb, resource, received, stage - received, code)


def _unix(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def by_kind(requests: Iterable[Request]) -> dict[str, int]:
    """Count requests by verb and resource."""
    return dict(sorted(Counter(f"{one.verb} {one.resource}" for one in requests).items()))


def most_in_a_window(times: Iterable[float], window_s: float) -> int:
    """Return the highest number of times in any window of that length."""
    ordered = sorted(times)
    first, most = 0, 0
    for last, time in enumerate(ordered):
        while time - ordered[first] >= window_s:
            first += 1
        most = max(most, last - first + 1)
    return most


class Usage(NamedTuple):
    """What a process has used so far."""

    cpu_s: float
    """User and system time."""
    resident: int
    """Bytes."""


def usage(pid: int, proc: Path = Path("/proc")) -> Usage:
    """Read a process."""
    fields = (proc / str(pid) / "stat").read_text().rpartition(") ")[2].split()
    pages = int((proc / str(pid) / "statm").read_text().split()[1])
    ticks = int(fields[11]) + int(fields[12])
    return Usage(ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE"))


def connections(port: int, proc: Path = Path("/proc")) -> int:
    """Count the connections to a port of this host."""
    count = 0
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / table).read_text().splitlines()[1:]
        except FileNotFoundError:
            continue
        rows = (line.split() for line in lines)
        count += sum(row[3] == ESTABLISHED and int(row[2].rpartition(":")[2], 16) == port for row in rows)
    return count


class Scrape:
    """Samples of one scrape of /metrics."""

    def __init__(self, text: str) -> None:
        self._samples = re.findall(r"^(\w+)(?:\{(.*)\})? (\S+)$", text, re.MULTILINE)

    def total(self, name: str, **labels: str) -> float:
        """Sum the samples of that name that have these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            float(value)
            for sample, labeled, value in self._samples
            if sample == name and all(one in labeled for one in wanted)
        )

    @property
    def watches(self) -> int:
        """Open watches of the resources that agents follow."""
        return round(
            sum(
                self.total("apiserver_longrunning_requests", verb="WATCH", resource=resource)
                for resource in ("resourceslices", "nodes", "pods", "resourceclaims")
            )
        )

    @property
    def live(self) -> int:
        """Approximate bytes of live heap and stacks, from the last garbage collection of a Go process."""
        # The collector runs when the heap is twice the live heap (GOGC=100, https://go.dev/doc/gc-guide).
        live = self.total("go_memstats_next_gc_bytes") / 2
        return round(live + self.total("go_memstats_stack_inuse_bytes"))

    @property
    def sent(self) -> int:
        """Bytes of responses to reads, and of watch events."""
        # No bytes of responses to writes: the server has no metric of them.
        return round(self.total("apiserver_response_sizes_sum") + self.total("apiserver_watch_events_sizes_sum"))

    @property
    def received(self) -> int:
        """Bytes of request bodies."""
        return round(self.total("apiserver_request_body_size_bytes_sum"))
