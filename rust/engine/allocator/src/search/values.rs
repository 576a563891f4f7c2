//! The attribute values that constraints compare, as numbers.

use std::collections::{HashMap, HashSet};

use dra_api::DeviceAttribute;

use super::facts::json;
use crate::constraints::{Constraint, look_up};
use crate::plan::CandidateSet;
use crate::value_set::ValueSet;

/// The values of a constraint's attribute, by candidate.
#[derive(Debug)]
pub(super) struct Values {
    /// The number of the value, a list as a whole; `None` without the attribute.
    pub(super) whole: Vec<Option<usize>>,
    /// The numbers of the values that are compared: each one of a list, if lists are compared as sets.
    compared: Vec<Vec<usize>>,
}

/// The values by claim and constraint.
pub(super) fn gather(
    constraints: &[Vec<Constraint<'_>>],
    candidate_set: &CandidateSet<'_>,
) -> Vec<Vec<Values>> {
    let of_claim = |constraints: &Vec<Constraint<'_>>| {
        constraints
            .iter()
            .map(|constraint| Values::of(constraint.attribute, candidate_set))
            .collect()
    };
    constraints.iter().map(of_claim).collect()
}

impl Values {
    fn of(attribute: &str, candidate_set: &CandidateSet<'_>) -> Self {
        let found: Vec<Option<&DeviceAttribute>> = candidate_set
            .candidates
            .iter()
            .map(|candidate| look_up(candidate.device, candidate.id(), attribute))
            .collect();
        let mut numbers = HashMap::new();
        let whole: Vec<Option<usize>> = found
            .iter()
            .map(|value| {
                let next = numbers.len();
                Some(*numbers.entry(json((*value)?)).or_insert(next))
            })
            .collect();
        let compared = if candidate_set.gates.list_attributes {
            members(&found)
        } else {
            whole
                .iter()
                .map(|number| number.iter().copied().collect())
                .collect()
        };
        Self { whole, compared }
    }

    /// Whether the devices of all demands can have a value in common, or enough different values. A demand is a number of
    /// devices, and the candidates for it.
    ///
    /// Lists that have nothing in common have at least one value each, so that there are as many values as devices.
    pub(super) fn suffice(&self, demands: &[(usize, &[usize])], distinct: bool) -> bool {
        let counts: Vec<HashMap<usize, usize>> = demands
            .iter()
            .map(|(_, candidates)| self.counts(candidates))
            .collect();
        let Some(first) = counts.first() else {
            return true;
        };
        if distinct {
            let different: HashSet<usize> =
                counts.iter().flat_map(HashMap::keys).copied().collect();
            let needed = demands
                .iter()
                .map(|(needed, _)| *needed)
                .fold(0, usize::saturating_add);
            return different.len() >= needed;
        }
        first.keys().any(|value| {
            counts
                .iter()
                .zip(demands)
                .all(|(counts, (needed, _))| counts.get(value).is_some_and(|count| count >= needed))
        })
    }

    /// The number of candidates by value.
    fn counts(&self, candidates: &[usize]) -> HashMap<usize, usize> {
        let mut counts = HashMap::new();
        for value in candidates.iter().flat_map(|index| &self.compared[*index]) {
            *counts.entry(*value).or_default() += 1;
        }
        counts
    }
}

/// The numbers of the values of each list; a single value is a list of one.
fn members(found: &[Option<&DeviceAttribute>]) -> Vec<Vec<usize>> {
    let mut numbers = HashMap::new();
    found
        .iter()
        .map(|value| {
            let set = value.and_then(ValueSet::of);
            let members = set.iter().flat_map(ValueSet::members);
            members
                .map(|member| {
                    let next = numbers.len();
                    *numbers.entry(member).or_insert(next)
                })
                .collect()
        })
        .collect()
}
