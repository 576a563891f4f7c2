"""`python -m dra_agent`."""

from __future__ import annotations

import sys

from dra_agent.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
