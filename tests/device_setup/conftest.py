"""What tests of several set-ups share."""

from __future__ import annotations

from device_setup.hung import no_haste, patience

__all__ = ["no_haste", "patience"]
