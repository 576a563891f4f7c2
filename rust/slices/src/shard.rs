//! Which slice holds what: as few slices as the limit allows, evenly filled when fresh, and kept as they are after.
//!
//! It knows names and their order only; what is named (devices, counter sets) makes no difference.

use std::collections::{HashMap, HashSet};

/// A slice to be: which published slice it continues, and which of the ranked names it holds, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shard {
    /// The index of the published slice.
    pub(crate) index: Option<usize>,
    /// Positions in the ranked names.
    pub(crate) members: Vec<usize>,
}

/// A published slice: its index, and the names that it holds.
pub(crate) type Published<'a> = (usize, Vec<&'a str>);

/// Shares `ranked` names out, at most `limit` to a slice.
///
/// A name stays where it is published and a new one goes where its neighbours are. Where that would still change
/// several slices, all must be rewritten with a new generation anyway (contract of pools), and so they are laid out
/// anew. `published` is in the order of its indexes.
pub(crate) fn share_out(ranked: &[&str], published: &[Published<'_>], limit: usize) -> Vec<Shard> {
    if ranked.is_empty() {
        return Vec::new();
    }
    let kept = keep(ranked, published, limit);
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

fn keep(ranked: &[&str], published: &[Published<'_>], limit: usize) -> Vec<Shard> {
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
        let at = place(&shards, rank, limit).unwrap_or_else(|| {
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

/// The slice with room that is nearest to the one whose devices surround `rank`.
fn place(shards: &[Shard], rank: usize, limit: usize) -> Option<usize> {
    let after = |shard: &Shard| shard.members.last().is_some_and(|last| *last > rank);
    let wanted = shards
        .iter()
        .position(after)
        .or_else(|| shards.iter().rposition(|shard| !shard.members.is_empty()))
        .unwrap_or(0);
    (0..shards.len())
        .filter(|at| shards[*at].members.len() < limit)
        .min_by_key(|at| (at.abs_diff(wanted), *at))
}

/// How many slices hold other names than are published, new ones included.
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
