"""NVIDIA's management library in a process of its own: what crashes or hangs there does neither here.

`process` is the agent's side and `child` the other; `values` is what they have in common. What calls mean is nobody's
business here.
"""
