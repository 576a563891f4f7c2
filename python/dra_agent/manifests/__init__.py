"""resource.k8s.io/v1 objects as users write them: read from YAML or JSON files, each field with its line.

It does not store, allocate or publish anything.
"""

from __future__ import annotations

from dra_agent.manifests.load import LoadedObject, load_manifests, parse_objects

__all__ = ["LoadedObject", "load_manifests", "parse_objects"]
