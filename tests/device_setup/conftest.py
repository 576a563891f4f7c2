"""What tests of several set-ups share."""

from __future__ import annotations

from device_setup.hung import no_haste, patience
from device_setup.moved_nic import other_pod, pod, the_nic

__all__ = ["no_haste", "other_pod", "patience", "pod", "the_nic"]
