"""The sources of reclaim notices, one file each, and what they have in common: HTTP, times, and poll schedules."""

from __future__ import annotations
