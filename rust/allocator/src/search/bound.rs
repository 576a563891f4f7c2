//! Bounds: whether what is still to be allocated can fit at all, when each device is counted and not chosen.
//!
//! A bound only ever says no where the search would find nothing, and it says nothing where the search could end with an
//! error instead, so that the answer stays the same.

use std::collections::HashMap;

use super::facts::{Facts, Fit};
use super::{Place, Search};
use crate::constraints::Constraint;
use crate::counters::Counters;
use crate::plan::{Choice, MAX_DEVICES, Task};

/// Devices that one request still needs.
struct Demand<'p, 'a> {
    claim: usize,
    count: usize,
    /// The task, or those of which one will do.
    tasks: Vec<&'p Task<'a>>,
    /// The first candidates that the request may take, and of "all" those that it still has to take.
    from: usize,
    rest: Option<&'p [usize]>,
}

/// Demands that the same devices serve, together.
struct Group {
    count: usize,
    /// How many of the demands one shared device can serve.
    members: usize,
    devices: Vec<usize>,
}

impl<'s, 'a> Search<'s, 'a> {
    /// Whether nothing can be found from here on, for a reason that can be counted.
    pub(super) fn is_hopeless(
        &mut self,
        facts: &Facts,
        place: Place,
        committed: bool,
        from: usize,
    ) -> bool {
        if facts.negative || self.may_end_otherwise(facts, place, committed) {
            return false;
        }
        let Some(demands) = self.demands(place, committed, from) else {
            return true;
        };
        let free: Vec<bool> = (0..facts.class.len())
            .map(|index| self.counters_suffice(index))
            .collect();
        let mut groups: HashMap<(usize, usize), Group> = HashMap::new();
        let mut alone = 0;
        for demand in &demands {
            let devices = self.devices(facts, place, demand, &free);
            if devices.len() < demand.count {
                return true;
            }
            // Administrators take nothing away from others.
            if demand.tasks.iter().any(|task| task.request.admin_access) {
                continue;
            }
            let current = demand.claim == place.claim || demand.tasks.len() > 1;
            let key = if current {
                alone += 1;
                (usize::MAX, alone)
            } else {
                (0, facts.alike[demand.tasks[0].key])
            };
            let group = groups.entry(key).or_insert(Group {
                count: 0,
                members: 0,
                devices,
            });
            group.count += demand.count;
            group.members += 1;
        }
        let groups: Vec<Group> = groups.into_values().collect();
        !self.devices_suffice(facts, &groups)
            || !self.sums_suffice(facts, &groups)
            || !self.values_suffice(facts, place, &demands, &free)
    }

    /// An error, or a claim that may be refused for the number of its devices. Only the first claim's is an error.
    fn may_end_otherwise(&self, facts: &Facts, place: Place, committed: bool) -> bool {
        let Some(planned) = self.claims.get(place.claim) else {
            return true;
        };
        let chosen = planned
            .choices
            .get(place.choice)
            .filter(|_| committed)
            .and_then(|choice| choice.task(place.alternative));
        let from = place.choice + usize::from(chosen.is_some());
        if facts.fails_from[place.claim][from] || chosen.is_some_and(|task| facts.fails[task.key]) {
            return true;
        }
        let had = i64::try_from(self.found.devices[place.claim].len()).unwrap_or(i64::MAX);
        let current = chosen.map_or(0, |task| task.count.saturating_sub(place.device));
        let most = planned.choices[from..]
            .iter()
            .map(|choice| {
                let counts = choice.tasks().iter().map(|task| task.count.max(0));
                counts.max().unwrap_or(0)
            })
            .fold(had.saturating_add(current), i64::saturating_add);
        place.claim == 0 && most > MAX_DEVICES
    }

    /// What is missing from `place` on. None where a request has nothing that it could take.
    fn demands(&self, place: Place, committed: bool, from: usize) -> Option<Vec<Demand<'s, 'a>>> {
        let mut demands = Vec::new();
        for (claim, planned) in self.claims.iter().enumerate().skip(place.claim) {
            let first = if claim == place.claim {
                place.choice
            } else {
                0
            };
            for (position, choice) in planned.choices.iter().enumerate().skip(first) {
                let here = claim == place.claim && position == place.choice;
                let one = matches!(choice, Choice::One(_));
                if here && (committed || one) {
                    let task = choice.task(place.alternative)?;
                    let done = usize::try_from(place.device).ok()?;
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
                let least = tasks.iter().map(|task| task.count.max(0)).min()?;
                demands.push(Demand {
                    claim,
                    count: usize::try_from(least).unwrap_or(usize::MAX),
                    tasks,
                    from: 0,
                    rest: None,
                });
            }
        }
        demands.retain(|demand| demand.count > 0);
        Some(demands)
    }

    /// The devices that could be taken next for one of the demand's tasks.
    fn devices(
        &self,
        facts: &Facts,
        place: Place,
        demand: &Demand<'_, 'a>,
        free: &[bool],
    ) -> Vec<usize> {
        let place = Place {
            claim: demand.claim,
            ..place
        };
        let can_take = |task: &Task<'a>, index: usize| {
            facts.fits[task.key][index] == Fit::Yes
                && free[index]
                && !self.is_busy(place, task, index)
                && self.constraints[demand.claim].iter().all(|constraint| {
                    constraint.would_add(&task.request, self.matching.candidates[index])
                })
                && (!self.matching.candidates[index].shared()
                    || self.has_capacity(place, task, index).unwrap_or(true))
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

    /// Whether the counters still have what the device consumes; they never have more later.
    fn counters_suffice(&mut self, index: usize) -> bool {
        let candidate = self.matching.candidates[index];
        if candidate.device.consumes_counters.is_empty()
            || (candidate.shared() && self.has_share(index))
        {
            return true;
        }
        let pool = &self.matching.pools[candidate.pool];
        let counters =
            self.counters[candidate.pool].get_or_insert_with(|| Counters::new(pool, self.in_use));
        let enough = counters.take(candidate.device);
        if enough {
            counters.give_back(candidate.device);
        }
        enough
    }

    /// Whether every demand can have devices of its own: a flow from demands to devices.
    fn devices_suffice(&self, facts: &Facts, groups: &[Group]) -> bool {
        let mut room: Vec<usize> = facts.shares.clone();
        for chosen in self.found.devices.iter().flatten() {
            if self.matching.candidates[chosen.candidate].shared() {
                room[chosen.candidate] = room[chosen.candidate].saturating_sub(1);
            }
        }
        let mut flow = Flow {
            groups,
            room,
            given: vec![Vec::new(); facts.class.len()],
            seen: vec![false; groups.len()],
        };
        (0..groups.len()).all(|group| {
            (0..groups[group].count).all(|_| {
                flow.seen.fill(false);
                flow.serve(group)
            })
        })
    }

    /// Whether all counters of one name together have what the least consuming devices need.
    fn sums_suffice(&self, facts: &Facts, groups: &[Group]) -> bool {
        /// For what adding floating point numbers loses.
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
                    // A shared device may be paid for already, and serves each demand of the group.
                    let (shared, own): (Vec<usize>, Vec<usize>) = group
                        .devices
                        .iter()
                        .partition(|index| self.matching.candidates[**index].shared());
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

    /// Whether one value, or enough different ones, are left for each constraint.
    fn values_suffice(
        &self,
        facts: &Facts,
        place: Place,
        demands: &[Demand<'_, 'a>],
        free: &[bool],
    ) -> bool {
        for (claim, constraints) in self.constraints.iter().enumerate().skip(place.claim) {
            for (constraint, values) in constraints.iter().zip(&facts.values[claim]) {
                let bound: Vec<(usize, Vec<usize>)> = demands
                    .iter()
                    .filter(|demand| demand.claim == claim && applies(constraint, demand))
                    .map(|demand| (demand.count, self.devices(facts, place, demand, free)))
                    .collect();
                if !values_of(constraint, values, &bound) {
                    return false;
                }
            }
        }
        true
    }
}

fn consumed(facts: &Facts, index: usize, name: usize) -> f64 {
    let amounts = facts.consumption[index].iter();
    let of_name = amounts.filter(|(other, _)| *other == name);
    of_name.map(|(_, amount)| amount).sum()
}

/// Whether the constraint binds whatever serves the demand.
fn applies(constraint: &Constraint<'_>, demand: &Demand<'_, '_>) -> bool {
    demand
        .tasks
        .iter()
        .all(|task| constraint.applies_to(&task.request))
}

fn values_of(
    constraint: &Constraint<'_>,
    values: &[Option<usize>],
    bound: &[(usize, Vec<usize>)],
) -> bool {
    let by_value = |devices: &[usize]| {
        let mut counts: HashMap<usize, usize> = HashMap::new();
        for value in devices.iter().filter_map(|index| values[*index]) {
            *counts.entry(value).or_default() += 1;
        }
        counts
    };
    let counts: Vec<_> = bound.iter().map(|(_, devices)| by_value(devices)).collect();
    let Some(first) = counts.first() else {
        return true;
    };
    if constraint.distinct {
        let different: std::collections::HashSet<usize> =
            counts.iter().flat_map(HashMap::keys).copied().collect();
        let wanted = bound
            .iter()
            .map(|(count, _)| *count)
            .fold(0, usize::saturating_add);
        return different.len() >= wanted;
    }
    first.keys().any(|value| {
        let enough = |(counts, (wanted, _)): (&HashMap<usize, usize>, &(usize, _))| {
            counts.get(value).is_some_and(|count| count >= wanted)
        };
        counts.iter().zip(bound).all(enough)
    })
}

/// Devices given to groups of demands, and taken back for others while there is a way round.
struct Flow<'g> {
    groups: &'g [Group],
    room: Vec<usize>,
    /// By device: the groups that have it.
    given: Vec<Vec<usize>>,
    /// By group: whether a way for it was sought already.
    seen: Vec<bool>,
}

impl Flow<'_> {
    fn serve(&mut self, group: usize) -> bool {
        let groups = self.groups;
        if std::mem::replace(&mut self.seen[group], true) {
            return false;
        }
        for &device in &groups[group].devices {
            let has = self.given[device]
                .iter()
                .filter(|has| **has == group)
                .count();
            if has >= groups[group].members {
                continue;
            }
            if self.given[device].len() < self.room[device] {
                self.given[device].push(group);
                return true;
            }
            for position in 0..self.given[device].len() {
                let other = self.given[device][position];
                if self.serve(other) {
                    self.given[device][position] = group;
                    return true;
                }
            }
        }
        false
    }
}
