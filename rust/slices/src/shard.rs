//! Distribution of names over slices: as few slices as the limit allows, evenly filled at first and stable afterwards.
//!
//! It works for devices and for counter sets, because it uses only names and their order.

use std::collections::{HashMap, HashSet};

/// A desired slice: the published slice that it continues, and its members among the ranked names, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shard {
    /// The index of the published slice.
    pub(crate) index: Option<usize>,
    /// Positions in the ranked names.
    pub(crate) members: Vec<usize>,
}

/// The index of a published slice, and the names in it.
pub(crate) type Published<'a> = (usize, Vec<&'a str>);

/// Distributes `ranked` names over slices, at most `limit` names per slice. `published` is ordered by index.
///
/// A published name stays in its slice, and a new one joins its neighbors. If several slices would change, all slices
/// of the pool must be rewritten with a new generation anyway, so the names are redistributed evenly.
pub(crate) fn distribute(ranked: &[&str], published: &[Published<'_>], limit: usize) -> Vec<Shard> {
    if ranked.is_empty() {
        return Vec::new();
    }
    let kept = keep_placement(ranked, published, limit);
    if changed(&kept, ranked, published) <= 1 {
        return kept;
    }
    let mut indexes = published.iter().map(|(index, _)| *index);
    let mut fresh = Vec::new();
    let count = ranked.len().div_ceil(limit);
    for part in 0..count {
        let (start, end) = (
            part * ranked.len() / count,
            (part + 1) * ranked.len() / count,
        );
        fresh.push(Shard {
            index: indexes.next(),
            members: (start..end).collect(),
        });
    }
    fresh
}

fn keep_placement(ranked: &[&str], published: &[Published<'_>], limit: usize) -> Vec<Shard> {
    let home: HashMap<&str, usize> = published
        .iter()
        .enumerate()
        .rev()
        .flat_map(|(at, (_, names))| names.iter().map(move |name| (*name, at)))
        .collect();
    let mut shards: Vec<Shard> = published
        .iter()
        .map(|(index, _)| Shard {
            index: Some(*index),
            members: Vec::new(),
        })
        .collect();
    let mut fresh = Vec::new();
    for (rank, name) in ranked.iter().enumerate() {
        match home.get(name) {
            Some(at) if shards[*at].members.len() < limit => shards[*at].members.push(rank),
            _ => fresh.push(rank),
        }
    }
    for rank in fresh {
        let at = nearest_with_space(&shards, rank, limit).unwrap_or_else(|| {
            shards.push(Shard {
                index: None,
                members: Vec::new(),
            });
            shards.len() - 1
        });
        let members = &mut shards[at].members;
        let position = members.partition_point(|member| *member < rank);
        members.insert(position, rank);
    }
    shards
}

/// Returns the slice with space for `rank` that is nearest to the slice of its neighbors.
fn nearest_with_space(shards: &[Shard], rank: usize, limit: usize) -> Option<usize> {
    let after = |shard: &Shard| shard.members.last().is_some_and(|last| *last > rank);
    let target = shards
        .iter()
        .position(after)
        .or_else(|| shards.iter().rposition(|shard| !shard.members.is_empty()))
        .unwrap_or(0);
    (0..shards.len())
        .filter(|at| shards[*at].members.len() < limit)
        .min_by_key(|at| (at.abs_diff(target), *at))
}

/// Returns how many slices differ from the published ones, including new slices.
fn changed(shards: &[Shard], ranked: &[&str], published: &[Published<'_>]) -> usize {
    let was: HashMap<usize, &Vec<&str>> = published
        .iter()
        .map(|(index, names)| (*index, names))
        .collect();
    let differs = |shard: &&Shard| {
        let now: HashSet<&str> = shard.members.iter().map(|rank| ranked[*rank]).collect();
        let before = shard.index.and_then(|index| was.get(&index));
        before.is_none_or(|names| {
            names.len() != now.len() || names.iter().any(|name| !now.contains(name))
        })
    };
    shards.iter().filter(differs).count()
}
