"""Binds a function to vfio-pci and restores its driver, in steps that are repeatable after a crash.

Bind: driver_override → unbind → drivers_probe → check of the result, because the write succeeds if a driver fails to
probe. Restore: the same with the original override. Source: Documentation/ABI/testing/sysfs-bus-pci.
"""

from __future__ import annotations

import errno
import logging

from dra_agent.device_setup.sysfs_writer import TimedWriter
from dra_agent.device_setup.vfio.pci_functions import DRIVER, PciFunctions
from dra_agent.errors import RetryableError
from dra_agent.inventory.passthrough import VfioBinding

log = logging.getLogger(__name__)

_HINT = "check the kernel log (dmesg)"


class Binding:
    """Binds functions of one host; the caller holds the lock of the function."""

    def __init__(self, functions: PciFunctions, writes: TimedWriter) -> None:
        self._functions = functions
        self._writes = writes

    def bind(self, address: str, where: str) -> None:
        """Bind a function to vfio-pci; RetryableError if the kernel rejects it or does not return."""
        functions = self._functions
        driver = functions.driver(address)
        if driver == DRIVER:
            return
        if not functions.is_loaded(DRIVER):
            raise RetryableError(
                f"the driver {DRIVER} is not loaded", where=where, hint="run `modprobe vfio-pci`, at every boot"
            )
        self._set_override(address, DRIVER, where)
        if driver is not None:
            self._write(address, f"bus/pci/devices/{address}/driver/unbind", address, where)
        self._write(address, "bus/pci/drivers_probe", address, where)
        now = functions.driver(address)
        if now != DRIVER:
            has = "no driver has it now" if now is None else f"{now} has it"
            raise RetryableError(f"{DRIVER} did not take it: {has}", where=where, hint=_HINT)
        log.info("bound to vfio-pci", extra={"device": address, "from": driver})

    def restore(self, binding: VfioBinding, where: str) -> None:
        """Restore the original driver of a function; a removed function, or one that others bound, stays unchanged.

        Raises:
            RetryableError: Its driver is no longer loaded, or did not bind it.
        """
        functions, address = self._functions, binding.address
        if not functions.exists(address):
            log.warning("a device of a claim is missing", extra={"device": address, "claim": binding.uid})
            return
        self._set_override(address, binding.override, where)
        driver = functions.driver(address)
        if driver == DRIVER and binding.driver != DRIVER:
            self._write(address, f"bus/pci/devices/{address}/driver/unbind", address, where)
            driver = None
        if driver is not None or binding.driver is None:
            return
        self._write(address, "bus/pci/drivers_probe", address, where)
        if functions.driver(address) is None:
            # Its driver did not bind automatically: it may know the device only by an entry in `new_id`.
            if not functions.is_loaded(binding.driver):
                raise RetryableError(
                    f"its driver {binding.driver} is no longer loaded, so it cannot be bound to it again",
                    where=where,
                    hint=f"load it (`modprobe {binding.driver}`)",
                )
            self._write(address, f"bus/pci/drivers/{binding.driver}/bind", address, where)
        now = functions.driver(address)
        if now is None:
            raise RetryableError(
                f"its driver {binding.driver} did not bind it again",
                where=where,
                hint=_HINT,
            )
        log.info("bound to its original driver", extra={"device": address, "to": now})

    def _set_override(self, address: str, driver: str | None, where: str) -> None:
        if self._functions.override(address) != driver:
            # An empty line removes the override (driver_set_override in drivers/base/driver.c).
            self._write(address, f"bus/pci/devices/{address}/driver_override", f"{driver or ''}\n", where)

    def _write(self, address: str, path: str, text: str, where: str) -> None:
        try:
            self._writes.write(address, path, text)
        except OSError as error:
            if error.errno in (errno.ENODEV, errno.ENOENT) and not self._functions.exists(address):
                raise RetryableError("it is no longer on the bus", where=where, hint="reinsert it") from error
            raise RetryableError(
                f"the kernel refused a write to {path.rpartition('/')[2]}: {error.strerror}",
                where=where,
                hint="check which processes use it, and the kernel log (dmesg); the agent must be root",
            ) from error
