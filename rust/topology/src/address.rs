//! PCI addresses and root buses in the kernel's notation.

use std::fmt;

use serde::{Serialize, Serializer};

/// `DDDD:BB:DD.F`. The domain has four or more hexadecimal digits: Intel VMD allocates domains from `10000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    pub domain: u32,
    pub bus: u8,
    pub device: u8,
    pub function: u8,
}

/// The bus below a host bridge, `pciDDDD:BB` in sysfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RootBus {
    pub domain: u32,
    pub bus: u8,
}

impl PciAddress {
    /// Parses exactly the kernel's notation (lower case, no extra zeros), so that formatting the value returns the same
    /// text and gives the file name.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let colon = text.iter().position(|&byte| byte == b':')?;
        let domain = domain(&text[..colon])?;
        let [b1, b0, b':', d1, d0, b'.', f] = *text.get(colon + 1..)? else {
            return None;
        };
        let (device, function) = (digit(d1)? << 4 | digit(d0)?, digit(f)?);
        // Five bits of device, three of function (PCI Local Bus 3.0, 3.2.2.3.2).
        (device < 32 && function < 8).then_some(Self {
            domain,
            bus: digit(b1)? << 4 | digit(b0)?,
            device,
            function,
        })
    }
}

impl RootBus {
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = text.strip_prefix(b"pci")?;
        let colon = text.iter().position(|&byte| byte == b':')?;
        let [b1, b0] = *text.get(colon + 1..)? else {
            return None;
        };
        Some(Self {
            domain: domain(&text[..colon])?,
            bus: digit(b1)? << 4 | digit(b0)?,
        })
    }
}

fn domain(text: &[u8]) -> Option<u32> {
    if !(4..=8).contains(&text.len()) || (text.len() > 4 && text[0] == b'0') {
        return None;
    }
    text.iter().try_fold(0_u32, |value, &byte| {
        Some(value << 4 | u32::from(digit(byte)?))
    })
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:04x}:{:02x}:{:02x}.{:x}",
            self.domain, self.bus, self.device, self.function
        )
    }
}

impl fmt::Display for RootBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pci{:04x}:{:02x}", self.domain, self.bus)
    }
}

impl Serialize for PciAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for RootBus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests;
