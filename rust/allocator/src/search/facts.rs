//! What of tasks and devices stays the same during a search, and which devices are therefore interchangeable.
//!
//! Two devices of one class are told apart by nothing that the search reads: neither by a task's checks, nor by counters,
//! capacity or the attributes that constraints compare. One can stand in the place of the other in every allocation, and an
//! error that ends the search at one of them would end it at the other.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::Search;
use crate::capacity;
use crate::constraints::look_up;
use crate::error::Error;
use crate::plan::{PlannedClaim, Task};
use crate::taints;

/// Whether a device can serve a task as long as nothing else is allocated.
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
    /// By candidate: the member of its class before it.
    pub(super) previous: Vec<Option<usize>>,
    /// By claim, constraint and candidate: the number of the attribute's value.
    pub(super) values: Vec<Vec<Vec<Option<usize>>>>,
    /// By the task's key: whether it can end the search with an error.
    pub(super) fails: Vec<bool>,
    /// By claim and choice, and after the last: whether what comes from there on can end the search with an error.
    pub(super) fails_from: Vec<Vec<bool>>,
    /// By candidate: what it consumes of all counters of one name, about.
    pub(super) consumption: Vec<Vec<(usize, f64)>>,
    /// The number of each name of a counter.
    pub(super) counter_names: BTreeMap<String, usize>,
    /// By candidate that can be shared: how many shares of the tasks it has room for at most.
    pub(super) shares: Vec<usize>,
    /// By task key: the first task that has the same fits and is not told apart from it by what a bound counts.
    pub(super) alike: Vec<usize>,
    /// Whether a device gives counters back by being allocated: bounds and classes then mean nothing.
    pub(super) negative: bool,
}

impl Facts {
    /// Asks every task about every device. An error of a device is kept for when the search meets it.
    pub(super) fn gather(search: &mut Search<'_, '_>) -> Result<Self, Error> {
        let claims = search.claims;
        let count = search.matching.candidates.len();
        let mut fits = vec![vec![Fit::No; count]; search.matching.tasks()];
        for (claim, planned) in claims.iter().enumerate() {
            for task in planned.choices.iter().flat_map(|choice| choice.tasks()) {
                // "All" are those that were counted before; the others are not asked.
                let everyone: Vec<usize> = (0..count).collect();
                for &index in task.all.as_ref().unwrap_or(&everyone) {
                    fits[task.key][index] = search.fit(claim, task, index)?;
                }
            }
        }
        let values = values(search);
        let (consumption, counter_names, negative) = consumption(search);
        let class = classes(search, &fits, &values, negative);
        let mut last = HashMap::new();
        let previous = class
            .iter()
            .enumerate()
            .map(|(index, class)| last.insert(*class, index))
            .collect();
        let shares = (0..count)
            .map(|index| search.room_for_shares(&fits, index))
            .collect();
        let fails = fails(claims, &fits);
        Ok(Self {
            fails_from: fails_from(claims, &fails),
            fails,
            alike: alike(claims, &fits),
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
    /// Where the checks before an error can refuse the device, they come first here, too.
    fn fit(&mut self, claim: usize, task: &Task<'a>, index: usize) -> Result<Fit, Error> {
        let candidate = self.matching.candidates[index];
        let used = self.used(index);
        if !task.request.admin_access && used.is_some_and(|used| used.whole) {
            return Ok(Fit::No);
        }
        let tainted = taints::not_tolerated(candidate.device, task.request.tolerations).is_some();
        let incomparable = self.constraints[claim].iter().any(|constraint| {
            constraint.applies_to(&task.request)
                && look_up(candidate.device, candidate.id(), constraint.attribute).is_none()
        });
        if task.all.is_some() {
            if tainted {
                return Ok(Fit::No);
            }
            if incomparable {
                return Ok(Fit::Fails);
            }
        } else {
            match self.matching.selects(self.claims[claim].claim, task, index) {
                Ok(true) => {}
                Ok(false) => return Ok(Fit::No),
                Err(late @ Error::Deadline { .. }) => return Err(late),
                Err(_) => return Ok(Fit::Fails),
            }
        }
        let used = used.and_then(|used| used.capacity.as_ref());
        Ok(
            match capacity::shortfall(task.request.capacity, candidate.device, used, None) {
                Err(_) => Fit::Fails,
                Ok(None) if !tainted && !incomparable => Fit::Yes,
                Ok(_) => Fit::No,
            },
        )
    }

    /// Every share consumes at least what the least demanding task takes.
    fn room_for_shares(&self, fits: &[Vec<Fit>], index: usize) -> usize {
        let candidate = self.matching.candidates[index];
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
        let mut room = tasks.len();
        for (name, capacity) in &candidate.device.capacity {
            let least = tasks
                .iter()
                .filter_map(|task| capacity::consumed(task.request.capacity, candidate.device).ok())
                .filter_map(|mut consumed| consumed.remove(name))
                .min();
            let Some(least) = least.filter(|least| !least.is_zero()) else {
                continue;
            };
            let used = self.used(index).and_then(|used| used.capacity.as_ref());
            let mut sum = used
                .and_then(|used| used.get(name).cloned())
                .unwrap_or_default();
            let mut fitting = 0;
            while fitting < room {
                sum.add(&least);
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

/// Devices of a class share this text. JSON keeps quantities as they were given: their way of writing decides with some
/// request policies.
fn classes(
    search: &Search<'_, '_>,
    fits: &[Vec<Fit>],
    values: &[Vec<Vec<Option<usize>>>],
    negative: bool,
) -> Vec<usize> {
    let mut known = HashMap::new();
    (0..search.matching.candidates.len())
        .map(|index| {
            let candidate = search.matching.candidates[index];
            let device = candidate.device;
            let used = search.used(index);
            let counters = (!device.consumes_counters.is_empty())
                .then(|| (candidate.pool, json(&device.consumes_counters)));
            let share = candidate.shared().then(|| {
                let used = used.map(|used| (used.shared, json(&used.capacity)));
                (json(&device.capacity), used)
            });
            let fits: Vec<Fit> = fits.iter().map(|row| row[index]).collect();
            let values: Vec<Option<usize>> =
                values.iter().flatten().map(|row| row[index]).collect();
            let alone = negative.then_some(index);
            let next = known.len();
            *known
                .entry((counters, share, fits, values, alone))
                .or_insert(next)
        })
        .collect()
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn values(search: &Search<'_, '_>) -> Vec<Vec<Vec<Option<usize>>>> {
    let candidates = &search.matching.candidates;
    search
        .constraints
        .iter()
        .map(|constraints| {
            constraints
                .iter()
                .map(|constraint| {
                    let mut known = HashMap::new();
                    candidates
                        .iter()
                        .map(|candidate| {
                            let value =
                                look_up(candidate.device, candidate.id(), constraint.attribute)?;
                            let next = known.len();
                            Some(*known.entry(json(value)).or_insert(next))
                        })
                        .collect()
                })
                .collect()
        })
        .collect()
}

type Consumption = (Vec<Vec<(usize, f64)>>, BTreeMap<String, usize>, bool);

fn consumption(search: &Search<'_, '_>) -> Consumption {
    let mut names = BTreeMap::new();
    let mut negative = false;
    let consumption = search
        .matching
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
        // A constraint that "all" cannot keep is an error.
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

fn alike(claims: &[PlannedClaim<'_>], fits: &[Vec<Fit>]) -> Vec<usize> {
    let mut known = HashMap::new();
    let mut alike = vec![0; fits.len()];
    for task in claims
        .iter()
        .flat_map(|planned| &planned.choices)
        .flat_map(|choice| choice.tasks())
    {
        let what = (
            &fits[task.key],
            task.request.admin_access,
            json(&task.request.capacity),
        );
        alike[task.key] = *known.entry(what).or_insert(task.key);
    }
    alike
}
