/* The same fields through libpci, in one process: scan_libpci SYSFS ROUNDS prints one time in ns per line. */
#include <pci/pci.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    char path[4096];
    snprintf(path, sizeof path, "%s/bus/pci", argv[1]);
    for (int round = atoi(argv[2]); round > 0; round--) {
        long start = now();
        struct pci_access *access = pci_alloc();
        access->method = PCI_ACCESS_SYS_BUS_PCI;
        pci_set_param(access, "sysfs.path", path);
        pci_init(access);
        pci_scan_bus(access);
        int functions = 0;
        for (struct pci_dev *dev = access->devices; dev; dev = dev->next, functions++) {
            pci_fill_info(dev, PCI_FILL_IDENT | PCI_FILL_CLASS | PCI_FILL_CLASS_EXT | PCI_FILL_SUBSYS |
                                   PCI_FILL_NUMA_NODE | PCI_FILL_IOMMU_GROUP | PCI_FILL_PARENT | PCI_FILL_DRIVER);
            if (!dev->vendor_id)
                return 1;
        }
        pci_cleanup(access);
        printf("%ld %d\n", now() - start, functions);
    }
    return 0;
}
