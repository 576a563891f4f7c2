//! Consumable capacity: the consumption of a request, and whether the device has enough left.
//!
//! The arithmetic is int64 and wraps where Kubernetes' wraps, so that both compute the same amount.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use dra_api::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, CapacityRequirements, Device,
    DeviceCapacity, Quantity,
};

use crate::gates::Gates;
use crate::in_use::Capacities;

/// The reason why the capacity of a device does not suffice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Shortfall {
    /// The device has no capacity of this name.
    Missing { name: String },
    /// The device's policy does not allow the amount.
    Policy { name: String, amount: Quantity },
    /// The remaining amount is too small.
    Exceeded {
        name: String,
        needed: Quantity,
        free: Quantity,
    },
}

/// The names of the capacity of a device. To kube-scheduler from 1.38, `DRIVER/memory` and `memory` are one capacity of a
/// device of DRIVER; before, names are compared as they are written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Names<'a> {
    /// The driver, where its name as domain does not matter.
    driver: Option<&'a str>,
}

impl<'a> Names<'a> {
    pub(crate) fn new(driver: &'a str, gates: Gates) -> Self {
        Self {
            driver: (gates.minor >= 38).then_some(driver),
        }
    }

    fn short(self, name: &str) -> &str {
        self.driver
            .and_then(|driver| name.strip_prefix(driver)?.strip_prefix('/'))
            .unwrap_or(name)
    }

    fn are_same(self, one: &str, other: &str) -> bool {
        self.short(one) == self.short(other)
    }

    /// The amounts of a capacity, in all its spellings.
    fn amounts<'b>(
        self,
        amounts: &'b Capacities,
        name: &'b str,
    ) -> impl Iterator<Item = (&'b String, &'b Quantity)>
    where
        'a: 'b,
    {
        let of_name = move |(other, _): &(&String, &Quantity)| self.are_same(name, other);
        amounts.iter().filter(of_name)
    }

    /// The amount of a capacity, in all its spellings; `None` if there is none.
    pub(crate) fn sum(self, amounts: &Capacities, name: &str) -> Option<Quantity> {
        let mut found = self.amounts(amounts, name);
        let mut sum = found.next()?.1.clone();
        for (_, more) in found {
            sum.add(more);
        }
        Some(sum)
    }

    /// The requested amount of a device's capacity.
    fn requested<'r>(self, request: &'r CapacityRequirements, name: &str) -> Option<&'r Quantity> {
        let mut amounts = request.requests.iter();
        let (_, amount) = amounts.find(|(other, _)| self.are_same(name, other))?;
        Some(amount)
    }

    /// A requested name that the device does not have. Two names for one capacity are an error.
    fn missing<'r>(
        self,
        request: &'r CapacityRequirements,
        device: &Device,
    ) -> Result<Option<&'r str>, String> {
        let mut known: Vec<&str> = Vec::new();
        for name in request.requests.keys() {
            if !device
                .capacity
                .keys()
                .any(|other| self.are_same(name, other))
            {
                return Ok(Some(name));
            }
            if let Some(other) = known.iter().find(|other| self.are_same(name, other)) {
                return Err(format!("capacity {name} is requested as {other} too"));
            }
            known.push(name);
        }
        Ok(None)
    }
}

/// The consumption of a request, by capacity name. An error ends the allocation.
pub(crate) fn consumed(
    request: Option<&CapacityRequirements>,
    device: &Device,
    names: Names<'_>,
) -> Result<Capacities, String> {
    let mut consumed = Capacities::new();
    for (name, capacity) in device.capacity.iter() {
        let requested = request.and_then(|request| names.requested(request, name));
        let amount =
            amount(requested, capacity).map_err(|message| format!("capacity {name}: {message}"))?;
        consumed.insert(name.to_owned(), amount);
    }
    Ok(consumed)
}

/// Compares the consumption with the remaining capacity. `used` is the consumption of existing allocations,
/// `allocated` that of this allocation.
pub(crate) fn shortfall(
    request: Option<&CapacityRequirements>,
    device: &Device,
    names: Names<'_>,
    used: Option<&Capacities>,
    allocated: Option<&Capacities>,
) -> Result<Option<Shortfall>, String> {
    if let Some(request) = request
        && let Some(name) = names.missing(request, device)?
    {
        let name = name.to_owned();
        return Ok(Some(Shortfall::Missing { name }));
    }
    // All amounts first: an invalid amount is an error even if another capacity does not suffice.
    let consumed = consumed(request, device, names)?;
    if let Some((name, amount)) = consumed
        .iter()
        .find(|(_, amount)| amount.sign() == Ordering::Less)
    {
        return Err(format!("capacity {name}: {amount} is negative"));
    }
    for (name, needed) in consumed {
        let Some(capacity) = device.capacity.get(&name) else {
            continue;
        };
        if violates(&needed, capacity.request_policy.as_ref())
            .map_err(|message| format!("capacity {name}: {message}"))?
        {
            return Ok(Some(Shortfall::Policy {
                name,
                amount: needed,
            }));
        }
        let mut sum = needed.clone();
        for others in [used, allocated].into_iter().flatten() {
            for (_, amount) in names.amounts(others, &name) {
                sum.add(amount);
            }
        }
        if sum > capacity.value {
            let mut free = capacity.value.clone();
            sum.sub(&needed);
            free.sub(&sum);
            return Ok(Some(Shortfall::Exceeded { name, needed, free }));
        }
    }
    Ok(None)
}

/// The requested amount, rounded up by the policy. Without a request, the default of the policy or the full capacity.
fn amount(requested: Option<&Quantity>, capacity: &DeviceCapacity) -> Result<Quantity, String> {
    let policy = capacity.request_policy.as_ref();
    let Some(requested) = requested else {
        let default = policy.and_then(|policy| policy.default.as_ref());
        return Ok(default.unwrap_or(&capacity.value).clone());
    };
    let Some(policy) = policy else {
        return Ok(requested.clone());
    };
    if let Some(range) = &policy.valid_range
        && let Some(min) = &range.min
    {
        return round_up(requested, min, range);
    }
    let offered = policy.valid_values.iter().find(|offer| requested <= offer);
    Ok(offered.unwrap_or(requested).clone())
}

/// The smallest `min + n × step` that is at least `requested`.
fn round_up(
    requested: &Quantity,
    min: &Quantity,
    range: &CapacityRequestPolicyRange,
) -> Result<Quantity, String> {
    if requested < min {
        return Ok(min.clone());
    }
    let Some(step) = &range.step else {
        return Ok(requested.clone());
    };
    let too_large = || format!("the requested amount {requested} is too large");
    if in_thousandths(range) {
        let expected = exact_milli(requested).ok_or_else(|| {
            format!("the requested amount {requested} is not a whole number of thousandths")
        })?;
        let (minimum, increment) = (min.milli_value(), step.milli_value());
        let steps = steps_up(expected, minimum, increment)?;
        if steps > i64::MAX.wrapping_sub(minimum).wrapping_div(increment) {
            return Err(too_large());
        }
        let rounded = minimum.wrapping_add(increment.wrapping_mul(steps));
        return Ok(if rounded % 1000 == 0 {
            Quantity::new(rounded / 1000, step.format())
        } else {
            Quantity::from_milli(rounded, step.format())
        });
    }
    if *requested > Quantity::new(i64::MAX, requested.format()) {
        return Err(too_large());
    }
    let (minimum, increment) = (min.value(), step.value());
    let steps = steps_up(requested.value(), minimum, increment)?;
    if minimum >= 0 && steps > (i64::MAX - minimum).wrapping_div(increment) {
        return Err(too_large());
    }
    Ok(Quantity::new(
        minimum.wrapping_add(increment.wrapping_mul(steps)),
        step.format(),
    ))
}

/// The number of steps of `increment` from `minimum` to at least `expected`.
fn steps_up(expected: i64, minimum: i64, increment: i64) -> Result<i64, String> {
    if increment == 0 {
        return Err("the device's policy has a step of 0".to_owned());
    }
    let distance = expected.wrapping_sub(minimum);
    let steps = distance.wrapping_div(increment);
    Ok(if distance.wrapping_rem(increment) == 0 {
        steps
    } else {
        steps.wrapping_add(1)
    })
}

/// Whether the policy does not allow this amount.
fn violates(amount: &Quantity, policy: Option<&CapacityRequestPolicy>) -> Result<bool, String> {
    let Some(policy) = policy else {
        return Ok(false);
    };
    if policy
        .default
        .as_ref()
        .is_some_and(|default| amount.is_identical(default))
    {
        return Ok(false);
    }
    if let Some(range) = &policy.valid_range {
        return violates_range(amount, range);
    }
    Ok(!policy.valid_values.is_empty() && !policy.valid_values.contains(amount))
}

fn violates_range(amount: &Quantity, range: &CapacityRequestPolicyRange) -> Result<bool, String> {
    if range.max.as_ref().is_some_and(|max| amount > max) {
        return Ok(true);
    }
    let Some(step) = &range.step else {
        return Ok(false);
    };
    let in_thousandths = in_thousandths(range);
    let value = if in_thousandths {
        let Some(value) = exact_milli(amount) else {
            return Ok(true);
        };
        value
    } else {
        amount.value()
    };
    let Some(min) = &range.min else {
        return Err("the device's policy has a step but no min".to_owned());
    };
    let (minimum, increment) = if in_thousandths {
        (min.milli_value(), step.milli_value())
    } else {
        (min.value(), step.value())
    };
    if increment == 0 {
        return Err("the device's policy has a step of 0".to_owned());
    }
    Ok(value.wrapping_sub(minimum).wrapping_rem(increment) != 0)
}

/// Whether to compute in thousandths: the whole range is exact in thousandths, and the step is at least one.
fn in_thousandths(range: &CapacityRequestPolicyRange) -> bool {
    let writable = |quantity: &Option<Quantity>| {
        quantity
            .as_ref()
            .is_none_or(|quantity| exact_milli(quantity).is_some())
    };
    writable(&range.min)
        && writable(&range.max)
        && range
            .step
            .as_ref()
            .is_none_or(|step| exact_milli(step).is_some_and(|step| step >= 1))
}

fn exact_milli(quantity: &Quantity) -> Option<i64> {
    let milli = quantity.milli_value();
    (Quantity::from_milli(milli, quantity.format()) == *quantity).then_some(milli)
}

/// The capacity of shared devices that this allocation consumes. A device has an entry while it has a share, even one
/// without consumption, because only the first share of a device consumes counters.
#[derive(Debug, Default)]
pub(crate) struct Allocated {
    by_candidate: BTreeMap<usize, Capacities>,
}

impl Allocated {
    pub(crate) fn of(&self, candidate: usize) -> Option<&Capacities> {
        self.by_candidate.get(&candidate)
    }

    /// Adds a share. Returns whether the device already had one.
    pub(crate) fn add(&mut self, candidate: usize, consumed: &Capacities) -> bool {
        let had_share = self.by_candidate.contains_key(&candidate);
        crate::in_use::add_capacities(self.by_candidate.entry(candidate).or_default(), consumed);
        had_share
    }

    /// Removes a share. `had_share` is the result of `add`.
    pub(crate) fn remove(&mut self, candidate: usize, consumed: &Capacities, had_share: bool) {
        let Some(total) = self.by_candidate.get_mut(&candidate) else {
            return;
        };
        for (name, amount) in consumed {
            if let Some(sum) = total.get_mut(name) {
                sum.sub(amount);
            }
        }
        if !had_share {
            self.by_candidate.remove(&candidate);
        }
    }
}
