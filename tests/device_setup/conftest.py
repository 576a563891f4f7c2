"""What tests of several set-ups share."""

from __future__ import annotations

from device_setup.hung import patience

__all__ = ["patience"]
