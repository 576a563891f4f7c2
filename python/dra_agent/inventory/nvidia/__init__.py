"""NVIDIA GPUs, from the management library (NVML) and the driver's procfs."""
