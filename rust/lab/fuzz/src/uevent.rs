//! Messages of the kernel's uevent socket.

use std::time::Duration;

use dra_topology::Uevent;

use crate::Target;

pub const TARGET: Target = Target {
    name: "uevent",
    check,
    heap_bytes: 1 << 20,
    cpu: Duration::from_secs(1),
};

fn check(data: &[u8]) {
    let Ok(event) = Uevent::parse(data) else {
        return;
    };
    for (name, value) in [
        ("action", &event.action),
        ("devpath", &event.devpath),
        ("subsystem", &event.subsystem),
    ] {
        assert!(!value.is_empty(), "{name} is empty: {event:?}");
        assert!(!value.contains('\0'), "{name} holds a NUL byte: {event:?}");
    }
    let header = format!("{}@{}\0", event.action, event.devpath);
    let begins = [header.as_bytes(), header.trim_end_matches('\0').as_bytes()];
    assert!(
        data.starts_with(begins[0]) || data == begins[1],
        "the header names another event than {event:?}"
    );
    assert_eq!(
        Uevent::parse(&event.to_message()),
        Ok(event),
        "a written message is read as another event"
    );
}
