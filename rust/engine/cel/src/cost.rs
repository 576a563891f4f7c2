//! The cost of a call by Kubernetes' rules: the sizes of arguments and results times a factor for each function.
//!
//! [`crate::eval`] counts the cost of names, fields and literals when it evaluates them.

use crate::budget::Budget;
use crate::fault::Fault;
use crate::library::Overload;
use crate::value::{Kind, Value};

/// The cost limit of one evaluation, in Kubernetes' cost units.
pub const COST_LIMIT: u64 = 1_000_000;

pub(crate) const ACCESS: u64 = 1;
pub(crate) const CREATE_LIST: u64 = 10;
pub(crate) const CREATE_MAP: u64 = 30;
const STRING_FACTOR: f64 = 0.1;
const REGEX_FACTOR: f64 = 0.25;

/// The rule for the cost of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rule {
    Fixed(u64),
    /// The size of an argument or of the result, times `times`.
    Read {
        times: f64,
        of: Operand,
    },
    /// Every element, and every character of every element.
    Traverse,
    /// The number of elements of the list on the right.
    Search,
    /// The shorter of the two.
    Shorter,
    /// The sum of both.
    Concat,
    /// Text times pattern.
    Match,
    /// Text times searched text.
    Contains,
    /// The product of two lists.
    Product(f64),
    /// A new list as long as the result.
    NewList,
    Flatten,
    /// Every pair of elements of an argument.
    Compare(usize),
    Validate,
    Within {
        cidr: bool,
        text: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Operand {
    Arg(usize),
    Result,
}

// === impl Rule ===

impl Rule {
    /// The rule of a function; `overload` where the types leave exactly one.
    pub(crate) fn of(function: &str, overload: Option<&Overload>) -> Self {
        let id = overload.map_or("", |overload| overload.id);
        Self::by_overload(id)
            .or_else(|| Self::by_function(function, id))
            .unwrap_or_else(|| Self::standard(id))
    }

    fn by_overload(id: &str) -> Option<Self> {
        Some(match id {
            "list_sets_contains_list" | "list_sets_intersects_list" => Self::Product(1.0),
            "list_sets_equivalent_list" => Self::Product(2.0),
            "list_slice" | "lists_range" | "list_reverse" => Self::NewList,
            "list_flatten" | "list_flatten_int" => Self::Flatten,
            "list_distinct" => Self::Compare(0),
            _ if id.starts_with("list_") && id.ends_with("_sort") => Self::Compare(0),
            _ if id.starts_with("list_") && id.ends_with("_sortBy") => Self::Compare(1),
            _ => return None,
        })
    }

    fn by_function(function: &str, id: &str) -> Option<Self> {
        let read = |times| Self::Read {
            times,
            of: Operand::Arg(0),
        };
        Some(match function {
            "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" | "includes" => {
                Self::Traverse
            }
            "url" | "lowerAscii" | "upperAscii" | "substring" | "trim" => read(1.0),
            "replace" | "split" | "ip.isCanonical" => read(2.0),
            "join" => Self::Read {
                times: 2.0,
                of: Operand::Result,
            },
            "find" | "findAll" => Self::Match,
            "ip" if id == "cidr_ip" => Self::Fixed(1),
            "cidr" | "isIP" | "isCIDR" | "ip" => read(1.0),
            "containsIP" => Self::Within {
                cidr: false,
                text: id == "cidr_contains_ip_string",
            },
            "containsCIDR" => Self::Within {
                cidr: true,
                text: id == "cidr_contains_cidr_string",
            },
            "quantity" | "isQuantity" | "semver" | "isSemver" => read(1.0),
            "validate" => Self::Validate,
            _ => return None,
        })
    }

    fn standard(id: &str) -> Self {
        match id {
            "starts_with_string" | "ends_with_string" => Self::Read {
                times: 1.0,
                of: Operand::Arg(1),
            },
            "string_to_bytes" | "bytes_to_string" | "strings_quote" | "string_format" => {
                Self::Read {
                    times: 1.0,
                    of: Operand::Arg(0),
                }
            }
            "in_list" => Self::Search,
            "less_string"
            | "greater_string"
            | "less_equals_string"
            | "greater_equals_string"
            | "less_bytes"
            | "greater_bytes"
            | "less_equals_bytes"
            | "greater_equals_bytes"
            | "equals"
            | "not_equals" => Self::Shorter,
            "add_string" | "add_bytes" => Self::Concat,
            "matches" | "matches_string" => Self::Match,
            "contains_string" => Self::Contains,
            _ => Self::Fixed(1),
        }
    }

    /// Whether the cost is unknown because an argument that must be a list failed. Kubernetes then ends the evaluation.
    pub(crate) fn needs_list(self, args: &[Value]) -> bool {
        match self {
            Self::Compare(at) => !matches!(args.get(at), Some(Value::List(_))),
            Self::Flatten => args
                .get(1)
                .is_some_and(|depth| !matches!(depth, Value::Int(_))),
            _ => false,
        }
    }

    /// Whether the cost depends only on the arguments, so that it is charged before the call.
    pub(crate) fn is_known_before_call(self) -> bool {
        !matches!(
            self,
            Self::NewList
                | Self::Read {
                    of: Operand::Result,
                    ..
                }
        )
    }

    /// The cost of a call; `result` is `None` if the call failed.
    pub(crate) fn cost(
        self,
        args: &[Value],
        result: Option<&Value>,
        budget: &mut Budget,
    ) -> Result<u64, Fault> {
        let size = |at: usize| args.get(at).map_or(1, Value::size);
        Ok(match self {
            Self::Fixed(cost) => cost,
            Self::Read { times, of } => {
                let size = match of {
                    Operand::Arg(at) => size(at),
                    Operand::Result => result.map_or(1, Value::size),
                };
                (size as f64 * times * STRING_FACTOR).ceil() as u64
            }
            Self::Traverse => match args.first() {
                Some(value) => traversal(value, budget)?,
                None => 0,
            },
            Self::Search => size(1),
            Self::Shorter => shorter(args),
            Self::Concat => read(size(0) + size(1)),
            Self::Match => read(1 + size(0)) * (size(1) as f64 * REGEX_FACTOR).ceil() as u64,
            Self::Contains => read(size(0)) * read(size(1)),
            Self::Product(factor) => 1 + (size(0).saturating_mul(size(1)) as f64 * factor) as u64,
            Self::NewList => new_list(1.0, result.map_or(1, Value::size)),
            Self::Flatten => {
                let depth = match args.get(1) {
                    Some(Value::Int(depth)) => *depth as f64,
                    _ => 1.0,
                };
                new_list(depth, size(0))
            }
            Self::Compare(at) => {
                let first = match args.get(at) {
                    Some(Value::List(list)) => list.get(0).map(|item| item.kind()),
                    _ => None,
                };
                let is_text = matches!(first, Some(Kind::String | Kind::Bytes));
                let factor = if is_text { 2.0 + STRING_FACTOR } else { 2.0 };
                new_list(factor, size(at).saturating_mul(size(at)))
            }
            Self::Validate => match args.first() {
                Some(Value::Format(format)) => {
                    read(1 + size(1)) * (format.regex_size as f64 * REGEX_FACTOR).ceil() as u64
                }
                _ => 1,
            },
            Self::Within { cidr, text } => {
                let mask = if cidr { read(size(0)) + 1 } else { 0 };
                read(2 * size(0)) + mask + if text { read(size(1)) } else { 0 }
            }
        })
    }
}

fn read(size: u64) -> u64 {
    (size as f64 * STRING_FACTOR).ceil() as u64
}

fn new_list(factor: f64, size: u64) -> u64 {
    let factor = if factor < 0.0 { 1.0 } else { factor };
    ((size as f64 * factor) as u64).saturating_add(1 + CREATE_LIST)
}

/// The cost of `==` and `!=`: one unit for `==` with a Kubernetes type on the left, otherwise the size of the shorter side.
pub(crate) fn equality_cost(sides: &[Value; 2], negated: bool) -> u64 {
    let own = matches!(
        sides[0],
        Value::Quantity(_)
            | Value::Semver(_)
            | Value::Url(_)
            | Value::Ip(_)
            | Value::Cidr(..)
            | Value::Format(_)
    );
    if own && !negated { 1 } else { shorter(sides) }
}

fn shorter(args: &[Value]) -> u64 {
    read(unwrapped_size(args, 0).min(unwrapped_size(args, 1)))
}

/// The size of an optional's value: comparisons of optionals cost the same as comparisons of their values.
fn unwrapped_size(args: &[Value], at: usize) -> u64 {
    let mut value = args.get(at);
    while let Some(Value::Optional(Some(inner))) = value {
        value = Some(inner);
    }
    value.map_or(1, Value::size)
}

fn traversal(value: &Value, budget: &mut Budget) -> Result<u64, Fault> {
    budget.count_steps(1)?;
    Ok(match value {
        Value::String(text) => (text.len() as f64 * STRING_FACTOR) as u64,
        Value::Bytes(bytes) => (bytes.len() as f64 * STRING_FACTOR) as u64,
        Value::List(list) => budget.within(|budget| {
            let mut total = 0_u64;
            for item in list.items(budget)?.iter() {
                total = total.saturating_add(traversal(item, budget)?);
            }
            Ok(total)
        })?,
        Value::Map(map) => budget.within(|budget| {
            let mut total = 0_u64;
            for (key, value) in map.entries(budget)?.iter() {
                let entry = traversal(key, budget)?.saturating_add(traversal(value, budget)?);
                total = total.saturating_add(entry);
            }
            Ok(total)
        })?,
        _ => 1,
    })
}
