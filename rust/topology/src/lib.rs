//! The PCIe and NUMA topology of one host, read from sysfs.
