"""Publishes the node's devices as ResourceSlices, with the fewest writes, whatever the API server does.

What should be published is for `slices` to say; this part reads, writes, and tries again.
"""

from __future__ import annotations

from dra_agent.publish.errors import DroppedFieldsError
from dra_agent.publish.publisher import Publisher
from dra_agent.publish.stats import PublisherStats

__all__ = ["DroppedFieldsError", "PublisherStats", "Publisher"]
