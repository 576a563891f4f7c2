//! Suggestions for unknown field names.

/// The error message for an unknown field name: suggests the closest known name, or lists all of them.
pub(crate) fn unknown_field<'a>(
    name: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> String {
    let nearest = known
        .clone()
        .map(|candidate| {
            (
                edits(&name.to_lowercase(), &candidate.to_lowercase()),
                candidate,
            )
        })
        .min();
    match nearest {
        Some((distance, candidate)) if distance <= 1 + candidate.len() / 4 => {
            format!("unknown field; did you mean {candidate:?}?")
        }
        _ => format!(
            "unknown field; known here: {}",
            known.collect::<Vec<_>>().join(", ")
        ),
    }
}

/// Levenshtein distance.
fn edits(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[right.len()]
}
