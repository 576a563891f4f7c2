//! Claims for tests, and the errors of a ledger that cannot write.

use dra_ledger::{Entry, Error, Ledger, Phase};
use serde_json::json;

pub(crate) fn claim(uid: &str, device: &str) -> Entry {
    serde_json::from_value(json!({
        "uid": uid, "namespace": "team", "name": uid,
        "devices": [{"pool": "node/gpu", "device": device, "request": "gpu"}],
    }))
    .unwrap()
}

pub(crate) fn prepare(ledger: &Ledger, uid: &str, device: &str) -> Result<(), Error> {
    ledger.start(claim(uid, device), false)?;
    ledger.complete(uid, json!(null))
}

pub(crate) fn refuses_changes(ledger: &Ledger) {
    for refused in [
        prepare(ledger, "new", "gpu-1"),
        ledger.release("held").map(|_| ()),
    ] {
        let message = refused.unwrap_err();
        assert!(matches!(message, Error::Io { .. }), "{message}");
        assert!(
            message
                .to_string()
                .contains("make that file system writable"),
            "{message}"
        );
    }
    assert_eq!(ledger.get("held").unwrap().state, Phase::Completed);
    assert_eq!(ledger.holders("node/gpu", "gpu-0").len(), 1);
    assert!(ledger.report().not_writable.is_some());
}
