"""NVML as the agent uses it: loaded from where the host says, initialised once, every call with a deadline.

Errors are sorted into those that a caller handles differently; what the answers mean is facts.py's to say.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from dra_agent.errors import RetryableError
from dra_agent.inventory.nvidia.worker import Worker

WHOLE = "the library"
"""The key of calls that are about no single GPU."""

_START_FACTOR = 4
"""Without persistence mode the first call initialises every GPU, which takes seconds."""


class NvmlError(RetryableError):
    """NVML answered with an error."""

    def __init__(self, what: str, code: int, todo: str | None = None) -> None:
        super().__init__(what, where="NVML", todo=todo)
        self.code = code


class NotThereError(NvmlError):
    """The GPU does not have what was asked for, or this NVML is too old to say."""


class LostError(NvmlError):
    """The GPU has fallen off the bus or needs a reset: nothing can use it."""


class UnknownGpuError(NvmlError):
    """NVML does not know a GPU of this address."""


class Nvml:
    """One NVML library; safe to use from several threads."""

    def __init__(self, path: Path | None, timeout: float) -> None:
        self._path = path
        self._timeout = timeout
        self._worker = Worker("NVML")
        self._module: ModuleType | None = None
        self._started = False

    @property
    def module(self) -> ModuleType:
        """pynvml: for its constants and structures; its functions are called through `call` only."""
        if self._module is None:
            self._module = _load_module(self._path)
        return self._module

    def start(self) -> None:
        """Load and initialise the library; does nothing when that is done."""
        if not self._started:
            flag = self.module.NVML_INIT_FLAG_NO_GPUS
            self._call(WHOLE, self._timeout * _START_FACTOR, "nvmlInitWithFlags", flag)
            self._started = True

    def restart(self) -> None:
        """Initialise again: NVML never sees a GPU that was plugged in after its start. All handles become invalid."""
        self.stop()
        self.start()

    def stop(self) -> None:
        """Let go of the GPUs, so that the driver can be unloaded or a GPU be bound elsewhere."""
        if self._started:
            self._started = False
            self._call(WHOLE, self._timeout, "nvmlShutdown")

    def close(self) -> None:
        """Let go of the GPUs and end the thread; never fails."""
        try:
            self.stop()
        except RetryableError:
            pass
        finally:
            self._worker.close()

    def call(self, name: str, *arguments: Any, about: str = WHOLE) -> Any:
        """Make one call. Raises HungError, NotThereError, LostError, UnknownGpuError or NvmlError."""
        return self._call(about, self._timeout, name, *arguments)

    def is_stuck(self, about: str) -> bool:
        """Whether an earlier call about a GPU is still out: another would only hang as well."""
        return self._worker.is_stuck(about)

    def _call(self, about: str, timeout: float, name: str, *arguments: Any) -> Any:
        module = self.module
        try:
            return self._worker.call(about, timeout, getattr(module, name), *arguments)
        except module.NVMLError as error:
            raise self._sorted(name, error) from None
        except OSError as error:
            raise NvmlError(str(error), 0, todo="check the path of the NVML library") from None

    def _sorted(self, name: str, error: Any) -> NvmlError:
        module, code = self.module, error.value
        if code in (
            module.NVML_ERROR_NOT_SUPPORTED,
            module.NVML_ERROR_FUNCTION_NOT_FOUND,
            module.NVML_ERROR_NO_DATA,
            module.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
            module.NVML_ERROR_DEPRECATED,
        ):
            return NotThereError(f"{name}: {error}", code)
        if code in (module.NVML_ERROR_GPU_IS_LOST, module.NVML_ERROR_RESET_REQUIRED):
            return LostError(str(error), code)
        if code in (module.NVML_ERROR_NOT_FOUND, module.NVML_ERROR_GPU_NOT_FOUND):
            return UnknownGpuError(str(error), code)
        todo = {
            module.NVML_ERROR_LIBRARY_NOT_FOUND: "install NVIDIA's driver, or say where libnvidia-ml.so.1 is",
            module.NVML_ERROR_DRIVER_NOT_LOADED: "load the driver (modprobe nvidia) and look at the kernel's log",
            module.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "reboot, or reload the nvidia kernel modules: an update replaced"
            " the driver's libraries but not the running driver",
            module.NVML_ERROR_NO_PERMISSION: "run the agent as root, or give its user access to /dev/nvidia*",
            module.NVML_ERROR_INSUFFICIENT_POWER: "connect the GPU's power cables",
            module.NVML_ERROR_IRQ_ISSUE: "look at the kernel's log for interrupts that were not delivered",
            module.NVML_ERROR_CORRUPTED_INFOROM: "the GPU's permanent memory is damaged; ask its vendor",
        }.get(code)
        return NvmlError(f"{name}: {error}", code, todo)


def _load_module(path: Path | None) -> ModuleType:
    """Give pynvml; a library at a path gets a copy of the module, which keeps one library per module in a global."""
    if path is None:
        import pynvml

        system: ModuleType = pynvml
        return system
    name = f"dra_agent.inventory.nvidia._pynvml:{path}"
    if name not in sys.modules:
        found = importlib.util.find_spec("pynvml")
        assert found is not None and found.origin is not None
        spec = importlib.util.spec_from_file_location(name, found.origin)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # It looks itself up there while it makes its classes of errors.
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
            module.__dict__["nvmlLib"] = ctypes.CDLL(str(path))
        except OSError as error:
            del sys.modules[name]
            raise NvmlError(str(error), 0, todo="check the path of the NVML library") from None
    return sys.modules[name]
