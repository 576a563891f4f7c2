"""Ages of objects, in the format of kubectl."""

from __future__ import annotations

from datetime import datetime

from dra_agent.clock import wall_now


def age(timestamp: str | None) -> str | None:
    """Return the time since an RFC 3339 time in the format of `kubectl get`; None for no time.

    Source: k8s.io/apimachinery pkg/util/duration/duration.go, HumanDuration.
    """
    if not timestamp:
        return None
    passed = int((wall_now() - datetime.fromisoformat(timestamp)).total_seconds())
    return duration(max(passed, 0))


def duration(seconds: int) -> str:
    """Return a duration in the one or two largest units that matter."""
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 2 * 60:
        return f"{seconds}s"
    if minutes < 10:
        return _two(minutes, "m", seconds % 60, "s")
    if minutes < 3 * 60:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 2 * 365:
        return f"{days}d"
    return _two(days // 365, "y", days % 365 if days < 8 * 365 else 0, "d")


def _two(large: int, unit: str, small: int, small_unit: str) -> str:
    return f"{large}{unit}{small}{small_unit}" if small else f"{large}{unit}"
