"""`python -m reclaim.metadata aws|gcp|azure [PORT]`, with tests/ on the path: a metadata service until SIGTERM."""

from __future__ import annotations

import signal
import sys

from reclaim.metadata.aws import FakeAws
from reclaim.metadata.azure import FakeAzure
from reclaim.metadata.gcp import FakeGcp
from reclaim.metadata.server import FakeService

CLOUDS: dict[str, type[FakeService]] = {"aws": FakeAws, "gcp": FakeGcp, "azure": FakeAzure}

if __name__ == "__main__":
    service = CLOUDS[sys.argv[1]](int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    print(service.endpoint, flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    service.close()
