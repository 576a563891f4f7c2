"""The process of the simulated nvidia-smi: the package imports `nvidia_smi` itself, which `-m` then would run twice."""

from __future__ import annotations

import sys

from dra_simulate.nvidia_smi import main

if __name__ == "__main__":
    sys.exit(main())
