//! Facts about tasks and devices that stay constant during a search, and the classes of interchangeable devices.
//!
//! Two devices of one class are equal in everything that the search reads: checks of tasks, counters, capacity, and
//! attributes in constraints. One can replace the other in every allocation, and an error on one would also occur on the
//! other.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::Search;
use super::values::{self, Values};
use crate::capacity;
use crate::constraints::{is_comparable, look_up};
use crate::error::Error;
use crate::plan::{PlannedClaim, Task};
use crate::taints;

/// Whether a device fits a task if nothing else is allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Fit {
    No,
    Yes,
    /// The check ends the search with an error.
    Fails,
}

#[derive(Debug)]
pub(super) struct Facts {
    /// By the task's key, then by candidate.
    pub(super) fits: Vec<Vec<Fit>>,
    /// By candidate; classes are numbered in the order of their first members.
    pub(super) class: Vec<usize>,
    /// By candidate: the previous member of its class.
    pub(super) previous: Vec<Option<usize>>,
    /// By claim and constraint.
    pub(super) values: Vec<Vec<Values>>,
    /// By the task's key: whether it can end the search with an error.
    pub(super) fails: Vec<bool>,
    /// By claim and choice, and after the last one: whether the rest of the search can end with an error.
    pub(super) fails_from: Vec<Vec<bool>>,
    /// By candidate: its approximate consumption of all counters of one name.
    pub(super) consumption: Vec<Vec<(usize, f64)>>,
    /// The number of each counter name.
    pub(super) counter_names: BTreeMap<String, usize>,
    /// By candidate that can be shared: the maximum number of shares.
    pub(super) shares: Vec<usize>,
    /// By task key: the first task that is equivalent for bounds.
    pub(super) equivalent_tasks: Vec<usize>,
    /// Whether a device has a negative consumption. Bounds and classes are then invalid.
    pub(super) negative: bool,
}

impl Facts {
    /// Checks every task on every device. An error becomes part of the facts until the search reaches the device.
    pub(super) fn gather(search: &mut Search<'_, '_>) -> Result<Self, Error> {
        let claims = search.claims;
        let count = search.candidate_set.candidates.len();
        let mut fits = vec![vec![Fit::No; count]; search.candidate_set.tasks()];
        for (claim, planned) in claims.iter().enumerate() {
            for task in planned.choices.iter().flat_map(|choice| choice.tasks()) {
                // For "All", only the planned devices are checked.
                let everyone: Vec<usize> = (0..count).collect();
                for &index in task.all.as_ref().unwrap_or(&everyone) {
                    fits[task.key][index] = search.fit(claim, task, index)?;
                }
            }
        }
        let values = values::gather(&search.constraints, search.candidate_set);
        let (consumption, counter_names, negative) = consumption(search);
        let fails = fails(claims, &fits);
        let mut alone = in_order(claims, &fails, count);
        if negative || order_matters(search) {
            alone.fill(true);
        }
        let class = classes(search, &fits, &values, &alone);
        let mut last = HashMap::new();
        let previous = class
            .iter()
            .enumerate()
            .map(|(index, class)| last.insert(*class, index))
            .collect();
        let shares = (0..count)
            .map(|index| search.max_shares(&fits, index))
            .collect();
        Ok(Self {
            fails_from: fails_from(claims, &fails),
            fails,
            equivalent_tasks: equivalent_tasks(claims, &fits),
            fits,
            class,
            previous,
            values,
            consumption,
            counter_names,
            shares,
            negative,
        })
    }
}

impl<'a> Search<'_, 'a> {
    /// Checks one device in the order of the search: an earlier check that fails prevents an error.
    fn fit(&mut self, claim: usize, task: &Task<'a>, index: usize) -> Result<Fit, Error> {
        let candidate = self.candidate_set.candidates[index];
        let used = self.used(index);
        if !task.request.admin_access && used.is_some_and(|used| used.whole) {
            return Ok(Fit::No);
        }
        let tainted = taints::not_tolerated(candidate.device, task.request.tolerations).is_some();
        let incomparable = self.constraints[claim].iter().any(|constraint| {
            constraint.applies_to(&task.request)
                && look_up(candidate.device, candidate.id(), constraint.attribute).is_none()
        });
        let skippable = self.candidate_set.operations_are_skippable(&candidate);
        if task.all.is_some() {
            if tainted || !skippable {
                return Ok(Fit::No);
            }
            if incomparable {
                return Ok(Fit::Fails);
            }
        } else {
            match self
                .candidate_set
                .selects(self.claims[claim].claim, task, index)
            {
                Ok(true) => {}
                Ok(false) => return Ok(Fit::No),
                Err(late @ Error::Deadline { .. }) => return Err(late),
                Err(_) => return Ok(Fit::Fails),
            }
        }
        let used = used.and_then(|used| used.capacity.as_ref());
        let names = self.candidate_set.capacity_names(&candidate);
        let request = task.request.capacity;
        Ok(
            match capacity::shortfall(request, candidate.device, names, used, None) {
                Err(_) => Fit::Fails,
                Ok(None) if !tainted && !incomparable && skippable => Fit::Yes,
                Ok(_) => Fit::No,
            },
        )
    }

    /// The maximum number of shares of a device, from the task with the least consumption.
    fn max_shares(&self, fits: &[Vec<Fit>], index: usize) -> usize {
        let candidate = self.candidate_set.candidates[index];
        let tasks: Vec<&Task<'a>> = self
            .claims
            .iter()
            .flat_map(|planned| &planned.choices)
            .flat_map(|choice| choice.tasks())
            .filter(|task| fits[task.key][index] == Fit::Yes)
            .collect();
        if !candidate.shared() {
            return 1;
        }
        let names = self.candidate_set.capacity_names(&candidate);
        let mut room = tasks.len();
        for (name, capacity) in candidate.device.capacity.iter() {
            let minimum = tasks
                .iter()
                .filter_map(|task| {
                    capacity::consumed(task.request.capacity, candidate.device, names).ok()
                })
                .filter_map(|mut consumed| consumed.remove(name))
                .min();
            let Some(minimum) = minimum.filter(|minimum| !minimum.is_zero()) else {
                continue;
            };
            let used = self.used(index).and_then(|used| used.capacity.as_ref());
            let mut sum = used
                .and_then(|used| names.sum(used, name))
                .unwrap_or_default();
            let mut fitting = 0;
            while fitting < room {
                sum.add(&minimum);
                if sum > capacity.value {
                    break;
                }
                fitting += 1;
            }
            room = fitting;
        }
        room
    }
}

/// The class of each candidate, by a JSON text that all members share. JSON preserves the text of quantities, which
/// matters for some request policies.
fn classes(
    search: &Search<'_, '_>,
    fits: &[Vec<Fit>],
    values: &[Vec<Values>],
    alone: &[bool],
) -> Vec<usize> {
    let mut known = HashMap::new();
    (0..search.candidate_set.candidates.len())
        .map(|index| {
            let candidate = search.candidate_set.candidates[index];
            let device = candidate.device;
            let used = search.used(index);
            let counters = (!device.consumes_counters.is_empty())
                .then(|| (candidate.pool, json(&device.consumes_counters)));
            let share = candidate.shared().then(|| {
                let used = used.map(|used| (used.shared, json(&used.capacity)));
                (json(&device.capacity), used)
            });
            let fits: Vec<Fit> = fits.iter().map(|row| row[index]).collect();
            let values: Vec<Option<usize>> = values
                .iter()
                .flatten()
                .map(|values| values.whole[index])
                .collect();
            let alone = alone[index].then_some(index);
            let next = known.len();
            *known
                .entry((counters, share, fits, values, alone))
                .or_insert(next)
        })
        .collect()
}

/// By candidate: whether its position matters. The devices of "All" are allocated in order, and whether one that is in use
/// or one that causes an error comes first decides the result.
fn in_order(claims: &[PlannedClaim<'_>], fails: &[bool], count: usize) -> Vec<bool> {
    let mut in_order = vec![false; count];
    for task in claims
        .iter()
        .flat_map(|planned| &planned.choices)
        .flat_map(|choice| choice.tasks())
        .filter(|task| fails[task.key])
    {
        for index in task.all.iter().flatten() {
            in_order[*index] = true;
        }
    }
    in_order
}

/// Whether a constraint accepts a set of devices only in some orders. Devices of one class are then not interchangeable.
/// The order of sets of values never matters.
fn order_matters(search: &Search<'_, '_>) -> bool {
    if search.candidate_set.gates.list_attributes {
        return false;
    }
    let constraints = search.constraints.iter().flatten();
    constraints
        .filter(|constraint| constraint.distinct)
        .any(|constraint| {
            search.candidate_set.candidates.iter().any(|candidate| {
                look_up(candidate.device, candidate.id(), constraint.attribute)
                    .is_some_and(|value| !is_comparable(value))
            })
        })
}

pub(super) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

type Consumption = (Vec<Vec<(usize, f64)>>, BTreeMap<String, usize>, bool);

fn consumption(search: &Search<'_, '_>) -> Consumption {
    let mut names = BTreeMap::new();
    let mut negative = false;
    let consumption = search
        .candidate_set
        .candidates
        .iter()
        .map(|candidate| {
            let mut sums = BTreeMap::<usize, f64>::new();
            for consumed in &candidate.device.consumes_counters {
                for (name, counter) in &consumed.counters {
                    let next = names.len();
                    let name = *names.entry(name.clone()).or_insert(next);
                    let amount = counter.value.as_approximate_float();
                    negative |= counter.value.sign() == std::cmp::Ordering::Less;
                    *sums.entry(name).or_default() += amount;
                }
            }
            sums.into_iter().collect()
        })
        .collect();
    (consumption, names, negative)
}

fn fails(claims: &[PlannedClaim<'_>], fits: &[Vec<Fit>]) -> Vec<bool> {
    let mut fails: Vec<bool> = fits.iter().map(|row| row.contains(&Fit::Fails)).collect();
    for planned in claims {
        // A constraint that the devices of "All" violate is an error.
        let constrained = !planned.claim.spec.devices.constraints.is_empty();
        for task in planned.choices.iter().flat_map(|choice| choice.tasks()) {
            fails[task.key] |= constrained && task.all.is_some();
        }
    }
    fails
}

fn fails_from(claims: &[PlannedClaim<'_>], fails: &[bool]) -> Vec<Vec<bool>> {
    let mut after = false;
    let mut by_claim: Vec<Vec<bool>> = claims
        .iter()
        .rev()
        .map(|planned| {
            let mut by_choice = vec![after];
            for choice in planned.choices.iter().rev() {
                after |= choice.tasks().iter().any(|task| fails[task.key]);
                by_choice.push(after);
            }
            by_choice.reverse();
            by_choice
        })
        .collect();
    by_claim.reverse();
    by_claim
}

fn equivalent_tasks(claims: &[PlannedClaim<'_>], fits: &[Vec<Fit>]) -> Vec<usize> {
    let mut known = HashMap::new();
    let mut equivalent_tasks = vec![0; fits.len()];
    for task in claims
        .iter()
        .flat_map(|planned| &planned.choices)
        .flat_map(|choice| choice.tasks())
    {
        let key = (
            &fits[task.key],
            task.request.admin_access,
            json(&task.request.capacity),
        );
        equivalent_tasks[task.key] = *known.entry(key).or_insert(task.key);
    }
    equivalent_tasks
}
