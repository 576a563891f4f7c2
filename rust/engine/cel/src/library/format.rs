//! The named formats that Kubernetes checks strings against.

use std::collections::HashMap;
use std::sync::LazyLock;

use ::regex::Regex;

use super::{Signature, global, member};
use crate::budget::Budget;
use crate::fault::Fault;
use crate::time;
use crate::value::Value;

#[rustfmt::skip]
pub(super) const TABLE: &[Signature] = &[
    member("format-validate", "validate", "format; string", "optional<list<string>>", validate),
    global(
        "format-named",
        "format.named",
        "string",
        "optional<format>",
        |args, _| {
            let name = args[0].as_str()?;
            Ok(Value::Optional(
                named(name).map(|format| Value::Format(format).into()),
            ))
        },
    ),
    global("format.dns1123Label", "format.dns1123Label", "", "format", |_, _| known("dns1123Label")),
    global("format.dns1123Subdomain", "format.dns1123Subdomain", "", "format", |_, _| known("dns1123Subdomain")),
    global("format.dns1035Label", "format.dns1035Label", "", "format", |_, _| known("dns1035Label")),
    global("format.qualifiedName", "format.qualifiedName", "", "format", |_, _| known("qualifiedName")),
    global("format.dns1123LabelPrefix", "format.dns1123LabelPrefix", "", "format", |_, _| known("dns1123LabelPrefix")),
    global("format.dns1123SubdomainPrefix", "format.dns1123SubdomainPrefix", "", "format", |_, _| known("dns1123SubdomainPrefix")),
    global("format.dns1035LabelPrefix", "format.dns1035LabelPrefix", "", "format", |_, _| known("dns1035LabelPrefix")),
    global("format.labelValue", "format.labelValue", "", "format", |_, _| known("labelValue")),
    global("format.uri", "format.uri", "", "format", |_, _| known("uri")),
    global("format.uuid", "format.uuid", "", "format", |_, _| { known("uuid") }),
    global("format.byte", "format.byte", "", "format", |_, _| { known("byte") }),
    global("format.date", "format.date", "", "format", |_, _| { known("date") }),
    global("format.datetime", "format.datetime", "", "format", |_, _| { known("datetime") }),
];

/// A format, with the size of its regular expression, which determines its cost in Kubernetes.
#[derive(Debug)]
pub(crate) struct Format {
    pub(crate) title: &'static str,
    pub(crate) regex_size: u64,
    name: &'static str,
    check: fn(&str) -> Vec<&'static str>,
}

static FORMATS: &[Format] = &[
    Format {
        title: "DNS1123Label",
        name: "dns1123Label",
        regex_size: 30,
        check: |text| label(text),
    },
    Format {
        title: "DNS1123Subdomain",
        name: "dns1123Subdomain",
        regex_size: 60,
        check: |text| subdomain(text),
    },
    Format {
        title: "DNS1035Label",
        name: "dns1035Label",
        regex_size: 30,
        check: |text| label_1035(text),
    },
    Format {
        title: "QualifiedName",
        name: "qualifiedName",
        regex_size: 60,
        check: qualified_name,
    },
    Format {
        title: "DNS1123LabelPrefix",
        name: "dns1123LabelPrefix",
        regex_size: 30,
        check: |text| label(&prefix(text)),
    },
    Format {
        title: "DNS1123SubdomainPrefix",
        name: "dns1123SubdomainPrefix",
        regex_size: 60,
        check: |text| subdomain(&prefix(text)),
    },
    Format {
        title: "DNS1035LabelPrefix",
        name: "dns1035LabelPrefix",
        regex_size: 30,
        check: |text| label_1035(&prefix(text)),
    },
    Format {
        title: "LabelValue",
        name: "labelValue",
        regex_size: 40,
        check: label_value,
    },
    Format {
        title: "URI",
        name: "uri",
        regex_size: 1103,
        check: |text| one(super::url::is_absolute(text), "must be an absolute URI"),
    },
    Format {
        title: "uuid",
        name: "uuid",
        regex_size: 70,
        check: |text| {
            one(
                matches("(?i)^[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}$", text),
                "must be a UUID",
            )
        },
    },
    Format {
        title: "byte",
        name: "byte",
        regex_size: 84,
        check: |text| {
            let base64 =
                "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})$";
            one(matches(base64, text), "must be base64")
        },
    },
    Format {
        title: "date",
        name: "date",
        regex_size: 71,
        check: |text| one(is_date(text), "must be a date"),
    },
    Format {
        title: "datetime",
        name: "datetime",
        regex_size: 71,
        check: |text| one(is_date_time(text), "must be a date and time"),
    },
];

fn named(name: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.name == name)
}

fn known(name: &str) -> Result<Value, Fault> {
    named(name)
        .map(Value::Format)
        .ok_or_else(|| Fault::new(format!("there is no format {name}")))
}

/// The errors of the text; an empty optional if it is valid.
fn validate(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    let Value::Format(format) = &args[0] else {
        return Err(Fault::no_overload_for(&args[0]));
    };
    let text = args[1].as_str()?;
    // Upper bound: a lower-case copy, and several regular expressions over it.
    budget.charge(text.len().saturating_mul(2))?;
    budget.scan(text.len().saturating_mul(8))?;
    let errors = (format.check)(text);
    if errors.is_empty() {
        return Ok(Value::Optional(None));
    }
    let mut texts = Vec::with_capacity(errors.len());
    budget.charge_values(errors.len())?;
    for error in errors {
        texts.push(budget.string(error)?);
    }
    let texts = budget.list(texts)?;
    budget.some(texts)
}

fn one(valid: bool, error: &'static str) -> Vec<&'static str> {
    if valid { Vec::new() } else { vec![error] }
}

fn matches(pattern: &'static str, text: &str) -> bool {
    static COMPILED: LazyLock<std::sync::Mutex<HashMap<&'static str, Option<Regex>>>> =
        LazyLock::new(Default::default);
    let mut compiled = COMPILED
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    compiled
        .entry(pattern)
        .or_insert_with(|| Regex::new(pattern).ok())
        .as_ref()
        .is_some_and(|regex| regex.is_match(text))
}

fn limited(
    text: &str,
    limit: usize,
    pattern: &'static str,
    shape: &'static str,
) -> Vec<&'static str> {
    let mut errors = one(text.len() <= limit, "is too long");
    errors.extend(one(matches(pattern, text), shape));
    errors
}

fn label(text: &str) -> Vec<&'static str> {
    limited(
        text,
        63,
        "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        "must be lower-case letters, digits and inner dashes",
    )
}

fn label_1035(text: &str) -> Vec<&'static str> {
    limited(
        text,
        63,
        "^[a-z]([-a-z0-9]*[a-z0-9])?$",
        "must be a letter followed by letters, digits and inner dashes",
    )
}

fn subdomain(text: &str) -> Vec<&'static str> {
    let pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
    limited(text, 253, pattern, "must be labels joined by dots")
}

/// A prefix may end in a dash, because something follows it.
fn prefix(text: &str) -> String {
    match text.strip_suffix('-') {
        Some(rest) if !rest.is_empty() => {
            let kept = rest.len() - rest.chars().next_back().map_or(0, char::len_utf8);
            format!("{}a", &rest[..kept])
        }
        _ => text.to_owned(),
    }
}

fn qualified_name(text: &str) -> Vec<&'static str> {
    let mut errors = Vec::new();
    let parts: Vec<&str> = text.splitn(3, '/').collect();
    let name = match parts.as_slice() {
        [name] => *name,
        [domain, name] => {
            errors.extend(if domain.is_empty() {
                vec!["the prefix must not be empty"]
            } else {
                subdomain(domain)
            });
            *name
        }
        _ => return vec!["must be a name with at most one prefix and slash"],
    };
    errors.extend(one(!name.is_empty(), "the name must not be empty"));
    errors.extend(one(name.len() <= 63, "the name is too long"));
    let shape = "the name must be letters, digits and inner dashes, underscores and dots";
    errors.extend(one(
        matches("^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$", name),
        shape,
    ));
    errors
}

fn label_value(text: &str) -> Vec<&'static str> {
    let shape = "must be letters, digits and inner dashes, underscores and dots";
    limited(
        text,
        63,
        "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$",
        shape,
    )
}

fn is_date(text: &str) -> bool {
    matches("^[0-9]{4}-[0-9]{2}-[0-9]{2}$", text) && time::is_date(text)
}

fn is_date_time(text: &str) -> bool {
    let lower = text.to_lowercase();
    let mut parts = lower.split('t');
    let (Some(date), Some(clock)) = (parts.next(), parts.next()) else {
        return false;
    };
    let shape = "^([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))$";
    is_date(date)
        && matches(shape, clock)
        && clock[..2] <= *"23"
        && clock[3..5] <= *"59"
        && clock[6..8] <= *"59"
}
