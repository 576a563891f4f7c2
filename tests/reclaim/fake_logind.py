"""A private D-Bus daemon, and a fake systemd-logind on it.

An inhibitor lock is the write end of a pipe, as in logind that of a FIFO: it is released when every copy is closed.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from jeepney import (
    DBusAddress,
    HeaderFields,
    MessageType,
    message_bus,
    new_error,
    new_method_return,
    new_signal,
)
from jeepney.io.blocking import DBusConnection, Proxy, open_dbus_connection

CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path={path}</listen>
  <policy context="default">
    <allow user="*"/><allow own="*"/><allow send_type="method_call"/><allow send_type="signal"/>
    <allow send_requested_reply="true" send_type="method_return"/><allow send_requested_reply="true" send_type="error"/>
    <allow receive_type="method_call"/><allow receive_type="method_return"/>
    <allow receive_type="error"/><allow receive_type="signal"/>
  </policy>
</busconfig>
"""
NAME = "org.freedesktop.login1"
MANAGER = DBusAddress("/org/freedesktop/login1", NAME, "org.freedesktop.login1.Manager")


class Daemon:
    """A private `dbus-daemon`."""

    def __init__(self, folder: Path) -> None:
        executable = shutil.which("dbus-daemon")
        if executable is None:
            pytest.skip("there is no dbus-daemon here (Debian: dbus)")
        self.address = f"unix:path={folder}/bus"
        (folder / "bus.conf").write_text(CONFIG.format(path=folder / "bus"))
        self._process = subprocess.Popen(
            [executable, f"--config-file={folder}/bus.conf", "--nofork", "--nopidfile", "--print-address=1"],
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None and self._process.stdout.readline()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class FakeLogind:
    """org.freedesktop.login1 on a thread."""

    def __init__(self, address: str, *, delay: float = 5.0) -> None:
        self.delay = delay
        self.preparing: Any = False
        self.refuse = False
        self.returns_no_lock = False
        self.inhibited: list[tuple[str, ...]] = []
        self._locks: list[int] = []
        self._stop = False
        self._lock = threading.Lock()
        self._bus = open_dbus_connection(address, enable_fds=True)
        assert Proxy(message_bus, self._bus).RequestName(NAME) == (1,)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop = True
        self._thread.join()
        self._bus.close()
        for lock in self._locks:
            os.close(lock)

    def shut_down(self, preparing: Any = True, signature: str = "b") -> float:
        """Send PrepareForShutdown with this value, and return the time."""
        self.preparing = preparing
        self._send(new_signal(MANAGER, "PrepareForShutdown", signature, (preparing,)))
        return time.time()

    def locked(self) -> bool:
        """Return whether any lock is held: a pipe reports POLLHUP once all its write ends are closed."""
        poller = select.poll()
        for lock in self._locks:
            poller.register(lock, select.POLLHUP)
        released = {lock for lock, _ in poller.poll(0)}
        return bool(set(self._locks) - released)

    def _serve(self) -> None:
        while not self._stop:
            try:
                message = self._bus.receive(timeout=0.02)
            except TimeoutError:
                continue
            if message.header.message_type is MessageType.method_call:
                self._answer(message)

    def _answer(self, message: Any) -> None:
        match message.header.fields[HeaderFields.member]:
            case "Inhibit" if self.refuse:
                self._send(new_error(message, "org.freedesktop.DBus.Error.AccessDenied", "s", ("no",)))
            case "Inhibit" if self.returns_no_lock:
                self._send(new_method_return(message, "s", ("no",)))
            case "Inhibit":
                read_end, write_end = os.pipe()
                self._locks.append(read_end)
                self.inhibited.append(message.body)
                self._send(new_method_return(message, "h", (write_end,)))
                os.close(write_end)
            case "Get":
                values = {
                    "PreparingForShutdown": ("b", bool(self.preparing)),
                    "InhibitDelayMaxUSec": ("t", int(self.delay * 1e6)),
                }
                self._send(new_method_return(message, "v", (values[message.body[1]],)))

    def _send(self, message: Any) -> None:
        with self._lock:
            self._bus.send(message)


def send_forged_signals(address: str, to: str, times: int = 1) -> None:
    """Send the signal of logind to a connection from a client that is not logind."""
    bus: DBusConnection = open_dbus_connection(address)
    message = new_signal(MANAGER, "PrepareForShutdown", "b", (True,))
    message.header.fields[HeaderFields.destination] = to
    for _ in range(times):
        bus.send(message)
    Proxy(message_bus, bus).GetId()
    bus.close()


def connections(address: str) -> list[str]:
    """Return the unique names of all connections to the daemon except the present one."""
    bus = open_dbus_connection(address)
    (names,) = Proxy(message_bus, bus).ListNames()
    own_name = bus.unique_name
    bus.close()
    return [name for name in names if name.startswith(":") and name != own_name]


class FakeBus:
    """A listener at the address of a D-Bus daemon that sends the same bytes to every client."""

    def __init__(self, path: Path, response: bytes) -> None:
        self._response = response
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            with client, contextlib.suppress(OSError):
                client.recv(1024)
                client.sendall(self._response)
                time.sleep(0.02)

    def stop(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
