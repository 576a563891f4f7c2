"""The sources of reclaim notices, one file each, and their common parts: HTTP, times, and poll schedules."""

from __future__ import annotations
