"""What is asked about a cluster: explanations of pods and gangs, capacity, templates, the page, and the kubectl plugin.

The agent loads its commands by name: `dra_agent.agent.distributions`.
"""

from __future__ import annotations

__version__ = "0.1.0"
__all__ = ["__version__"]
