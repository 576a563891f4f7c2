"""A guest: started, given commands, its devices plugged and unplugged, and ended."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from vm.machine import hardware
from vm.machine.channel import Channel
from vm.machine.emulator import Emulator
from vm.machine.initrd import write_initrd
from vm.machine.kernels import Kernel

BOOT_TIMEOUT_S = 900.0
"""For the start of the first command, which takes 15 s on two idle CPUs."""
COMMAND_TIMEOUT_S = 60.0
"""For a command, on a machine with an idle CPU for each of the guest's."""
MONITOR_TIMEOUT_S = 120.0
REFERENCE = "python3 -I -S -c pass"
REFERENCE_S = 0.5
"""What this command takes in a guest on idle CPUs, when its files have been read before."""
MARGIN = 3.0
"""Deadlines are longer by this factor, because the load of the host changes during a wait."""
NICENESS = 5

Init = Literal["shell", "systemd"]


class GuestError(Exception):
    """The guest ended, or does not answer."""


class Guest:
    """`root` becomes the guest's root, in which only the guest sees changes; `shared` is its /shared.

    A guest with a `disk` has the agent's state there, and can restart; without one, it ends when it would.
    """

    def __init__(
        self,
        emulator: Emulator,
        kernel: Kernel,
        shared: Path,
        sockets: Path,
        *,
        root: Path = Path("/"),
        init: Init = "shell",
        disk: Path | None = None,
    ) -> None:
        self.shared = shared
        self.slowness = 1.0
        """How much slower the guest is than on a machine with an idle CPU for each of its own, when last measured."""
        self.console = sockets / "console"
        self._output = sockets / "qemu"
        initrd = sockets / "initrd"
        write_initrd(initrd, kernel.modules)
        command = [
            # It ends with this process, however that ends.
            *("setpriv", "--pdeathsig", "KILL", "nice", f"--adjustment={NICENESS}"),
            *emulator.command,
            *hardware.arguments(),
            *("-nodefaults", "-display", "none", "-vga", "none"),
            *("-kernel", str(kernel.image), "-initrd", str(initrd)),
            *("-append", f"{hardware.KERNEL_COMMAND_LINE} guest={init}"),
            *("-serial", f"file:{self.console}"),
            *("-qmp", f"unix:{sockets}/monitor,server=on,wait=off"),
            *("-chardev", f"socket,id=shell,path={sockets}/shell,server=on,wait=off"),
            *("-device", "virtserialport,chardev=shell,name=shell"),
            *_share("root", root, "security_model=passthrough,readonly=on,multidevs=remap"),
            *_share("shared", shared, "security_model=none"),
            *(["-no-reboot"] if disk is None else _disk(disk)),
        ]
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                env=os.environ | emulator.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._requests = 0
        self._events: list[dict[str, Any]] = []
        try:
            self._monitor = Channel(sockets / "monitor", self._check)
            self._shell = Channel(sockets / "shell", self._check)
            self.monitor("qmp_capabilities")
            self.wait_for_boot()
            # The first time, all files are read.
            for _ in range(2):
                self.measure()
        except BaseException:
            self._end()
            raise

    def wait_for_boot(self) -> None:
        """Wait until it runs commands, after its start or a restart."""
        end = time.monotonic() + BOOT_TIMEOUT_S
        while (message := self._shell.receive(end - time.monotonic())) is not None:
            if message["id"] == 0:
                return
        raise GuestError(f"not up within {BOOT_TIMEOUT_S:.0f} s{self._log()}")

    def measure(self) -> None:
        """Measure how slow the guest is now: the load of the host changes."""
        start = time.monotonic()
        self.run(REFERENCE, within_s=BOOT_TIMEOUT_S)
        self.slowness = max(1.0, (time.monotonic() - start) / REFERENCE_S)

    def patience_s(self, limit_s: float) -> float:
        """Return how long to wait for something that takes less than a limit on an idle machine."""
        return limit_s * self.slowness * MARGIN

    def run(self, command: str, *, within_s: float = COMMAND_TIMEOUT_S, check: bool = True) -> str:
        """Run a command of the shell in the guest, and return its output; fails with it if `check`."""
        self._requests += 1
        limit_s = self.patience_s(within_s)
        self._shell.send({"id": self._requests, "command": command, "timeout": limit_s})
        end = time.monotonic() + 2 * limit_s
        while (answer := self._shell.receive(end - time.monotonic())) is not None:
            if answer["id"] == self._requests:
                assert not check or answer["code"] == 0, f"{command}: {answer['code']}\n{answer['output']}"
                return str(answer["output"])
        raise GuestError(f"no answer within {2 * limit_s:.0f} s: {command}{self._log()}")

    def monitor(self, command: str, **arguments: object) -> Any:
        """Run a command of QEMU's monitor (QMP), and return its result."""
        self._monitor.send({"execute": command, "arguments": arguments})
        for message in self._messages(self.patience_s(MONITOR_TIMEOUT_S)):
            if "return" in message:
                return message["return"]
            if "error" in message:
                raise GuestError(f"{command} {arguments}: {message['error']['desc']}")
        raise GuestError(f"QEMU does not answer {command}{self._log()}")

    def address_of(self, name: str) -> str:
        """Return the PCI address that the guest gave a device of QEMU."""
        buses = self.monitor("query-pci")
        functions = [function for bus in buses for function in _functions(bus["devices"])]
        (found,) = [one for one in functions if one["qdev_id"] == name]
        return f"0000:{found['bus']:02x}:{found['slot']:02x}.{found['function']}"

    def wait_for_event(self, name: str, within_s: float) -> dict[str, Any]:
        """Return the data of the next event of QEMU with this name, which may have been received before."""
        for message in self._messages(self.patience_s(within_s)):
            if "event" in message:
                self._events.append(message)
            for event in self._events:
                if event["event"] == name:
                    self._events.remove(event)
                    data: dict[str, Any] = event.get("data", {})
                    return data
        raise GuestError(f"no event {name} within {self.patience_s(within_s):.0f} s{self._log()}")

    def _messages(self, within_s: float) -> Iterator[dict[str, Any]]:
        end = time.monotonic() + within_s
        while (message := self._monitor.receive(end - time.monotonic())) is not None:
            yield message

    def wait_for_end(self, within_s: float) -> None:
        """Wait until the guest has switched itself off."""
        try:
            self._process.wait(self.patience_s(within_s))
        except subprocess.TimeoutExpired:
            raise GuestError(f"not off within {self.patience_s(within_s):.0f} s{self._log()}") from None

    def close(self) -> None:
        """Switch it off at once."""
        self._end()
        for channel in (self._monitor, self._shell):
            channel.close()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()

    def _check(self) -> None:
        if self._process.poll() is not None:
            raise GuestError(f"QEMU ended with {self._process.returncode}{self._log()}")

    def _log(self) -> str:
        texts = [path.read_text(errors="replace") for path in (self._output, self.console) if path.exists()]
        return "\n" + "\n".join("\n".join(text.splitlines()[-20:]) for text in texts)


def _functions(devices: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for device in devices:
        yield device
        yield from _functions(device.get("pci_bridge", {}).get("devices", []))


def _disk(path: Path) -> list[str]:
    return ["-drive", f"if=none,id=disk,file={path},format=raw", "-device", "virtio-blk-pci,bus=pcie.0,drive=disk"]


def _share(tag: str, path: Path, options: str) -> list[str]:
    device = f"virtio-9p-pci,bus=pcie.0,fsdev={tag},mount_tag={tag}"
    return ["-fsdev", f"local,id={tag},path={path},{options}", "-device", device]
