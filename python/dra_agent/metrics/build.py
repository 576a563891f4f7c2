"""The metric `dra_agent_build_info`: version and revision of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dra_agent import __version__, revision

if TYPE_CHECKING:
    from prometheus_client.core import Metric


def build_info() -> Metric:
    """Read the revision and return the metric, whose value is always 1."""
    from prometheus_client.core import InfoMetricFamily

    labels = {"version": __version__, "revision": revision.read()}
    return InfoMetricFamily("dra_agent_build", "The agent's version and the revision of its sources.", labels)
