use proptest::prelude::*;

use super::*;

#[test]
fn reads_what_the_kernel_writes() {
    let vmd = PciAddress::parse(b"10000:e1:00.0").expect("a VMD address");
    assert_eq!(
        (vmd.domain, vmd.bus, vmd.device, vmd.function),
        (0x10000, 0xe1, 0, 0)
    );
    assert_eq!(
        PciAddress::parse(b"0000:3b:1f.7")
            .map(|a| a.to_string())
            .as_deref(),
        Some("0000:3b:1f.7")
    );
    assert_eq!(
        RootBus::parse(b"pci0000:3a")
            .map(|r| r.to_string())
            .as_deref(),
        Some("pci0000:3a")
    );
    assert_eq!(
        RootBus::parse(b"pci10000:e0"),
        Some(RootBus {
            domain: 0x10000,
            bus: 0xe0
        })
    );
}

#[test]
fn refuses_invalid_addresses() {
    for text in [
        "",
        ":",
        "0000:3b:00",
        "0000:3b:00.8",
        "0000:3b:20.0",
        "000:3b:00.0",
        "00000:3b:00.0",
        "0000:3B:00.0",
        "0000:3b:00.0 ",
        "0000:3b:00.00",
        "100000000:00:00.0",
        "0000:3g:00.0",
        "pci0000:3a",
    ] {
        assert_eq!(PciAddress::parse(text.as_bytes()), None, "{text}");
    }
    for text in [
        "pci",
        "pci0000",
        "pci0000:3",
        "pci0000:3a:00",
        "pci_bus",
        "0000:3a",
        "pci0000:3G",
    ] {
        assert_eq!(RootBus::parse(text.as_bytes()), None, "{text}");
    }
}

proptest! {
    #[test]
    fn parsing_and_formatting_are_inverse(domain: u32, bus: u8, device in 0_u8..32, function in 0_u8..8) {
        let address = PciAddress { domain, bus, device, function };
        prop_assert_eq!(PciAddress::parse(address.to_string().as_bytes()), Some(address));
        let root = RootBus { domain, bus };
        prop_assert_eq!(RootBus::parse(root.to_string().as_bytes()), Some(root));
    }

    #[test]
    fn no_bytes_make_it_panic(bytes: Vec<u8>) {
        if let Some(address) = PciAddress::parse(&bytes) {
            prop_assert_eq!(address.to_string().into_bytes(), bytes.clone());
        }
        let _ = RootBus::parse(&bytes);
    }
}
