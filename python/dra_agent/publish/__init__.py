"""Publishes the node's devices as ResourceSlices, with the fewest writes, also while the API server fails.

The package `slices` computes the desired slices; this package reads, writes and retries.
"""

from __future__ import annotations

from dra_agent.publish.errors import DroppedFieldsError
from dra_agent.publish.publisher import Publisher
from dra_agent.publish.stats import PublisherStats

__all__ = ["DroppedFieldsError", "PublisherStats", "Publisher"]
