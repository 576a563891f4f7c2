//! Bounds: whether the remaining requests can fit, by counts of devices and without a selection of devices.
//!
//! A bound rejects a branch only if the search would find nothing in it, and never if the search could end with an error,
//! so that the result stays the same.

use std::collections::HashMap;

use super::facts::{Facts, Fit};
use super::{Position, Search};
use crate::constraints::Constraint;
use crate::counters::Counters;
use crate::plan::{Choice, MAX_DEVICES, Task};

/// The devices that a request still needs.
struct Demand<'p, 'a> {
    claim: usize,
    count: usize,
    /// The task, or the alternatives.
    tasks: Vec<&'p Task<'a>>,
    /// The first candidates to try; for "All", the remaining candidates.
    from: usize,
    rest: Option<&'p [usize]>,
}

/// Demands with the same possible devices.
struct Group {
    count: usize,
    /// The number of demands that one shared device can serve.
    members: usize,
    devices: Vec<usize>,
}

impl<'s, 'a> Search<'s, 'a> {
    /// Whether a bound proves that the branch has no allocation.
    pub(super) fn is_infeasible(
        &mut self,
        facts: &Facts,
        position: Position,
        committed: bool,
        from: usize,
    ) -> bool {
        if facts.negative || self.may_end_with_error(facts, position, committed) {
            return false;
        }
        let Some(demands) = self.demands(position, committed, from) else {
            return true;
        };
        let free: Vec<bool> = (0..facts.class.len())
            .map(|index| self.counters_suffice(index))
            .collect();
        let mut possible: Vec<Vec<usize>> = Vec::new();
        for demand in &demands {
            let devices = self.devices(facts, position, demand, &free);
            if devices.len() < demand.count {
                return true;
            }
            possible.push(devices);
        }
        let groups = groups(facts, position, &demands, &possible);
        !self.devices_suffice(facts, &groups)
            || !self.sums_suffice(facts, &groups)
            || !self.values_suffice(facts, position, &demands, &possible)
    }

    /// Whether the branch may end with an error, or with too many devices for a claim. The latter is an error only for the
    /// first claim.
    fn may_end_with_error(&self, facts: &Facts, position: Position, committed: bool) -> bool {
        let Some(planned) = self.claims.get(position.claim) else {
            return true;
        };
        let chosen = planned
            .choices
            .get(position.choice)
            .filter(|_| committed)
            .and_then(|choice| choice.task(position.alternative));
        let from = position.choice + usize::from(chosen.is_some());
        if facts.fails_from[position.claim][from]
            || chosen.is_some_and(|task| facts.fails[task.key])
        {
            return true;
        }
        let had_share = i64::try_from(self.found.devices[position.claim].len()).unwrap_or(i64::MAX);
        let current = chosen.map_or(0, |task| task.count.saturating_sub(position.device));
        let most = planned.choices[from..]
            .iter()
            .map(|choice| {
                let counts = choice.tasks().iter().map(|task| task.count.max(0));
                counts.max().unwrap_or(0)
            })
            .fold(had_share.saturating_add(current), i64::saturating_add);
        position.claim == 0 && most > MAX_DEVICES
    }

    /// The demands from `position` on. `None` if a request has no possible device.
    fn demands(
        &self,
        position: Position,
        committed: bool,
        from: usize,
    ) -> Option<Vec<Demand<'s, 'a>>> {
        let mut demands = Vec::new();
        for (claim, planned) in self.claims.iter().enumerate().skip(position.claim) {
            let first = if claim == position.claim {
                position.choice
            } else {
                0
            };
            for (choice_index, choice) in planned.choices.iter().enumerate().skip(first) {
                let here = claim == position.claim && choice_index == position.choice;
                let one = matches!(choice, Choice::One(_));
                if here && (committed || one) {
                    let task = choice.task(position.alternative)?;
                    let done = usize::try_from(position.device).ok()?;
                    demands.push(Demand {
                        claim,
                        count: usize::try_from(task.count)
                            .unwrap_or(0)
                            .saturating_sub(done),
                        tasks: vec![task],
                        from,
                        rest: task
                            .all
                            .as_ref()
                            .map(|all| all.get(done..).unwrap_or_default()),
                    });
                    continue;
                }
                let tasks: Vec<&Task<'a>> = choice
                    .tasks()
                    .iter()
                    .filter(|task| task.all.as_ref().is_none_or(|all| !all.is_empty()))
                    .collect();
                let minimum = tasks.iter().map(|task| task.count.max(0)).min()?;
                demands.push(Demand {
                    claim,
                    count: usize::try_from(minimum).unwrap_or(usize::MAX),
                    tasks,
                    from: 0,
                    rest: None,
                });
            }
        }
        demands.retain(|demand| demand.count > 0);
        Some(demands)
    }

    /// The possible devices of one of the demand's tasks.
    fn devices(
        &self,
        facts: &Facts,
        position: Position,
        demand: &Demand<'_, 'a>,
        free: &[bool],
    ) -> Vec<usize> {
        let position = Position {
            claim: demand.claim,
            ..position
        };
        let can_take = |task: &Task<'a>, index: usize| {
            facts.fits[task.key][index] == Fit::Yes
                && free[index]
                && !self.is_busy(position, task, index)
                && self.constraints[demand.claim].iter().all(|constraint| {
                    constraint.would_add(&task.request, self.candidate_set.candidates[index])
                })
                && (!self.candidate_set.candidates[index].shared()
                    || self.has_capacity(position, task, index).unwrap_or(true))
        };
        let all: Vec<usize>;
        let indices = match demand.rest {
            Some(rest) => rest,
            None => {
                all = (demand.from..free.len()).collect();
                &all
            }
        };
        indices
            .iter()
            .copied()
            .filter(|index| demand.tasks.iter().any(|task| can_take(task, *index)))
            .collect()
    }

    /// Whether the counters suffice for the device. Their remaining amounts never increase in the branch.
    fn counters_suffice(&mut self, index: usize) -> bool {
        let candidate = self.candidate_set.candidates[index];
        if candidate.device.consumes_counters.is_empty()
            || (candidate.shared() && self.has_share(index))
        {
            return true;
        }
        let pool = &self.candidate_set.pools[candidate.pool];
        let counters =
            self.counters[candidate.pool].get_or_insert_with(|| Counters::new(pool, self.in_use));
        let enough = counters.consume(candidate.device);
        if enough {
            counters.release(candidate.device);
        }
        enough
    }

    /// Whether every demand can have its own devices: a bipartite flow from demands to devices.
    fn devices_suffice(&self, facts: &Facts, groups: &[Group]) -> bool {
        let mut free: Vec<usize> = facts.shares.clone();
        for chosen in self.found.devices.iter().flatten() {
            if self.candidate_set.candidates[chosen.candidate].shared() {
                free[chosen.candidate] = free[chosen.candidate].saturating_sub(1);
            }
        }
        let mut flow = Flow {
            groups,
            free,
            assigned: vec![Vec::new(); facts.class.len()],
            visited: vec![false; groups.len()],
        };
        (0..groups.len()).all(|group| {
            (0..groups[group].count).all(|_| {
                flow.visited.fill(false);
                flow.augment(group)
            })
        })
    }

    /// Whether the sum of all counters of one name suffices for the devices with the least consumption.
    fn sums_suffice(&self, facts: &Facts, groups: &[Group]) -> bool {
        /// Tolerance for the rounding of sums.
        const MARGIN: f64 = 1e-6;
        let mut left = vec![0.0; facts.counter_names.len()];
        for counters in self.counters.iter().flatten() {
            for (name, free) in counters.free() {
                if let Some(&number) = facts.counter_names.get(name) {
                    left[number] += free.as_approximate_float().max(0.0);
                }
            }
        }
        left.iter().enumerate().all(|(name, left)| {
            let needed: f64 = groups
                .iter()
                .map(|group| {
                    // A shared device may already have consumed its counters, and can serve each demand of the group.
                    let (shared, own): (Vec<usize>, Vec<usize>) = group
                        .devices
                        .iter()
                        .partition(|index| self.candidate_set.candidates[**index].shared());
                    let count = group.count.saturating_sub(shared.len() * group.members);
                    let mut amounts: Vec<f64> = own
                        .iter()
                        .map(|index| consumed(facts, *index, name))
                        .collect();
                    amounts.sort_unstable_by(f64::total_cmp);
                    amounts.iter().take(count).sum::<f64>()
                })
                .sum();
            needed <= left * (1.0 + MARGIN) + MARGIN
        })
    }

    /// Whether each constraint has a possible value, or enough different values.
    fn values_suffice(
        &self,
        facts: &Facts,
        position: Position,
        demands: &[Demand<'_, 'a>],
        possible: &[Vec<usize>],
    ) -> bool {
        for (claim, constraints) in self.constraints.iter().enumerate().skip(position.claim) {
            for (constraint, values) in constraints.iter().zip(&facts.values[claim]) {
                let bound: Vec<(usize, &[usize])> = demands
                    .iter()
                    .zip(possible)
                    .filter(|(demand, _)| demand.claim == claim && applies(constraint, demand))
                    .map(|(demand, devices)| (demand.count, devices.as_slice()))
                    .collect();
                if !values.suffice(&bound, constraint.distinct) {
                    return false;
                }
            }
        }
        true
    }
}

/// The demands that use up devices, with the possible devices of each.
fn groups(
    facts: &Facts,
    position: Position,
    demands: &[Demand<'_, '_>],
    possible: &[Vec<usize>],
) -> Vec<Group> {
    let mut groups: HashMap<(usize, usize), Group> = HashMap::new();
    let mut alone = 0;
    for (demand, devices) in demands.iter().zip(possible) {
        // Admin access does not use up devices.
        if demand.tasks.iter().any(|task| task.request.admin_access) {
            continue;
        }
        let current = demand.claim == position.claim || demand.tasks.len() > 1;
        let key = if current {
            alone += 1;
            (usize::MAX, alone)
        } else {
            (0, facts.equivalent_tasks[demand.tasks[0].key])
        };
        let group = groups.entry(key).or_insert_with(|| Group {
            count: 0,
            members: 0,
            devices: devices.clone(),
        });
        group.count += demand.count;
        group.members += 1;
    }
    groups.into_values().collect()
}

fn consumed(facts: &Facts, index: usize, name: usize) -> f64 {
    let amounts = facts.consumption[index].iter();
    let of_name = amounts.filter(|(other, _)| *other == name);
    of_name.map(|(_, amount)| amount).sum()
}

/// Whether the constraint applies to every task of the demand.
fn applies(constraint: &Constraint<'_>, demand: &Demand<'_, '_>) -> bool {
    demand
        .tasks
        .iter()
        .all(|task| constraint.applies_to(&task.request))
}

/// A flow from groups of demands to devices, extended by augmenting paths.
struct Flow<'g> {
    groups: &'g [Group],
    free: Vec<usize>,
    /// By device: the groups that use it.
    assigned: Vec<Vec<usize>>,
    /// By group: whether the current search for an augmenting path visited it.
    visited: Vec<bool>,
}

impl Flow<'_> {
    fn augment(&mut self, group: usize) -> bool {
        let groups = self.groups;
        if std::mem::replace(&mut self.visited[group], true) {
            return false;
        }
        for &device in &groups[group].devices {
            let shares = self.assigned[device]
                .iter()
                .filter(|user| **user == group)
                .count();
            if shares >= groups[group].members {
                continue;
            }
            if self.assigned[device].len() < self.free[device] {
                self.assigned[device].push(group);
                return true;
            }
            for position in 0..self.assigned[device].len() {
                let other = self.assigned[device][position];
                if self.augment(other) {
                    self.assigned[device][position] = group;
                    return true;
                }
            }
        }
        false
    }
}
