//! DeviceClass, and the selectors and configuration that it shares with claims.

use serde_json::Value;

use super::path::{Path, Report};
use super::{names, validate_meta};
use crate::class::{DeviceClass, DeviceSelector, OpaqueDeviceConfiguration};

const MAX_SELECTORS: usize = 32;
pub(super) const MAX_CONFIGS: usize = 32;
const MAX_EXPRESSION_BYTES: usize = 10 * 1024;
const MAX_PARAMETERS_BYTES: usize = 10 * 1024;

pub(super) fn validate(class: &DeviceClass, report: &mut Report) {
    validate_meta(&class.metadata, false, report);
    let root = Path::root();
    let path = root.member("spec");
    selectors(&class.spec.selectors, &path.member("selectors"), report);
    let configs = path.member("config");
    if report.at_most(MAX_CONFIGS, class.spec.config.len(), &configs) {
        for (index, config) in class.spec.config.iter().enumerate() {
            opaque(config.opaque.as_ref(), &configs.index(index), report);
        }
    }
    if let Some(name) = &class.spec.extended_resource_name {
        names::extended_resource(name, &path.member("extendedResourceName"), report);
    }
}

pub(super) fn selectors(selectors: &[DeviceSelector], path: &Path<'_>, report: &mut Report) {
    if !report.at_most(MAX_SELECTORS, selectors.len(), path) {
        return;
    }
    for (index, selector) in selectors.iter().enumerate() {
        let path = path.index(index);
        let path = path.member("cel");
        match &selector.cel {
            None => report.fail(&path, "is missing"),
            Some(cel) => expression(&cel.expression, &path.member("expression"), report),
        }
    }
}

pub(super) fn expression(text: &str, path: &Path<'_>, report: &mut Report) {
    match text.len() {
        0 => report.fail(path, "is missing"),
        1..=MAX_EXPRESSION_BYTES => report.expression(path, text),
        length => report.fail(
            path,
            format!("has {length} bytes, the limit is {MAX_EXPRESSION_BYTES}"),
        ),
    }
}

pub(super) fn opaque(
    config: Option<&OpaqueDeviceConfiguration>,
    path: &Path<'_>,
    report: &mut Report,
) {
    let path = path.member("opaque");
    let Some(config) = config else {
        return report.fail(&path, "is missing");
    };
    names::driver(&config.driver, &path.member("driver"), report);
    let parameters = path.member("parameters");
    match &config.parameters {
        Value::Null => report.fail(&parameters, "is missing"),
        Value::Object(_) => {
            let length = config.parameters.to_string().len();
            if length > MAX_PARAMETERS_BYTES {
                report.fail(
                    &parameters,
                    format!("has {length} bytes, the limit is {MAX_PARAMETERS_BYTES}"),
                );
            }
        }
        _ => report.fail(&parameters, "must be an object"),
    }
}
