//! The request policy of a shared device's capacity: default, valid values, valid range.

use super::path::{Path, Report};
use crate::device::{CapacityRequestPolicy, CapacityRequestPolicyRange, DeviceCapacity};
use crate::quantity::{Quantity, QuantityFormat};

const MAX_VALID_VALUES: usize = 10;

pub(super) fn validate(
    capacity: &DeviceCapacity,
    shared: bool,
    path: &Path<'_>,
    report: &mut Report,
) {
    let path = path.member("requestPolicy");
    match &capacity.request_policy {
        None => {}
        Some(_) if !shared => report.fail(&path, "needs allowMultipleAllocations: true"),
        Some(policy) => self::policy(policy, &capacity.value, &path, report),
    }
}

fn policy(policy: &CapacityRequestPolicy, whole: &Quantity, path: &Path<'_>, report: &mut Report) {
    let has_values = !policy.valid_values.is_empty();
    match (&policy.default, &policy.valid_range) {
        (_, Some(_)) if has_values => {
            report.fail(
                path,
                "has both validValues and validRange; only one is allowed",
            );
        }
        (None, range) if has_values || range.is_some() => {
            report.fail(&path.member("default"), "is missing");
        }
        (Some(default), Some(range)) => {
            self::range(default, range, whole, &path.member("validRange"), report)
        }
        (Some(default), None) if has_values => {
            values(
                default,
                &policy.valid_values,
                whole,
                &path.member("validValues"),
                report,
            );
        }
        _ => {}
    }
}

fn values(
    default: &Quantity,
    values: &[Quantity],
    whole: &Quantity,
    path: &Path<'_>,
    report: &mut Report,
) {
    if !report.at_most(MAX_VALID_VALUES, values.len(), path) {
        return;
    }
    for (index, value) in values.iter().enumerate() {
        if value > whole {
            report.fail(
                &path.index(index),
                format!("{value} is more than the capacity, {whole}"),
            );
        }
    }
    for (index, pair) in values.windows(2).enumerate() {
        if pair[0] >= pair[1] {
            report.fail(
                &path.index(index + 1),
                "must be greater than the value before it",
            );
        }
    }
    if !values.contains(default) {
        report.fail(path, format!("must contain the default, {default}"));
    }
}

fn range(
    default: &Quantity,
    range: &CapacityRequestPolicyRange,
    whole: &Quantity,
    path: &Path<'_>,
    report: &mut Report,
) {
    let Some(min) = &range.min else {
        return report.fail(&path.member("min"), "is missing");
    };
    let mut demand = |good: bool, field: &str, message: String| {
        if !good {
            report.fail(&path.member(field), message);
        }
    };
    demand(
        min <= whole,
        "min",
        format!("{min} is more than the capacity, {whole}"),
    );
    demand(
        default >= min,
        "min",
        format!("{min} is more than the default, {default}"),
    );
    if let Some(max) = &range.max {
        demand(min <= max, "max", format!("{max} is less than min, {min}"));
        demand(
            max <= whole,
            "max",
            format!("{max} is more than the capacity, {whole}"),
        );
        demand(
            default <= max,
            "max",
            format!("{max} is less than the default, {default}"),
        );
    }
    let Some(step) = &range.step else { return };
    demand(
        step.sign().is_gt(),
        "step",
        "must be greater than 0".to_owned(),
    );
    let mut next = min.clone();
    next.add(step);
    demand(
        next <= *whole,
        "step",
        format!("one step above min, {next}, is more than the capacity, {whole}"),
    );
    if !step.sign().is_gt() {
        return;
    }
    let bounds = [Some(default), Some(min), range.max.as_ref(), Some(step)];
    let Some(count) = exact_units(bounds.into_iter().flatten()) else {
        let message =
            "needs values from 0 to 2^63-1, or fractions with at most 3 decimal places".to_owned();
        return demand(false, "step", message);
    };
    for value in [Some(default), range.max.as_ref()].into_iter().flatten() {
        let whole_steps = (count(value) - count(min)) % count(step) == 0;
        demand(
            whole_steps,
            "step",
            format!("{value} is not a whole number of steps of {step} above {min}"),
        );
    }
}

/// A function that converts to units that represent every value exactly: whole units, or thousandths for a fraction.
fn exact_units<'q>(
    values: impl Iterator<Item = &'q Quantity> + Clone,
) -> Option<fn(&Quantity) -> i128> {
    let exact = |quantity: &Quantity, milli: bool| {
        let same = if milli {
            Quantity::from_milli(quantity.milli_value(), QuantityFormat::DecimalSi)
        } else {
            Quantity::new(quantity.value(), QuantityFormat::DecimalSi)
        };
        same == *quantity
    };
    if values.clone().any(|value| value.sign().is_lt()) {
        None
    } else if values.clone().all(|value| exact(value, false)) {
        Some(|quantity| i128::from(quantity.value()))
    } else if values.clone().all(|value| exact(value, true)) {
        Some(|quantity| i128::from(quantity.milli_value()))
    } else {
        None
    }
}
