"""The host's PCIe and NUMA tree: scan, changes, and pictures for people."""
