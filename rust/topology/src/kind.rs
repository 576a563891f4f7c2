//! The kind of a PCI function, from its class code and, if the class is ambiguous, its vendor.
//!
//! A function of another class is an accelerator if its driver made a node of one ([`Kind::may_be_accelerator`]).

use std::ops::RangeInclusive;

use serde::Serialize;

/// A kind of devices. All kinds except `Other` are supported: their attributes and distances are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Gpu,
    Nic,
    Fpga,
    Accelerator,
    Nvme,
    Other,
}

const AMD: u16 = 0x1002;
const XILINX: u16 = 0x10ee;
const ALTERA: u16 = 0x1172;
const ALIBABA: u16 = 0x1ded;
const AMAZON: u16 = 0x1d0f;

/// FPGAs of vendors that make other devices, too.
const FPGAS: [(u16, &[u16]); 2] = [
    // Intel's cards and their virtual functions, as the kernel's dfl-pci driver lists them.
    (
        0x8086,
        &[
            0x09c4, 0x09c5, 0x0b2b, 0x0b2c, 0x0b30, 0x0b31, 0xbcbd, 0xbcc0, 0xbcce, 0xbccf,
        ],
    ),
    // AWS F1 and F2 without an image, or with AWS's, and their management functions (aws-fpga: fpga_common.h, awsmgmt).
    (AMAZON, &[0x1042, 0x9048, 0x1040, 0x1041, 0x9248]),
];

/// Ids from which images for AWS F1 and F2 choose theirs (aws-fpga, Choosing_PCI_ID_for_AFI.md).
const AMAZON_FPGA_IMAGES: RangeInclusive<u16> = 0xf000..=0xffff;

/// Accelerators whose class is that of no accelerator, so that they are known before a driver makes their nodes.
const ACCELERATORS: [(u16, &[u16]); 4] = [
    // Inferentia and Trainium, system peripherals: the driver's neuron_device.h, and for Trainium3 pci.ids.
    (
        AMAZON,
        &[
            0x7064, 0x7065, 0x7066, 0x7067, 0x7164, 0x7264, 0x7364, 0x7564, 0x7565,
        ],
    ),
    // Google's TPUs from v2 on, unassigned. Its NICs and drives have the same vendor.
    (
        0x1ae0,
        &[0x0027, 0x0056, 0x005e, 0x0062, 0x0063, 0x006f, 0x0076],
    ),
    // AMD's NPUs, signal processing controllers: drivers/accel/amdxdna.
    (0x1022, &[0x1502, 0x17f0]),
    // Coral Edge TPU, a system peripheral (apex_pci_fixup_class in drivers/pci/quirks.c).
    (0x1ac1, &[0x089a]),
];

/// Elastic RDMA adapters carry class 0x00ff (unclassified); the kernel's erdma driver binds by this id.
const ALIBABA_ERDMA: u16 = 0x107f;

impl Kind {
    /// `class` is the 24-bit code of the `class` attribute: base class, subclass, programming interface.
    #[must_use]
    pub fn of(class: u32, vendor: u16, device: u16) -> Self {
        let (base, subclass) = (class >> 16, class >> 8);
        match (base, subclass) {
            // Bridges of all vendors, because FPGAs and NICs have their own switches.
            (0x06, _) => Self::Other,
            (0x02, _) | (_, 0x0c06) => Self::Nic,
            (0x03, _) => Self::Gpu,
            (_, 0x0108) => Self::Nvme,
            // Sound and video cards have FPGAs for their PCI interface.
            (0x04, _) => Self::Other,
            _ if matches!(vendor, XILINX | ALTERA) || lists(&FPGAS, vendor, device) => Self::Fpga,
            _ if vendor == AMAZON && AMAZON_FPGA_IMAGES.contains(&device) => Self::Fpga,
            // Instinct MI300 and later have no display class any more.
            (0x12, _) if vendor == AMD => Self::Gpu,
            (0x12, _) | (_, 0x0b40) => Self::Accelerator,
            _ if lists(&ACCELERATORS, vendor, device) => Self::Accelerator,
            _ if (vendor, device) == (ALIBABA, ALIBABA_ERDMA) => Self::Nic,
            _ => Self::Other,
        }
    }

    /// Whether a function of this class is an accelerator if its driver made a node of one, although its class is
    /// `Other`: NPUs and TPUs are system peripherals, signal processing controllers and unassigned classes. The
    /// drivers of storage, sound, memory, bridges and USB make no such nodes, so these functions are not examined.
    pub(crate) fn may_be_accelerator(class: u32) -> bool {
        !matches!(
            (class >> 16, class >> 8),
            (0x01 | 0x05 | 0x06, _) | (_, 0x0401 | 0x0403 | 0x0c03)
        )
    }

    #[must_use]
    pub fn is_supported(self) -> bool {
        self != Self::Other
    }
}

fn lists(known: &[(u16, &[u16])], vendor: u16, device: u16) -> bool {
    known
        .iter()
        .any(|(of, devices)| *of == vendor && devices.contains(&device))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_and_vendor_decide() {
        let cases = [
            (0x03_02_00, 0x10de, 0x2330, Kind::Gpu),
            (0x03_00_00, 0x8086, 0x56c0, Kind::Gpu),
            (0x03_80_00, 0x1002, 0x740f, Kind::Gpu),
            (0x12_00_00, 0x1002, 0x74a1, Kind::Gpu),
            (0x12_00_00, 0x1da3, 0x1060, Kind::Accelerator),
            (0x0b_40_00, 0x1bcf, 0x001c, Kind::Accelerator),
            (0x02_00_00, 0x8086, 0x37d2, Kind::Nic),
            (0x02_07_00, 0x15b3, 0x1021, Kind::Nic),
            (0x0c_06_00, 0x1077, 0x7322, Kind::Nic),
            (0x00_ff_00, 0x1ded, 0x107f, Kind::Nic),
            (0x01_08_02, 0x144d, 0xa824, Kind::Nvme),
            (0x12_00_00, 0x10ee, 0x5020, Kind::Fpga),
            (0x05_80_00, 0x1172, 0xe003, Kind::Fpga),
            (0x12_00_00, 0x8086, 0x09c4, Kind::Fpga),
            (0x02_00_00, 0x10ee, 0x5084, Kind::Nic),
            (0x06_04_00, 0x10ee, 0x9134, Kind::Other),
            (0x08_80_00, 0x1d0f, 0x7264, Kind::Accelerator),
            (0x08_80_00, 0x1d0f, 0x7565, Kind::Accelerator),
            (0x08_80_00, 0x8086, 0x7264, Kind::Other),
            // TPU v2 and v5e; a gVNIC and a drive have the same vendor.
            (0xff_00_00, 0x1ae0, 0x0027, Kind::Accelerator),
            (0xff_00_00, 0x1ae0, 0x0063, Kind::Accelerator),
            (0x02_00_00, 0x1ae0, 0x0042, Kind::Nic),
            (0x01_08_02, 0x1ae0, 0x001f, Kind::Nvme),
            (0xff_00_00, 0x1ae0, 0x1234, Kind::Other),
            (0x11_80_00, 0x1022, 0x1502, Kind::Accelerator),
            (0x11_80_00, 0x1022, 0x17f0, Kind::Accelerator),
            (0x10_80_00, 0x1022, 0x1456, Kind::Other),
            (0x08_80_00, 0x1ac1, 0x089a, Kind::Accelerator),
            // AWS F1 and F2: a loaded image, one with an id of its customer, no image, and the management functions.
            (0x05_80_00, 0x1d0f, 0xf001, Kind::Fpga),
            (0x05_80_00, 0x1d0f, 0xfabc, Kind::Fpga),
            (0x05_80_00, 0x1d0f, 0x1042, Kind::Fpga),
            (0x05_80_00, 0x1d0f, 0x9048, Kind::Fpga),
            (0x05_80_00, 0x1d0f, 0x1041, Kind::Fpga),
            (0x05_80_00, 0x1d0f, 0x9248, Kind::Fpga),
            (0x02_00_00, 0x1d0f, 0xefa2, Kind::Nic),
            (0x05_80_00, 0x1d0f, 0xefff, Kind::Other),
            // A sound card whose PCI interface is an FPGA.
            (0x04_01_00, 0x10ee, 0x3fc5, Kind::Other),
            (0x04_03_00, 0x1172, 0x0001, Kind::Other),
            (0x06_80_00, 0x10de, 0x22a3, Kind::Other),
            (0x04_03_00, 0x10de, 0x22ba, Kind::Other),
        ];
        for (class, vendor, device, kind) in cases {
            assert_eq!(
                Kind::of(class, vendor, device),
                kind,
                "{class:06x} {vendor:04x}:{device:04x}"
            );
        }
    }
}
