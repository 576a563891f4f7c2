"""What drivers make of PCI functions: interfaces, RDMA devices, GPUs, drives. One file per kind."""
