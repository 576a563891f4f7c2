//! List functions: order, sums, search, slices.

use std::cmp::Ordering;

use super::{Signature, global, member};
use crate::budget::Budget;
use crate::compare;
use crate::cost::COST_LIMIT;
use crate::fault::Fault;
use crate::map::Key;
use crate::value::{Kind, List, Value};
use std::collections::HashSet;

/// The maximum number of elements of `lists.range`.
const MAX_RANGE: i64 = 10_000_000;

#[rustfmt::skip]
pub(super) const TABLE: &[Signature] = &[
    member("list_int_is_sorted_bool", "isSorted", "list<int>", "bool", is_sorted),
    member("list_uint_is_sorted_bool", "isSorted", "list<uint>", "bool", is_sorted),
    member("list_double_is_sorted_bool", "isSorted", "list<double>", "bool", is_sorted),
    member("list_bool_is_sorted_bool", "isSorted", "list<bool>", "bool", is_sorted),
    member("list_duration_is_sorted_bool", "isSorted", "list<duration>", "bool", is_sorted),
    member("list_timestamp_is_sorted_bool", "isSorted", "list<timestamp>", "bool", is_sorted),
    member("list_string_is_sorted_bool", "isSorted", "list<string>", "bool", is_sorted),
    member("list_bytes_is_sorted_bool", "isSorted", "list<bytes>", "bool", is_sorted),
    member("list_int_sum_int", "sum", "list<int>", "int", |args, budget| sum(args, Value::Int(0), budget)),
    member("list_uint_sum_uint", "sum", "list<uint>", "uint", |args, budget| sum(args, Value::Uint(0), budget)),
    member("list_double_sum_double", "sum", "list<double>", "double", |args, budget| sum(args, Value::Double(0.0), budget)),
    member("list_duration_sum_duration", "sum", "list<duration>", "duration", |args, budget| sum(args, Value::Duration(0), budget)),
    member("list_int_max_int", "max", "list<int>", "int", maximum),
    member("list_uint_max_uint", "max", "list<uint>", "uint", maximum),
    member("list_double_max_double", "max", "list<double>", "double", maximum),
    member("list_bool_max_bool", "max", "list<bool>", "bool", maximum),
    member("list_duration_max_duration", "max", "list<duration>", "duration", maximum),
    member("list_timestamp_max_timestamp", "max", "list<timestamp>", "timestamp", maximum),
    member("list_string_max_string", "max", "list<string>", "string", maximum),
    member("list_bytes_max_bytes", "max", "list<bytes>", "bytes", maximum),
    member("list_int_min_int", "min", "list<int>", "int", minimum),
    member("list_uint_min_uint", "min", "list<uint>", "uint", minimum),
    member("list_double_min_double", "min", "list<double>", "double", minimum),
    member("list_bool_min_bool", "min", "list<bool>", "bool", minimum),
    member("list_duration_min_duration", "min", "list<duration>", "duration", minimum),
    member("list_timestamp_min_timestamp", "min", "list<timestamp>", "timestamp", minimum),
    member("list_string_min_string", "min", "list<string>", "string", minimum),
    member("list_bytes_min_bytes", "min", "list<bytes>", "bytes", minimum),
    member("list_a_index_of_int", "indexOf", "list<A>; A", "int", index_of),
    member("list_a_last_index_of_int", "lastIndexOf", "list<A>; A", "int", last_index_of),
    member("list_includes_dyn_dyn", "includes", "dyn; dyn", "bool", includes),
    member("list_slice", "slice", "list<T>; int; int", "list<T>", slice),
    member("list_flatten", "flatten", "list<list<T>>", "list<T>", |args, budget| flatten(args, 1, budget)),
    member("list_flatten_int", "flatten", "list<dyn>; int", "list<dyn>", |args, budget| flatten(args, args[1].as_int()?, budget)),
    member("list_int_sort", "sort", "list<int>", "list<int>", sort),
    member("list_uint_sort", "sort", "list<uint>", "list<uint>", sort),
    member("list_double_sort", "sort", "list<double>", "list<double>", sort),
    member("list_bool_sort", "sort", "list<bool>", "list<bool>", sort),
    member("list_duration_sort", "sort", "list<duration>", "list<duration>", sort),
    member("list_timestamp_sort", "sort", "list<timestamp>", "list<timestamp>", sort),
    member("list_string_sort", "sort", "list<string>", "list<string>", sort),
    member("list_bytes_sort", "sort", "list<bytes>", "list<bytes>", sort),
    member("list_int_sortBy", "@sortByAssociatedKeys", "list<T>; list<int>", "list<T>", sort_by_keys),
    member("list_uint_sortBy", "@sortByAssociatedKeys", "list<T>; list<uint>", "list<T>", sort_by_keys),
    member("list_double_sortBy", "@sortByAssociatedKeys", "list<T>; list<double>", "list<T>", sort_by_keys),
    member("list_bool_sortBy", "@sortByAssociatedKeys", "list<T>; list<bool>", "list<T>", sort_by_keys),
    member("list_duration_sortBy", "@sortByAssociatedKeys", "list<T>; list<duration>", "list<T>", sort_by_keys),
    member("list_timestamp_sortBy", "@sortByAssociatedKeys", "list<T>; list<timestamp>", "list<T>", sort_by_keys),
    member("list_string_sortBy", "@sortByAssociatedKeys", "list<T>; list<string>", "list<T>", sort_by_keys),
    member("list_bytes_sortBy", "@sortByAssociatedKeys", "list<T>; list<bytes>", "list<T>", sort_by_keys),
    global("lists_range", "lists.range", "int", "list<int>", range),
    member("list_reverse", "reverse", "list<T>", "list<T>", reverse),
    member("list_distinct", "distinct", "list<T>", "list<T>", distinct),
];

fn is_equal(a: &Value, b: &Value, budget: &mut Budget) -> Result<bool, Fault> {
    Ok(compare::equal_if_defined(a, b, budget)?.unwrap_or(false))
}

fn index_of(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    let items = args[0].as_list()?.items(budget)?;
    for (at, item) in items.iter().enumerate() {
        if is_equal(item, &args[1], budget)? {
            return Ok(Value::Int(at as i64));
        }
    }
    Ok(Value::Int(-1))
}

fn last_index_of(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    let items = args[0].as_list()?.items(budget)?;
    for (at, item) in items.iter().enumerate().rev() {
        if is_equal(item, &args[1], budget)? {
            return Ok(Value::Int(at as i64));
        }
    }
    Ok(Value::Int(-1))
}

fn includes(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    let Value::List(list) = &args[0] else {
        return is_equal(&args[0], &args[1], budget).map(Value::Bool);
    };
    for item in list.items(budget)?.iter() {
        if is_equal(item, &args[1], budget)? {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

fn is_comparable(value: &Value) -> bool {
    matches!(
        value,
        Value::Bool(_)
            | Value::Int(_)
            | Value::Uint(_)
            | Value::Double(_)
            | Value::String(_)
            | Value::Bytes(_)
            | Value::Duration(_)
            | Value::Timestamp(_)
    )
}

/// The elements. Returns an error if the type of one has no order; elements of different types are not an error here.
fn comparable_items(
    value: &Value,
    budget: &mut Budget,
) -> Result<std::sync::Arc<Vec<Value>>, Fault> {
    let items = value.as_list()?.items(budget)?;
    match items.iter().find(|item| !is_comparable(item)) {
        Some(item) => Err(Fault::no_overload_for(item)),
        None => Ok(items),
    }
}

fn is_sorted(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    let items = args[0].as_list()?.items(budget)?;
    for (i, item) in items.iter().enumerate() {
        if !is_comparable(item) {
            return Err(Fault::no_overload_for(item));
        }
        if i > 0 && compare::order(&items[i - 1], item).is_ok_and(Ordering::is_gt) {
            return Ok(Value::Bool(false));
        }
    }
    Ok(Value::Bool(true))
}

fn sum(args: &[Value], zero: Value, budget: &mut Budget) -> Result<Value, Fault> {
    let items = args[0].as_list()?.items(budget)?;
    items.iter().try_fold(zero, |total, item| {
        super::operators::add(&[total, item.clone()], budget)
    })
}

fn extreme(
    args: &[Value],
    name: &str,
    replaces: Ordering,
    budget: &mut Budget,
) -> Result<Value, Fault> {
    let items = comparable_items(&args[0], budget)?;
    let mut items = items.iter();
    let first = items
        .next()
        .ok_or_else(|| Fault::new(format!("{name}() of an empty list")))?;
    let best = items.fold(first, |best, item| {
        if compare::order(best, item).ok() == Some(replaces) {
            item
        } else {
            best
        }
    });
    Ok(best.clone())
}

fn maximum(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    extreme(args, "max", Ordering::Less, budget)
}

fn minimum(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    extreme(args, "min", Ordering::Greater, budget)
}

fn slice(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    let items = args[0].as_list()?.items(budget)?;
    let (start, end) = (args[1].as_int()?, args[2].as_int()?);
    let bounds = usize::try_from(start).ok().zip(usize::try_from(end).ok());
    match bounds {
        Some((from, to)) if from <= to && to <= items.len() => {
            budget.charge_values(to - from)?;
            Ok(Value::list(items[from..to].to_vec()))
        }
        _ => Err(Fault::new(format!(
            "slice({start}, {end}) of a list of {} elements",
            items.len()
        ))),
    }
}

fn flatten(args: &[Value], depth: i64, budget: &mut Budget) -> Result<Value, Fault> {
    if depth < 0 {
        return Err(Fault::new("flatten() needs a depth that is not negative"));
    }
    let mut flat = Vec::new();
    flatten_into(args[0].as_list()?, depth, &mut flat, budget)?;
    budget.list(flat)
}

fn flatten_into(
    list: &List,
    depth: i64,
    flat: &mut Vec<Value>,
    budget: &mut Budget,
) -> Result<(), Fault> {
    for item in list.items(budget)?.iter() {
        budget.count_steps(1)?;
        match item {
            Value::List(nested) if depth > 0 => {
                budget.within(|budget| flatten_into(nested, depth - 1, flat, budget))?;
            }
            other => {
                budget.charge_element()?;
                flat.push(other.clone());
            }
        }
    }
    Ok(())
}

fn sort(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    sort_by(&args[0], &args[0], budget)
}

fn sort_by_keys(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    sort_by(&args[0], &args[1], budget)
}

/// The elements in the order of their keys.
fn sort_by(list: &Value, keys: &Value, budget: &mut Budget) -> Result<Value, Fault> {
    let (items, keys) = (list.as_list()?, keys.as_list()?);
    let (items, keys) = (items.items(budget)?, keys.items(budget)?);
    if items.len() != keys.len() {
        return Err(Fault::new(format!(
            "{} elements cannot be sorted by {} keys",
            items.len(),
            keys.len()
        )));
    }
    let Some(first) = keys.first() else {
        return Ok(list.clone());
    };
    if !is_comparable(first) {
        return Err(Fault::no_overload_for(first));
    }
    if keys.len() > 1 && keys.iter().any(|key| key.kind() != first.kind()) {
        return Err(Fault::new("elements of different types cannot be sorted"));
    }
    // The indexes, the buffer of the sort, and the result.
    budget.charge_values(2 * items.len())?;
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by(|a, b| compare::order(&keys[*a], &keys[*b]).unwrap_or(Ordering::Equal));
    Ok(Value::list(
        order.into_iter().map(|at| items[at].clone()).collect(),
    ))
}

fn range(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    let count = args[0].as_int()?;
    if !(0..=MAX_RANGE).contains(&count) {
        return Err(Fault::new(format!(
            "lists.range({count}): the size must be between 0 and {MAX_RANGE}"
        )));
    }
    // Longer lists exceed the cost limit, so they are rejected before allocation.
    if count > COST_LIMIT as i64 {
        return Err(Fault::TooExpensive);
    }
    budget.charge_values(usize::try_from(count).unwrap_or(usize::MAX))?;
    Ok(Value::list((0..count).map(Value::Int).collect()))
}

fn reverse(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    let items = args[0].as_list()?.items(budget)?;
    budget.charge_values(items.len())?;
    Ok(Value::list(items.iter().rev().cloned().collect()))
}

fn distinct(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    let items = args[0].as_list()?.items(budget)?;
    let mut seen: Vec<Value> = Vec::new();
    if has_plain_keys(&items) {
        let mut keys = HashSet::new();
        for item in items.iter() {
            budget.charge_element()?;
            budget.charge_entry()?;
            if keys.insert(Key::of(item)?) {
                seen.push(item.clone());
            }
        }
        return budget.list(seen);
    }
    for item in items.iter() {
        if !compare::contains(&seen, item, budget)? {
            budget.charge_element()?;
            seen.push(item.clone());
        }
    }
    budget.list(seen)
}

/// Whether two elements are equal exactly if their keys are: true for elements of one type with default equality.
fn has_plain_keys(items: &[Value]) -> bool {
    let kind = items.first().map(Value::kind);
    matches!(
        kind,
        Some(Kind::Bool | Kind::Int | Kind::Uint | Kind::String | Kind::Duration)
    ) && items.iter().all(|item| Some(item.kind()) == kind)
}
