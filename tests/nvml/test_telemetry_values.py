"""Values of telemetry that a library has, where it lacks others; a fake module has what the simulated library lacks."""

from __future__ import annotations

from typing import Any

import pynvml
import pytest

from dra_agent.nvml.worker import read_telemetry


class Library:
    """A library that has some functions, which return a fixed value, and refuses all others."""

    def __init__(self, refusal: int, **values: int) -> None:
        self._refusal = refusal
        self._values = values

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            return getattr(pynvml, name)

        def call(*arguments: object, **options: object) -> int:
            if name not in self._values:
                raise pynvml.NVMLError(self._refusal)
            return self._values[name]

        return call


@pytest.mark.parametrize("refusal", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND])
def test_replays_of_pcie_do_not_depend_on_other_values(refusal: int) -> None:
    library = Library(refusal, nvmlDeviceGetPcieReplayCounter=7)
    assert read_telemetry(library, None) == [("pcie_replays", 7)]


def test_a_library_without_replays_of_pcie_has_the_other_values() -> None:
    library = Library(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, nvmlDeviceGetPowerUsage=300_000)
    assert read_telemetry(library, None) == [("power_milliwatts", 300_000)]
