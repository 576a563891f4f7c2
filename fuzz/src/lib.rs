//! A mutator of JSON: libFuzzer's own changes bytes, which rarely leaves JSON of any depth whole.

use libfuzzer_sys::fuzzer_mutate;
use serde_json::{Map, Value, json};

/// Of so many mutations one changes bytes.
const BYTES_EVERY: u32 = 8;
const MAX_CHANGES: usize = 3;
/// Bytes of a text that is mutated.
const MAX_TEXT: usize = 256;

/// Changes the JSON in `data[..size]`, or its bytes where it is none; returns the new size.
pub fn mutate_json(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    let mut numbers = Numbers(u64::from(seed));
    if !seed.is_multiple_of(BYTES_EVERY)
        && let Ok(mut value) = serde_json::from_slice::<Value>(&data[..size])
    {
        for _ in 0..=numbers.below(MAX_CHANGES) {
            change(&mut value, &mut numbers);
        }
        let text = value.to_string();
        if text.len() <= max_size {
            data[..text.len()].copy_from_slice(text.as_bytes());
            return text.len();
        }
    }
    fuzzer_mutate(data, size, max_size)
}

/// splitmix64
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).unwrap_or(0)
    }
}

fn change(root: &mut Value, numbers: &mut Numbers) {
    let nodes = count(root);
    let other = nth(root, numbers.below(nodes)).clone();
    let keys: Vec<String> = match nth(root, numbers.below(nodes)) {
        Value::Object(members) => members.keys().cloned().collect(),
        _ => Vec::new(),
    };
    let node = nth(root, numbers.below(nodes));
    if numbers.below(4) == 0 {
        *node = other;
        return;
    }
    match node {
        Value::Object(members) => change_members(members, other, &keys, numbers),
        Value::Array(items) => change_items(items, other, numbers),
        Value::String(text) => *text = change_text(text, numbers),
        Value::Number(_) | Value::Bool(_) | Value::Null => *node = scalar(node, numbers),
    }
}

fn change_members(
    members: &mut Map<String, Value>,
    other: Value,
    keys: &[String],
    numbers: &mut Numbers,
) {
    let own: Vec<String> = members.keys().cloned().collect();
    let at = numbers.below(own.len());
    match (
        numbers.below(4),
        own.get(at),
        keys.get(numbers.below(keys.len())),
    ) {
        (0, Some(own), _) => drop(members.remove(own)),
        (1, Some(own), Some(key)) => {
            let value = members.remove(own).unwrap_or_default();
            members.insert(key.clone(), value);
        }
        (2, Some(own), _) => {
            let value = members.remove(own).unwrap_or_default();
            members.insert(change_text(own, numbers), value);
        }
        (_, _, Some(key)) => drop(members.insert(key.clone(), other)),
        _ => {}
    }
}

fn change_items(items: &mut Vec<Value>, other: Value, numbers: &mut Numbers) {
    let at = numbers.below(items.len());
    match numbers.below(5) {
        0 if !items.is_empty() => drop(items.remove(at)),
        1 if !items.is_empty() => items.push(items[at].clone()),
        2 if !items.is_empty() => {
            let to = numbers.below(items.len());
            items.swap(at, to);
        }
        3 if !items.is_empty() => {
            for _ in 0..numbers.below(40) {
                items.push(items[at].clone());
            }
        }
        _ => items.insert(at, other),
    }
}

fn change_text(text: &str, numbers: &mut Numbers) -> String {
    const TEXTS: [&str; 14] = [
        "",
        "a",
        "A/b",
        "-",
        "1Gi",
        "1e100000",
        "-1",
        "9E",
        "All",
        "NoSchedule",
        "Exists",
        "true",
        "2026-11-21T08:00:00Z",
        "../..",
    ];
    if numbers.below(3) == 0 {
        return TEXTS[numbers.below(TEXTS.len())].to_owned();
    }
    let mut bytes = text.as_bytes().to_vec();
    let size = bytes.len().min(MAX_TEXT);
    bytes.resize(MAX_TEXT, 0);
    let size = fuzzer_mutate(&mut bytes, size, MAX_TEXT);
    String::from_utf8_lossy(&bytes[..size]).into_owned()
}

fn scalar(value: &Value, numbers: &mut Numbers) -> Value {
    let number = value.as_i64().unwrap_or(0);
    match numbers.below(9) {
        0 => json!(number.wrapping_add(1)),
        1 => json!(number.wrapping_sub(1)),
        2 => json!(number.wrapping_mul(64)),
        3 => json!(i64::MAX),
        4 => json!(i64::MIN),
        5 => json!(0.5),
        6 => Value::Null,
        7 => Value::Bool(numbers.below(2) == 0),
        _ => json!(numbers.next()),
    }
}

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(members) => members.values().map(count).sum(),
        _ => 0,
    }
}

/// The n-th node of a tree, in the order of the text; the root has number 0.
fn nth(value: &mut Value, mut n: usize) -> &mut Value {
    if n == 0 {
        return value;
    }
    n -= 1;
    let children: Vec<&mut Value> = match value {
        Value::Array(items) => items.iter_mut().collect(),
        Value::Object(members) => members.values_mut().collect(),
        _ => unreachable!("a scalar has one node"),
    };
    for child in children {
        let size = count(child);
        if n < size {
            return nth(child, n);
        }
        n -= size;
    }
    unreachable!("n is below the number of nodes")
}
