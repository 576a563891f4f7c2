"""The results of drivers for PCI functions: interfaces, RDMA devices, GPUs, drives. One file per kind."""
