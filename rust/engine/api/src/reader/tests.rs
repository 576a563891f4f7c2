use crate::{DeviceClass, ResourceSlice};

use super::from_slice;

#[test]
fn a_list_is_not_an_object() {
    for json in [
        r#"[]"#,
        r#"{"spec": []}"#,
        r#"{"spec": {"selectors": [[]]}}"#,
        r#"{"spec": {"selectors": [{"cel": []}]}}"#,
        r#"{"spec": {"selectors": {}}}"#,
        r#"{"metadata": {"name": []}}"#,
    ] {
        assert!(
            from_slice::<DeviceClass>(json.as_bytes()).is_err(),
            "{json}"
        );
    }
}

#[test]
fn null_is_the_empty_value_at_every_depth() {
    let json = r#"{"spec": {"driver": null, "devices": [null,
        {"name": "a", "attributes": {"model": null}, "capacity": {"memory": null}, "bindingConditions": [null]}]}}"#;
    let slice: ResourceSlice = from_slice(json.as_bytes()).expect("as Go reads it");
    assert_eq!(slice.spec.devices.len(), 2);
    assert_eq!(slice.spec.devices[0].name, "");
    assert_eq!(slice.spec.devices[1].attributes.len(), 1);
    assert_eq!(slice.spec.devices[1].binding_conditions, [""]);
}

#[test]
fn what_follows_the_object_is_an_error() {
    assert!(from_slice::<DeviceClass>(b"{} {}").is_err());
    assert!(from_slice::<DeviceClass>(b"{}\n").is_ok());
}
