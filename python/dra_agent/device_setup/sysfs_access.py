"""One read or write of an attribute of /sys, as a process of its own: `python -m dra_agent.device_setup.sysfs_access`.

Arguments: `read` or `write`, and the path. What is written comes from standard input, what is read goes to standard
output; where the kernel refuses, its error number goes to standard error.
"""

from __future__ import annotations

import os
import sys

MAX_BYTES = 4096
"""A page: the kernel gives and takes no more of an attribute in one call."""


def main() -> None:
    """Make the access."""
    operation, path = sys.argv[1:]
    try:
        if operation == "write":
            handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            os.write(handle, sys.stdin.buffer.read(MAX_BYTES))
        else:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            sys.stdout.buffer.write(os.read(handle, MAX_BYTES))
    except OSError as error:
        sys.stderr.write(str(error.errno))
        sys.exit(1)


if __name__ == "__main__":
    main()
