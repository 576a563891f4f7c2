"""Which devices of a host can be claimed: who uses them already, and why a device is excluded."""
