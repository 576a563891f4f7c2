"""The `[otlp]` section of the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec


class OtlpSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section `[otlp]`."""

    endpoint: str = ""
    """The collector, without the path of a signal: "https://collector.example:4318". Empty: nothing is exported."""
    protocol: Literal["http/protobuf"] = "http/protobuf"
    """The encoding of OTLP."""
    metrics: bool = True
    """Whether metrics are exported."""
    traces: bool = True
    """Whether spans of prepare and unprepare are exported."""
    interval: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 60
    """Seconds between two exports of metrics."""
    timeout: Annotated[int, msgspec.Meta(ge=1, le=60)] = 10
    """Seconds for one request, from the connection to the end of the response."""
    headers_file: Path | None = None
    """Headers of each request, a `Name: value` in each line; read for each request."""
    ca_file: Path | None = None
    """PEM authorities of the collector's certificate; none: those of the system, of which the image has none."""
    client_cert: Path | None = None
    """PEM certificate, with its chain, that the agent shows to the collector."""
    client_key: Path | None = None
    """PEM key of that certificate."""
    attributes: dict[str, str] = {}
    """Resource attributes in addition to the agent's own."""
