//! The identity of a function: class, ids and driver, with one read of `uevent` if possible.

use rustix::io::Errno;

use crate::error::{Problem, describe};
use crate::function_reader::{FunctionReader, unexpected_content};
use crate::kind::Kind;

#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) class: u32,
    pub(crate) ids: (u16, u16),
    pub(crate) subsystem: Option<(u16, u16)>,
    pub(crate) driver: Option<String>,
}

/// The values of one source; each may be missing.
#[derive(Debug, Default, PartialEq, Eq)]
struct Partial {
    class: Option<u32>,
    ids: Option<(u16, u16)>,
    subsystem: Option<(u16, u16)>,
    driver: Option<String>,
}

impl Identity {
    /// Uses `uevent`, then `modalias`, then the single files: recorded trees of other projects contain only some of
    /// them.
    pub(crate) fn read(reader: &mut FunctionReader<'_>) -> Result<Self, Problem> {
        let mut found = Partial::default();
        match reader.read("uevent") {
            Ok(text) => found = Partial::from_uevent(text),
            Err(Errno::NOENT) => {}
            Err(errno) => reader.report("uevent", describe(errno)),
        }
        let driver = |reader: &mut FunctionReader<'_>| {
            reader.link_target("driver", |name| String::from_utf8(name.to_vec()).ok())
        };
        if let (Some(class), Some(ids)) = (found.class, found.ids) {
            // A complete uevent names the driver of a bound function. The link is read too for supported kinds only.
            if found.driver.is_none() && Kind::of(class, ids.0, ids.1).is_supported() {
                found.driver = driver(reader);
            }
            return Ok(Self {
                class,
                ids,
                subsystem: found.subsystem,
                driver: found.driver,
            });
        }
        let modalias = reader
            .optional("modalias", Partial::from_modalias)
            .unwrap_or_default();
        let class = match found.class.or(modalias.class) {
            Some(class) => class,
            None => reader.required("class", hex24)?,
        };
        let ids = match found.ids.or(modalias.ids) {
            Some(ids) => ids,
            None => (
                reader.required("vendor", hex16)?,
                reader.required("device", hex16)?,
            ),
        };
        let subsystem = found.subsystem.or(modalias.subsystem).or_else(|| {
            reader
                .optional("subsystem_vendor", hex16)
                .zip(reader.optional("subsystem_device", hex16))
        });
        Ok(Self {
            class,
            ids,
            subsystem,
            driver: found.driver.or_else(|| driver(reader)),
        })
    }
}

impl Partial {
    fn from_uevent(text: &[u8]) -> Self {
        let mut found = Self::default();
        for line in text.split(|&byte| byte == b'\n') {
            let Some(equals) = line.iter().position(|&byte| byte == b'=') else {
                continue;
            };
            let (key, value) = (&line[..equals], &line[equals + 1..]);
            match key {
                b"DRIVER" => {
                    found.driver = String::from_utf8(value.to_vec())
                        .ok()
                        .filter(|name| !name.is_empty())
                }
                b"PCI_CLASS" => found.class = number(value, 1..=6),
                b"PCI_ID" => found.ids = pair(value),
                // The value of a function without a subsystem, for example a bridge, is 0000:0000.
                b"PCI_SUBSYS_ID" => found.subsystem = pair(value).filter(|ids| *ids != (0, 0)),
                _ => {}
            }
        }
        found
    }

    /// `pci:v00008086d000046A6sv000017AAsd000022E7bc03sc00i00` (kernel file2alias.c).
    fn from_modalias(text: &[u8]) -> Option<Self> {
        let mut rest = text.strip_prefix(b"pci:")?;
        let mut field = |key: &[u8], digits: usize| -> Option<u32> {
            let (value, after) = rest.strip_prefix(key)?.split_at_checked(digits)?;
            rest = after;
            number(value, digits..=digits)
        };
        let ids = [
            field(b"v", 8)?,
            field(b"d", 8)?,
            field(b"sv", 8)?,
            field(b"sd", 8)?,
        ];
        let class = field(b"bc", 2)? << 16 | field(b"sc", 2)? << 8 | field(b"i", 2)?;
        let [vendor, device, subsystem_vendor, subsystem_device] =
            ids.map(|id| u16::try_from(id).ok());
        Some(Self {
            class: Some(class),
            ids: vendor.zip(device),
            subsystem: subsystem_vendor
                .zip(subsystem_device)
                .filter(|ids| *ids != (0, 0)),
            driver: None,
        })
    }
}

/// Parses `class`.
pub(crate) fn hex24(text: &[u8]) -> Option<u32> {
    number(text.strip_prefix(b"0x")?, 1..=6)
}

/// Parses `vendor`, `device` and similar files.
pub(crate) fn hex16(text: &[u8]) -> Option<u16> {
    u16::try_from(number(text.strip_prefix(b"0x")?, 1..=4)?).ok()
}

/// Parses `revision`.
pub(crate) fn hex8(text: &[u8]) -> Option<u8> {
    u8::try_from(number(text.strip_prefix(b"0x")?, 1..=2)?).ok()
}

fn pair(text: &[u8]) -> Option<(u16, u16)> {
    let [vendor @ .., b':', _, _, _, _] = text else {
        return None;
    };
    let device = number(&text[vendor.len() + 1..], 4..=4)?;
    Some((
        u16::try_from(number(vendor, 4..=4)?).ok()?,
        u16::try_from(device).ok()?,
    ))
}

fn number(text: &[u8], digits: std::ops::RangeInclusive<usize>) -> Option<u32> {
    if !digits.contains(&text.len()) || text.starts_with(b"+") {
        return None;
    }
    u32::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok()
}

impl FunctionReader<'_> {
    /// Reads an attribute without which the function is left out.
    pub(crate) fn required<T>(
        &mut self,
        file: &str,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<T, Problem> {
        let message = match self.read(file) {
            Ok(text) => match parse(text) {
                Some(value) => return Ok(value),
                None => unexpected_content(text),
            },
            Err(errno) => describe(errno),
        };
        Err(self.problem(file, message))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn uevent_and_modalias_agree() {
        let uevent = Partial::from_uevent(
            b"DRIVER=i40e\nPCI_CLASS=20000\nPCI_ID=8086:37D2\nPCI_SUBSYS_ID=15D9:37D2\nPCI_SLOT_NAME=0000:60:00.0\n\
              MODALIAS=pci:v00008086d000037D2sv000015D9sd000037D2bc02sc00i00",
        );
        let modalias =
            Partial::from_modalias(b"pci:v00008086d000037D2sv000015D9sd000037D2bc02sc00i00")
                .expect("parses");
        assert_eq!(uevent.driver.as_deref(), Some("i40e"));
        assert_eq!(
            Partial {
                driver: None,
                ..uevent
            },
            modalias
        );
        assert_eq!(modalias.class, Some(0x02_00_00));
        assert_eq!(modalias.ids, Some((0x8086, 0x37d2)));
        assert_eq!(modalias.subsystem, Some((0x15d9, 0x37d2)));
    }

    #[test]
    fn garbage_is_not_taken_for_an_id() {
        for text in [
            "",
            "PCI_CLASS",
            "PCI_CLASS=\nPCI_ID=:\nDRIVER=",
            "PCI_CLASS=zz\nPCI_ID=8086",
            "PCI_CLASS=+2000\nPCI_ID=8086:37D2F",
        ] {
            assert_eq!(
                Partial::from_uevent(text.as_bytes()),
                Partial::default(),
                "{text}"
            );
        }
        assert_eq!(hex24(b"0x1000000"), None);
        assert_eq!(hex16(b"10de"), None);
        assert_eq!(hex16(b"0x10de"), Some(0x10de));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let _ = Partial::from_uevent(&bytes);
            let _ = Partial::from_modalias(&bytes);
            let mut prefixed = b"pci:v0000".to_vec();
            prefixed.extend(&bytes);
            let _ = Partial::from_modalias(&prefixed);
        }
    }
}
