"""What tests of several set-ups share."""

from __future__ import annotations

from setup.hung import patience

__all__ = ["patience"]
