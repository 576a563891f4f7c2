"""One node-local agent for every accelerator of a host."""

from __future__ import annotations

__version__ = "0.1.0"
__all__ = ["__version__"]
