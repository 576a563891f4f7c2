//! What the name of a kernel driver tells about a function.

/// Whether a driver gives the whole function to a virtual machine or a program: vfio-pci, and the variants of vendors
/// such as `mlx5_vfio_pci`, `nvgrace_gpu_vfio_pci` and `xe-vfio-pci`.
#[must_use]
pub fn is_vfio_driver(name: &str) -> bool {
    let of_vendor = name
        .strip_suffix("vfio-pci")
        .or_else(|| name.strip_suffix("vfio_pci"));
    name == "vfio-pci"
        || of_vendor.is_some_and(|vendor| vendor.len() > 1 && vendor.ends_with(['-', '_']))
}

#[cfg(test)]
mod tests {
    use super::is_vfio_driver;

    #[test]
    fn variants_of_vfio_pci_are_known_by_their_names() {
        for name in [
            "vfio-pci",
            "mlx5_vfio_pci",
            "nvgrace_gpu_vfio_pci",
            "hisi_acc_vfio_pci",
            "qat_vfio_pci",
            "xe-vfio-pci",
        ] {
            assert!(is_vfio_driver(name), "{name}");
        }
        for name in [
            "nvidia",
            "nvidia-vgpu-vfio",
            "vfio",
            "vfio_pci",
            "_vfio_pci",
            "vfio-platform",
            "mlx5_vfio_pci_core",
            "novfio-pci",
            "",
        ] {
            assert!(!is_vfio_driver(name), "{name}");
        }
    }
}
