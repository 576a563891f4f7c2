"""The sources of reclaim notices, one file each, and what they have in common: HTTP, times, and when to look again."""

from __future__ import annotations
