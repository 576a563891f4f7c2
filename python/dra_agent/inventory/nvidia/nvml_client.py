"""NVML as the agent uses it: in a worker process, initialized once, every call with a deadline.

A crash of the library ends only its process, which is started again at the next scan. Errors are sorted into
those that a caller handles differently; `gpu_info` interprets results.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from dra_agent.driver_root import DriverMissingError, DriverRoot, Identity
from dra_agent.errors import RetryableError
from dra_agent.nvml import definitions
from dra_agent.nvml.client import (
    CallTimeoutError,
    LibraryNotFoundError,
    NvmlBusyError,
    NvmlCallError,
    NvmlWorker,
    RestartPolicy,
    StaleHandleError,
    WorkerExitedError,
)

__all__ = [
    "WHOLE",
    "NvmlBusyError",
    "WorkerExitedError",
    "CallTimeoutError",
    "GpuLostError",
    "NoPermissionError",
    "NotSupportedError",
    "NvmlClient",
    "NvmlError",
    "StaleHandleError",
    "UnknownGpuError",
    "acquire",
]

log = logging.getLogger(__name__)

WHOLE = "the library"
"""The key of calls that are about no single GPU."""

SLOW_FACTOR = 4
"""Multiple of the timeout of a call for a start of the library, and for calls while MIG of a GPU changes."""
GPU_START_FACTOR = 2
"""Multiple of the timeout of a call for the initialization of each GPU. Without persistence mode the driver initializes
a GPU when it is looked up first (nvml.h, nvmlInit_v2): a B200 takes 3.1 to 4.3 s, one GPU after the other
(tinfoilsh/cvmimage#363)."""
CHANGE_SETTLES_S = 30.0
"""Seconds after a change of MIG instances in which calls about the GPU may still be slow."""
_LOOKUPS = "nvmlDeviceGetHandleBy"
_MIG_CHANGES = frozenset(
    {
        "nvmlDeviceSetMigMode",
        "nvmlDeviceCreateGpuInstance",
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        "nvmlGpuInstanceDestroy",
        "nvmlGpuInstanceCreateComputeInstance",
        "nvmlGpuInstanceCreateComputeInstanceWithPlacement",
        "nvmlComputeInstanceDestroy",
    }
)
_MIG_WORDS = ("MigDevice", "GpuInstance", "ComputeInstance")
"""Calls that list instances: one takes up to 10 s while instances are created and destroyed (NVIDIA's DRA driver,
cmd/gpu-kubelet-plugin/nvlib.go)."""
_QUIET_S = 0.01
"""Seconds between two checks for pending calls."""


class NvmlError(RetryableError):
    """NVML returned an error."""

    def __init__(self, message: str, code: int, hint: str | None = None) -> None:
        super().__init__(message, where="NVML", hint=hint)
        self.code = code


class NotSupportedError(NvmlError):
    """The GPU does not support the query, or this NVML is too old."""


class GpuLostError(NvmlError):
    """The GPU has fallen off the bus or needs a reset: nothing can use it."""


class NoPermissionError(NvmlError):
    """The process lacks a permission for the call, as most calls about MIG need one."""


class UnknownGpuError(NvmlError):
    """NVML does not know a GPU of this address."""


class NvmlClient:
    """One NVML library; safe to use from several threads.

    Calls about one GPU are sequential, calls about different GPUs are concurrent. A handle is valid while `generation`
    stays the same; an older one raises StaleHandleError.
    """

    def __init__(self, source: Path | DriverRoot | None, timeout: float) -> None:
        self._source = source
        self._identity: Identity | None = None
        """Of the library below a driver root that the process has loaded."""
        self._had_marker = False
        """True if the driver container of this root announces when its driver works."""
        self.timeout_s = timeout
        """Seconds for a call that neither initializes GPUs nor changes MIG instances."""
        self._life = threading.RLock()
        self._process: NvmlWorker | None = None
        self._restart_policy = RestartPolicy()
        self._generation = 0
        self._started = False
        self.users = 1
        """Users of `acquire` that have not closed it."""
        self._is_closed = False
        self._gpus = 1
        self._initialized: set[str] = set()
        """GPUs that this process of the library has looked up, so that they are initialized."""
        self._initializing: set[str] = set()
        self._changed: dict[str, float] = {}
        """By GPU: time of the last change of its MIG instances."""

    @property
    def module(self) -> ModuleType:
        """NVML's constants and structures by the names of pynvml; functions are called through `call` only."""
        return definitions

    @property
    def generation(self) -> int:
        """Which start of the library this is: handles of another one have no meaning."""
        return self._generation

    @property
    def pid(self) -> int | None:
        """The process that has the library; None where none runs."""
        process = self._process
        return None if process is None or process.ended else process.pid

    @property
    def is_due(self) -> bool:
        """Return True if it is stopped and may be started now: not released, and no backoff is pending."""
        if not self._life.acquire(blocking=False):
            return False
        try:
            process = self._process
            if process is not None:
                return bool(process.ended) or self._is_outdated()
            return self._restart_policy.remaining(time.monotonic()) <= 0 and self._has_library()
        finally:
            self._life.release()

    @property
    def is_running(self) -> bool:
        """True if it is started; `start` then returns immediately."""
        process = self._process
        return self._started and process is not None and not process.ended

    @property
    def is_busy(self) -> bool:
        """True while a call has no response yet."""
        process = self._process
        return process is not None and process.busy

    @property
    def start_timeout_s(self) -> float:
        """Seconds for calls that initialize GPUs: the driver may initialize all of them, one after the other."""
        return self.timeout_s * max(SLOW_FACTOR, GPU_START_FACTOR * self._gpus)

    def expect(self, gpus: int) -> None:
        """Set the number of GPUs that a start may initialize."""
        self._gpus = max(1, gpus)

    def start(self) -> None:
        """Load and initialise the library; does nothing when that is done. Starts one again that has failed.

        Raises CallTimeoutError if another thread does not finish its start in time, WorkerExitedError after `close`.
        """
        if not self._life.acquire(timeout=self.timeout_s * SLOW_FACTOR):
            raise CallTimeoutError("NVML is still being started", where="NVML")
        try:
            if self._is_closed:
                # A start that another thread had begun before: its process would have no owner.
                raise WorkerExitedError("its last user has closed it", where="NVML")
            self._end_failed()
            if self._process is None:
                if (wait := self._restart_policy.remaining(time.monotonic())) > 0:
                    raise WorkerExitedError(f"it failed repeatedly; it is started again in {wait:.0f} s", where="NVML")
                self._process = self._made()
            if not self._started:
                self._call(WHOLE, self.start_timeout_s, "nvmlInitWithFlags", self.module.NVML_INIT_FLAG_NO_GPUS)
                self._started = True
        finally:
            self._life.release()

    def drop_failed(self) -> None:
        """End a process that has failed or hangs for too long, unless another thread starts or stops the library."""
        if self._life.acquire(blocking=False):
            try:
                self._end_failed()
            finally:
                self._life.release()

    def stop(self) -> None:
        """Close the GPUs, so that the driver can be unloaded or a GPU be bound to another one.

        Calls that are being made are waited for, up to a deadline's time; so is a start.
        """
        if not self._life.acquire(timeout=self.timeout_s):
            # A start hangs, or initializes GPUs: it ends with its process.
            if (starting := self._process) is not None:
                starting.close()
            self._life.acquire()
        try:
            process, self._started = self._process, False
            if process is None:
                return
            end = time.monotonic() + self.timeout_s
            while process.busy and time.monotonic() < end:
                time.sleep(_QUIET_S)
            self._process = None
            process.close()
        finally:
            self._life.release()

    @contextmanager
    def released(self) -> Iterator[None]:
        """Close the GPUs for all users of the library, and block a restart until the context ends."""
        with self._life:
            self.stop()
            yield

    def close(self) -> None:
        """Close the GPUs; never fails. A shared library stays open for its other users."""
        with _SHARING:
            self.users -= 1
            if self.users > 0:
                return
            if _SHARED.get(self._source) is self:
                del _SHARED[self._source]
        self._is_closed = True
        self.stop()

    def call(self, name: str, *arguments: Any, about: str = WHOLE, timeout: float | None = None) -> Any:
        """Make one call. Raises CallTimeoutError, NotSupportedError, GpuLostError, UnknownGpuError or NvmlError.

        Structures behind ctypes.byref are filled in place. `timeout` in seconds, instead of the one that the
        call and the GPU's state require.
        """
        initializes = name.startswith(_LOOKUPS) and about not in self._initialized
        if timeout is None:
            timeout = self.start_timeout_s if initializes else self._timeout_s(name, about)
        if initializes:
            self._initializing.add(about)
        if name in _MIG_CHANGES:
            self._changed[about] = time.monotonic()
        try:
            result = self._call(about, timeout, name, *arguments)
        finally:
            self._initializing.discard(about)
            if name in _MIG_CHANGES:
                self._changed[about] = time.monotonic()
        if initializes:
            self._initialized.add(about)
        return result

    def _timeout_s(self, name: str, about: str) -> float:
        changed = self._changed.get(about)
        settling = changed is not None and time.monotonic() - changed < CHANGE_SETTLES_S
        # The driver may serve one GPU after the other.
        if self._initializing or settling or any(word in name for word in _MIG_WORDS):
            return self.timeout_s * SLOW_FACTOR
        return self.timeout_s

    def is_hung(self, about: str) -> bool:
        """Return True if an earlier call for a GPU is pending: another would hang too."""
        process = self._process
        return process is not None and process.is_hung(about)

    def _made(self) -> NvmlWorker:
        self._started = False
        self._initialized.clear()
        source = self._source
        path = None if isinstance(source, DriverRoot) else source
        if isinstance(source, DriverRoot):
            if self._had_marker and not source.ready_marker.exists():
                raise DriverMissingError(
                    "NVIDIA's driver container has stopped, or is being replaced",
                    where=str(source.path),
                    hint="wait until it has started again (GPU Operator: pods of nvidia-driver-daemonset)",
                )
            self._identity, path = source.identity(), source.library()
            self._had_marker = source.ready_marker.exists()
        self._generation += 1
        try:
            return NvmlWorker(self.module, path, self._generation)
        except OSError as error:
            self._restart_policy.failed(time.monotonic())
            raise WorkerExitedError(
                f"no process can be started for it: {error.strerror or error}", where="NVML"
            ) from error

    def _is_outdated(self) -> bool:
        """Return True if the driver root has another library now, or the driver is about to be unloaded.

        A process with the library uses the driver's modules, so they cannot be unloaded. The driver
        container removes its marker before it unloads them (gpu-operator, assets/state-driver/0500_daemonset.yaml,
        preStop), and unmounts its root after that.
        """
        source = self._source
        if not isinstance(source, DriverRoot):
            return False
        return (self._had_marker and not source.ready_marker.exists()) or source.identity() != self._identity

    def _has_library(self) -> bool:
        """Return True if a start may find a library; without a driver root, only a start shows it."""
        source = self._source
        if not isinstance(source, DriverRoot):
            return True
        if self._had_marker and not source.ready_marker.exists():
            return False
        return not source.required or source.identity() is not None

    def _end_failed(self) -> None:
        """Drop an exited worker, and end one that hangs for too long while no other call is pending.

        Likewise one whose driver was replaced or is being removed, even with calls pending.
        """
        process, now = self._process, time.monotonic()
        if process is None:
            return
        if not process.ended and self._is_outdated():
            self._process = None
            process.close()
            log.warning("NVIDIA's driver was replaced, or leaves: NVML is closed", extra={"source": str(self._source)})
            return
        reason = process.ended
        if not reason:
            hung_s = process.hung_for_s()
            if self._restart_policy.tolerates(hung_s, now) or process.busy:
                return
            reason = f"a call has not returned for {hung_s:.0f} s"
            process.close()
        self._process = None
        self._restart_policy.failed(now)
        log.error("NVML has failed and is started again", extra={"reason": reason})

    def _call(self, about: str, timeout: float, name: str, *arguments: Any) -> Any:
        process = self._process
        if process is None:
            raise WorkerExitedError("NVML is not started", where="NVML")
        try:
            return process.call(about, timeout, name, *arguments)
        except NvmlCallError as error:
            raise self._sorted(name, error) from None
        except LibraryNotFoundError as error:
            raise NvmlError(str(error), 0, hint="check the path of the NVML library") from None

    def _sorted(self, name: str, error: NvmlCallError) -> NvmlError:
        module, code = self.module, error.code
        if code in (
            module.NVML_ERROR_NOT_SUPPORTED,
            module.NVML_ERROR_FUNCTION_NOT_FOUND,
            module.NVML_ERROR_NO_DATA,
            module.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
            module.NVML_ERROR_DEPRECATED,
        ):
            return NotSupportedError(f"{name}: {error}", code)
        if code in (module.NVML_ERROR_GPU_IS_LOST, module.NVML_ERROR_RESET_REQUIRED):
            return GpuLostError(str(error), code)
        if code in (module.NVML_ERROR_NOT_FOUND, module.NVML_ERROR_GPU_NOT_FOUND):
            return UnknownGpuError(str(error), code)
        if code == module.NVML_ERROR_NO_PERMISSION:
            return NoPermissionError(
                f"{name}: {error}", code, hint="run the agent as root, or allow its user to access /dev/nvidia*"
            )
        hint = {
            module.NVML_ERROR_LIBRARY_NOT_FOUND: "install NVIDIA's driver, or set nvidia_driver_root to where it is",
            module.NVML_ERROR_DRIVER_NOT_LOADED: "load the driver (modprobe nvidia) and check the kernel log",
            module.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "reboot, or reload the nvidia kernel modules: an update replaced"
            " the driver's libraries but not the running driver",
            module.NVML_ERROR_INSUFFICIENT_POWER: "connect the GPU's power cables",
            module.NVML_ERROR_IRQ_ISSUE: "check the kernel log for interrupts that were not delivered",
            module.NVML_ERROR_CORRUPTED_INFOROM: "the GPU's permanent memory is damaged; contact its vendor",
        }.get(code)
        if code not in module.KNOWN_ERRORS:
            return NvmlError(f"{name}: {error} (error {code}, which this version of the agent does not know)", code)
        return NvmlError(f"{name}: {error}", code, hint)


_SHARING = threading.Lock()
_SHARED: dict[Path | DriverRoot | None, NvmlClient] = {}


def shared_users() -> dict[str, int]:
    """Return how many users each library has that `acquire` has returned and that is not closed."""
    with _SHARING:
        return {str(source): client.users for source, client in _SHARED.items()}


def acquire(source: Path | DriverRoot | None, timeout: float) -> NvmlClient:
    """Return the process-wide library of this source; each user closes it once. The first user sets the timeout."""
    with _SHARING:
        known = _SHARED.get(source)
        if known is None:
            known = _SHARED[source] = NvmlClient(source, timeout)
        else:
            known.users += 1
        return known
