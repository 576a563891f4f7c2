//! The values that the available devices of a constraint's requests have.

use std::collections::{BTreeMap, HashSet};

use dra_api::DeviceAttribute;

use super::constraints::named;
use super::report::{ClaimReport, DeviceReport, RequestReport};
use crate::constraints::{Constraint, look_up};
use crate::error::Error;
use crate::plan::CandidateSet;
use crate::query::Deadline;
use crate::value_set::ValueSet;

/// The values of the available devices of a constraint's requests.
pub(super) struct Values {
    /// The number of each value, in the order of discovery.
    pub(super) numbers: BTreeMap<String, usize>,
    /// By number: the names of the devices with the value.
    pub(super) devices: Vec<Vec<String>>,
    /// By candidate: the numbers of its values, of which a list has several; `None` if it is not available.
    of_candidate: Vec<Option<Vec<usize>>>,
}

impl Values {
    pub(super) fn gather(
        report: &ClaimReport,
        constraint: &Constraint<'_>,
        candidate_set: &CandidateSet<'_>,
        repeated: &HashSet<String>,
        deadline: Deadline,
    ) -> Result<Self, Error> {
        let mut values = Self {
            numbers: BTreeMap::new(),
            devices: Vec::new(),
            of_candidate: vec![None; candidate_set.candidates.len()],
        };
        for request in report.requests.iter().filter(|one| named(constraint, one)) {
            deadline.check()?;
            for device in request.devices.iter().filter(|device| device.accepted) {
                let Some(index) = device.candidate else {
                    continue;
                };
                if values.of_candidate[index].is_some() {
                    continue;
                }
                deadline.check()?;
                let texts = texts_of(index, constraint, candidate_set);
                let numbers = texts
                    .into_iter()
                    .map(|text| values.add(text, shortest_name(device, repeated)))
                    .collect();
                values.of_candidate[index] = Some(numbers);
            }
        }
        Ok(values)
    }

    /// Adds a device to those of the value. Returns the value's number.
    fn add(&mut self, text: String, device: String) -> usize {
        let next = self.devices.len();
        let number = *self.numbers.entry(text).or_insert(next);
        if number == next {
            self.devices.push(Vec::new());
        }
        self.devices[number].push(device);
        number
    }

    /// The numbers of the device's values.
    pub(super) fn of(&self, device: &DeviceReport) -> &[usize] {
        let of_candidate = |index: usize| self.of_candidate[index].as_deref();
        device.candidate.and_then(of_candidate).unwrap_or_default()
    }

    /// By number: the values as text.
    pub(super) fn texts(&self) -> Vec<&str> {
        let mut texts = vec![""; self.devices.len()];
        for (text, number) in &self.numbers {
            texts[*number] = text;
        }
        texts
    }

    /// By number: how many available devices of the request have the value.
    pub(super) fn counts(&self, request: &RequestReport) -> Vec<i64> {
        let mut counts = vec![0; self.devices.len()];
        for device in request.devices.iter().filter(|device| device.accepted) {
            for number in self.of(device) {
                counts[*number] += 1;
            }
        }
        counts
    }
}

/// The names that devices of several pools have.
pub(super) fn repeated_names(report: &ClaimReport) -> HashSet<String> {
    // Requests that are evaluated have the same devices.
    let Some(request) = report
        .requests
        .iter()
        .find(|request| !request.devices.is_empty())
    else {
        return HashSet::new();
    };
    let mut seen = HashSet::new();
    request
        .devices
        .iter()
        .map(|device| device.device.as_str())
        .filter(|name| !seen.insert(*name))
        .map(str::to_owned)
        .collect()
}

/// The device's name, with driver and pool if another pool of the node has a device of the same name.
fn shortest_name(device: &DeviceReport, repeated: &HashSet<String>) -> String {
    if repeated.contains(&device.device) {
        format!("{}/{}/{}", device.driver, device.pool, device.device)
    } else {
        device.device.clone()
    }
}

/// The candidate's value, or each value of its list if lists are compared.
fn texts_of(
    index: usize,
    constraint: &Constraint<'_>,
    candidate_set: &CandidateSet<'_>,
) -> Vec<String> {
    let candidate = &candidate_set.candidates[index];
    match look_up(candidate.device, candidate.id(), constraint.attribute) {
        Some(value) if candidate_set.gates.list_attributes => {
            ValueSet::of(value).map_or_else(Vec::new, |set| set.texts())
        }
        Some(value) => vec![value_text(value)],
        None => Vec::new(),
    }
}

/// The text of an attribute value.
fn value_text(value: &DeviceAttribute) -> String {
    if let Some(text) = &value.string {
        text.clone()
    } else if let Some(number) = value.int {
        number.to_string()
    } else if let Some(truth) = value.bool {
        truth.to_string()
    } else if let Some(version) = &value.version {
        version.clone()
    } else {
        "(a list)".to_owned()
    }
}
