//! The summaries: one line for each request, each claim and the query.

use std::collections::BTreeMap;

use super::report::{ClaimReport, Explanation, Rejection, RequestReport};

pub(super) fn write(explanation: &mut Explanation) {
    let node = explanation.node.clone();
    for claim in &mut explanation.claims {
        for request in &mut claim.requests {
            request.summary = of_request(request);
        }
        if claim.summary.is_empty() {
            claim.summary = of_claim(claim, explanation.fits);
        }
    }
    explanation.summary = match &explanation.error {
        Some(error) => format!("nothing is allocated on node {node}: {error}"),
        None if explanation.fits => format!("fits on node {node}"),
        None if explanation.pools.is_empty() => {
            format!("does not fit on node {node}: no slice has a device for this node")
        }
        None => format!("does not fit on node {node}"),
    };
}

fn of_claim(claim: &ClaimReport, fits: bool) -> String {
    if claim.already_allocated {
        return "is already allocated".to_owned();
    }
    if fits {
        return "fits".to_owned();
    }
    blocker(claim).unwrap_or_else(|| "has enough devices for each request".to_owned())
}

/// The reason why the claim does not fit independently of other claims; `None` if unknown.
pub(super) fn blocker(claim: &ClaimReport) -> Option<String> {
    if let Some(request) = claim
        .requests
        .iter()
        .find(|request| request.error.is_some())
    {
        return Some(format!(
            "request {} ends the allocation with an error",
            request.request
        ));
    }
    let constraint = claim
        .constraints
        .iter()
        .find_map(|constraint| constraint.problem.clone());
    let short = claim
        .requests
        .iter()
        .find(|request| !request.alternative && is_short(request));
    match (constraint, short) {
        (Some(problem), _) => Some(problem),
        (None, Some(request)) => Some(format!(
            "request {}: {}",
            request.request,
            of_request(request)
        )),
        (None, None) => alternatives_are_short(claim).then(|| "no alternative fits".to_owned()),
    }
}

fn alternatives_are_short(claim: &ClaimReport) -> bool {
    let alternatives: Vec<&RequestReport> = claim
        .requests
        .iter()
        .filter(|request| request.alternative)
        .collect();
    !alternatives.is_empty() && alternatives.iter().all(|request| is_short(request))
}

fn is_short(request: &RequestReport) -> bool {
    let none_of_all = request.all && request.matching == 0;
    none_of_all || i64::try_from(request.available).unwrap_or(i64::MAX) < request.needed
}

fn of_request(request: &RequestReport) -> String {
    if let Some(error) = &request.error {
        return format!("ends the allocation with an error: {error}");
    }
    let total = request.devices.len();
    if total == 0 {
        return "the node has no devices".to_owned();
    }
    let devices = plural(total, "device");
    if request.matching == 0 {
        let reasons = reasons(request, |device| !device.matches, total);
        return format!("none of {devices} matches: {reasons}");
    }
    let matching = format!(
        "{} of {devices} {}",
        request.matching,
        if request.matching == 1 {
            "matches"
        } else {
            "match"
        }
    );
    let rejected = request.matching.saturating_sub(request.available);
    let needed = if request.all {
        "all of them are needed".to_owned()
    } else {
        format!(
            "{} needed",
            if request.needed == 1 {
                "1 is".to_owned()
            } else {
                format!("{} are", request.needed)
            }
        )
    };
    if rejected == 0 {
        return if is_short(request) {
            format!("{matching}, {needed}")
        } else {
            format!(
                "{matching} and {} free, {needed}",
                if request.available == 1 { "is" } else { "are" }
            )
        };
    }
    let reasons = reasons(
        request,
        |device| device.matches && !device.accepted,
        request.matching,
    );
    if request.available == 0 {
        format!("{matching}; {reasons}")
    } else {
        format!(
            "{matching}, {} free, {needed}; {reasons}",
            plural_is(request.available)
        )
    }
}

/// The reasons against the devices, the most frequent first. A device counts for its first reason.
fn reasons(
    request: &RequestReport,
    of: impl Fn(&super::DeviceReport) -> bool,
    total: usize,
) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for device in request.devices.iter().filter(|device| of(device)) {
        if let Some(rejection) = device.rejections.first() {
            *counts.entry(short_reason(rejection)).or_default() += 1;
        }
    }
    let mut counts: Vec<(String, usize)> = counts.into_iter().collect();
    counts.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    counts
        .into_iter()
        .map(|(reason, count)| match (count, total) {
            (1, 1) => format!("it {}", reason.replace("{is}", "is")),
            (2, 2) => format!("both {}", reason.replace("{is}", "are")),
            (count, total) if count == total => format!("all {}", reason.replace("{is}", "are")),
            (1, _) => format!("1 {}", reason.replace("{is}", "is")),
            (count, _) => format!("{count} {}", reason.replace("{is}", "are")),
        })
        .collect::<Vec<_>>()
        .join(", ")
}

/// A reason without device-specific details. `{is}` is a placeholder for "is" or "are".
fn short_reason(rejection: &Rejection) -> String {
    match rejection {
        Rejection::Pool { message } => format!("{{is}} not usable ({message})"),
        Rejection::Node { .. } => "{is} for other nodes".to_owned(),
        Rejection::Selector {
            owner,
            index,
            expression,
            error,
            ..
        } => {
            let outcome = if error.is_some() {
                "not evaluated by"
            } else {
                "rejected by"
            };
            format!(
                "{{is}} {outcome} selector {index} of {owner} ({})",
                shorten(expression)
            )
        }
        Rejection::InUse { holders, .. } => {
            let names: Vec<&str> = holders.iter().map(|holder| holder.claim.as_str()).collect();
            format!("{{is}} held by claim {}", names.join(", "))
        }
        Rejection::Taint { key, effect, .. } => format!("{{is}} tainted with {key}:{effect}"),
        Rejection::Counter { set, counter, .. } => {
            format!("{{is}} short of counter {set}/{counter}")
        }
        Rejection::NodeOperations { .. } => {
            "{is} not usable with skipNodeOperations on this node".to_owned()
        }
        Rejection::Capacity { name, problem, .. } => match problem.as_str() {
            "missing" => format!("{{is}} without capacity {name}"),
            "policy" => format!("{{is}} not offering the requested amount of capacity {name}"),
            _ => format!("{{is}} short of capacity {name}"),
        },
        Rejection::Constraint {
            attribute, value, ..
        } => match value {
            Some(_) => format!("{{is}} in too small a group with the same {attribute}"),
            None => format!("{{is}} without attribute {attribute}"),
        },
    }
}

/// Shortens an expression to one line. The device reports contain the full expression.
fn shorten(expression: &str) -> String {
    const MAX_CHARS: usize = 80;
    let line = expression.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= MAX_CHARS {
        return line;
    }
    let short: String = line.chars().take(MAX_CHARS - 3).collect();
    format!("{short}...")
}

fn plural(count: usize, noun: &str) -> String {
    if count == 1 {
        format!("{count} {noun}")
    } else {
        format!("{count} {noun}s")
    }
}

fn plural_is(count: usize) -> String {
    if count == 1 {
        "1 is".to_owned()
    } else {
        format!("{count} are")
    }
}
