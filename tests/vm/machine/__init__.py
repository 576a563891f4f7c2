"""A virtual machine with PCI devices, without KVM: QEMU, a kernel of a Debian package, and the root of this host."""
