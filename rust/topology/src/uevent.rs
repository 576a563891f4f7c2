//! Uevents: messages of the kernel on a netlink socket that a device was added, removed or changed.

use thiserror::Error;

/// One event: an action (`add`, `remove`, `bind`, ...) on a device of a subsystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uevent {
    pub action: String,
    /// The path below the sysfs root, with a leading slash: `/devices/pci0000:3a/...`. Bytes that are not UTF-8 are
    /// escaped.
    pub devpath: String,
    pub subsystem: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UeventError {
    #[error("a message of udev, not of the kernel")]
    Udev,
    #[error("no {0} in the message")]
    Missing(&'static str),
    #[error("{0} is not UTF-8")]
    NotText(&'static str),
    #[error("the header contradicts the fields")]
    Header,
}

impl Uevent {
    /// Parses `ACTION@DEVPATH`, then NUL-terminated `KEY=value` fields (kernel lib/kobject_uevent.c).
    ///
    /// # Errors
    /// A required field is missing, or the message is not from the kernel.
    pub fn parse(message: &[u8]) -> Result<Self, UeventError> {
        if message.starts_with(b"libudev\0") {
            return Err(UeventError::Udev);
        }
        let mut fields = message.split(|&byte| byte == 0);
        let header = fields.next().unwrap_or_default();
        let (mut action, mut devpath, mut subsystem) = (None, None, None);
        for field in fields {
            let Some(equals) = field.iter().position(|&byte| byte == b'=') else {
                continue;
            };
            let value = &field[equals + 1..];
            match &field[..equals] {
                b"ACTION" => action = Some(value),
                b"DEVPATH" => devpath = Some(value),
                b"SUBSYSTEM" => subsystem = Some(value),
                _ => {}
            }
        }
        let event = Self {
            action: text("ACTION", action)?,
            // The last component may be the name of an interface, which is bytes. The function above it is found anyway.
            devpath: printable("DEVPATH", devpath)?,
            subsystem: text("SUBSYSTEM", subsystem)?,
        };
        let at = event.action.len();
        let agrees = header.get(..at) == Some(event.action.as_bytes())
            && header.get(at) == Some(&b'@')
            && header.get(at + 1..) == devpath;
        if agrees {
            Ok(event)
        } else {
            Err(UeventError::Header)
        }
    }

    /// Returns the kernel's message for this event, with only the fields that [`Uevent::parse`] reads.
    #[must_use]
    pub fn to_message(&self) -> Vec<u8> {
        let Self {
            action,
            devpath,
            subsystem,
        } = self;
        format!("{action}@{devpath}\0ACTION={action}\0DEVPATH={devpath}\0SUBSYSTEM={subsystem}\0")
            .into_bytes()
    }
}

fn required<'a>(key: &'static str, value: Option<&'a [u8]>) -> Result<&'a [u8], UeventError> {
    value
        .filter(|value| !value.is_empty())
        .ok_or(UeventError::Missing(key))
}

fn text(key: &'static str, value: Option<&[u8]>) -> Result<String, UeventError> {
    let text = std::str::from_utf8(required(key, value)?);
    text.map(str::to_owned)
        .map_err(|_| UeventError::NotText(key))
}

fn printable(key: &'static str, value: Option<&[u8]>) -> Result<String, UeventError> {
    let value = required(key, value)?;
    Ok(text(key, Some(value)).unwrap_or_else(|_| value.escape_ascii().to_string()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ADD: &[u8] = b"add@/devices/pci0000:3a/0000:3a:00.0\0ACTION=add\0DEVPATH=/devices/pci0000:3a/0000:3a:00.0\0\
        SUBSYSTEM=pci\0PCI_CLASS=60400\0PCI_ID=8086:2030\0SEQNUM=4711\0";

    #[test]
    fn reads_the_kernels_message() {
        let event = Uevent::parse(ADD).expect("a message");
        assert_eq!(event.action, "add");
        assert_eq!(event.devpath, "/devices/pci0000:3a/0000:3a:00.0");
        assert_eq!(event.subsystem, "pci");
        assert_eq!(Uevent::parse(&event.to_message()), Ok(event));
    }

    #[test]
    fn refuses_what_is_not_the_kernels() {
        assert_eq!(
            Uevent::parse(b"libudev\0\xfe\xed\xca\xfe"),
            Err(UeventError::Udev)
        );
        assert_eq!(Uevent::parse(b""), Err(UeventError::Missing("ACTION")));
        assert_eq!(
            Uevent::parse(b"add@/x\0ACTION=add\0DEVPATH=/x\0"),
            Err(UeventError::Missing("SUBSYSTEM"))
        );
        assert_eq!(
            Uevent::parse(b"a\xff@/x\0ACTION=a\xff\0DEVPATH=/x\0SUBSYSTEM=pci\0"),
            Err(UeventError::NotText("ACTION"))
        );
        assert_eq!(
            Uevent::parse(b"add@/x\0ACTION=remove\0DEVPATH=/x\0SUBSYSTEM=pci\0"),
            Err(UeventError::Header)
        );
    }

    #[test]
    fn an_interface_whose_name_is_not_text_has_events() {
        let message = b"add@/devices/pci0000:3a/0000:3a:00.0/net/eth\xff\0ACTION=add\0\
            DEVPATH=/devices/pci0000:3a/0000:3a:00.0/net/eth\xff\0SUBSYSTEM=net\0";
        let event = Uevent::parse(message).expect("a message");
        assert_eq!(
            event.devpath,
            "/devices/pci0000:3a/0000:3a:00.0/net/eth\\xff"
        );
        assert_eq!(Uevent::parse(&event.to_message()), Ok(event));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let _ = Uevent::parse(&bytes);
        }

        #[test]
        fn a_damaged_message_is_read_or_refused(cut in 0..ADD.len(), at in 0..ADD.len(), byte: u8) {
            let mut message = ADD.to_vec();
            message[at] = byte;
            message.truncate(cut);
            if let Ok(event) = Uevent::parse(&message) {
                prop_assert_eq!(Uevent::parse(&event.to_message()), Ok(event));
            }
        }

        #[test]
        fn what_is_written_is_read(action in "[a-z]{1,8}", devpath in "/[ -~]{0,60}", subsystem in "[a-z-]{1,12}") {
            let event = Uevent { action, devpath, subsystem };
            prop_assert_eq!(Uevent::parse(&event.to_message()), Ok(event));
        }
    }
}
