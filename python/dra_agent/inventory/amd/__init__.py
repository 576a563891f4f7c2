"""AMD GPUs and their partitions, from KFD and sysfs."""
