//! The grammars of names: DNS labels and subdomains, drivers, pools, qualified names, label keys and values.

use super::path::{Path, Report};

const LABEL_MAX: usize = 63;
const SUBDOMAIN_MAX: usize = 253;
const DRIVER_MAX: usize = 63;
const IDENTIFIER_MAX: usize = 32;

fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// The part of a label key after the slash, or a label value: letters, digits, `-`, `_`, `.`.
fn is_word(text: &str) -> bool {
    let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    text.len() <= LABEL_MAX
        && text.bytes().all(inner)
        && edge(text.bytes().next())
        && edge(text.bytes().next_back())
}

fn is_subdomain(text: &str) -> bool {
    text.len() <= SUBDOMAIN_MAX && text.split('.').all(is_label)
}

pub(super) fn is_driver(text: &str) -> bool {
    text.len() <= DRIVER_MAX && is_subdomain(&text.to_lowercase())
}

fn is_identifier(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    !text.is_empty()
        && text.len() <= IDENTIFIER_MAX
        && text.bytes().all(inner)
        && !text.starts_with(|first: char| first.is_ascii_digit())
}

fn is_label_name(text: &str) -> bool {
    match text.split_once('/') {
        Some((domain, name)) => is_subdomain(domain) && is_word(name),
        None => is_word(text),
    }
}

fn require(valid: bool, text: &str, expected: &str, path: &Path<'_>, report: &mut Report) {
    if valid {
        return;
    }
    let message = match text {
        "" => "is missing".to_owned(),
        _ => format!("{text:?} is not {expected}"),
    };
    report.fail(path, message);
}

/// Names of devices, requests, counters and counter sets.
pub(super) fn label(text: &str, path: &Path<'_>, report: &mut Report) {
    const EXPECTED: &str =
        "a DNS label (at most 63 of a-z, 0-9 and -, with a letter or digit first and last)";
    require(
        text.len() <= LABEL_MAX && is_label(text),
        text,
        EXPECTED,
        path,
        report,
    );
}

/// Names of objects, classes and nodes.
pub(super) fn subdomain(text: &str, path: &Path<'_>, report: &mut Report) {
    const EXPECTED: &str =
        "a DNS subdomain (labels of a-z, 0-9 and -, joined by dots, at most 253 characters)";
    require(is_subdomain(text), text, EXPECTED, path, report);
}

pub(super) fn driver(text: &str, path: &Path<'_>, report: &mut Report) {
    const EXPECTED: &str =
        "a driver name (a DNS subdomain of at most 63 characters, such as \"dra-agent.internal\")";
    require(is_driver(text), text, EXPECTED, path, report);
}

pub(super) fn pool(text: &str, path: &Path<'_>, report: &mut Report) {
    const EXPECTED: &str = "a pool name (DNS subdomains joined by /, at most 253 characters)";
    let valid = text.len() <= SUBDOMAIN_MAX && text.split('/').all(is_subdomain);
    require(valid, text, EXPECTED, path, report);
}

/// Keys of taints, names of binding conditions.
pub(super) fn label_name(text: &str, path: &Path<'_>, report: &mut Report) {
    const EXPECTED: &str = "a label name (letters, digits, -, _ and ., at most 63, after an optional domain and a slash)";
    require(is_label_name(text), text, EXPECTED, path, report);
}

pub(super) fn label_value(text: &str, path: &Path<'_>, report: &mut Report) {
    const EXPECTED: &str = "a label value (letters, digits, -, _ and ., at most 63, with a letter or digit first and last)";
    require(
        text.is_empty() || is_word(text),
        text,
        EXPECTED,
        path,
        report,
    );
}

/// Names of attributes and capacities: `memory`, `resource.kubernetes.io/pcieRoot`.
pub(super) fn qualified(text: &str, path: &Path<'_>, report: &mut Report) {
    const EXPECTED: &str = "a qualified name (a C identifier of at most 32 characters, after an optional driver name and a slash)";
    let valid = match text.split_once('/') {
        Some((domain, name)) => is_driver(domain) && is_identifier(name),
        None => is_identifier(text),
    };
    require(valid, text, EXPECTED, path, report);
}

/// Attributes in constraints: the domain is required.
pub(super) fn fully_qualified(text: &str, path: &Path<'_>, report: &mut Report) {
    if !text.is_empty() && !text.contains('/') {
        let message =
            format!("{text:?} needs its domain, such as \"resource.kubernetes.io/pcieRoot\"");
        return report.fail(path, message);
    }
    qualified(text, path, report);
}

/// `example.com/gpu`: a resource name outside of Kubernetes' own domains.
pub(super) fn extended_resource(text: &str, path: &Path<'_>, report: &mut Report) {
    const EXPECTED: &str =
        "an extended resource name (a domain other than kubernetes.io, a slash and a name)";
    let own = text.contains("kubernetes.io/") || text.starts_with("requests.");
    let valid = text.contains('/') && !own && is_label_name(&format!("requests.{text}"));
    require(valid, text, EXPECTED, path, report);
}

/// A lower-case UUID.
pub(super) fn uuid(text: &str, path: &Path<'_>, report: &mut Report) {
    let valid = text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
        });
    require(valid, text, "a UUID in lower case", path, report);
}
