"""Calls of NVML that are known to hang: they are not waited for long, and all others for as long as it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dra_agent.nvml.client import CallTimeoutError, NvmlWorker

HURRY_S = 0.5


def hurry(monkeypatch: pytest.MonkeyPatch, hangs: Callable[[str], bool]) -> list[str]:
    """Wait for `HURRY_S` only for calls of the lanes that hang; give the lanes that were waited for, as they come."""
    waited: list[str] = []
    call = NvmlWorker.call

    def hurried(process: NvmlWorker, lane: str, timeout: float, name: str, *arguments: Any) -> Any:
        if not hangs(lane) or process.is_hung(lane):
            return call(process, lane, timeout, name, *arguments)
        try:
            return call(process, lane, HURRY_S, name, *arguments)
        except CallTimeoutError:
            waited.append(lane)
            raise

    monkeypatch.setattr(NvmlWorker, "call", hurried)
    return waited
