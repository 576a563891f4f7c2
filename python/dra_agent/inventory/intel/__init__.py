"""Intel GPUs and the resources of their virtual functions, from sysfs."""
