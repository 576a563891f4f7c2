//! Regular expressions in the syntax of RE2.

use std::sync::Arc;

use regex_automata::meta::{Config, Regex};
use regex_automata::util::syntax;

use super::{Signature, global, member};
use crate::budget::Budget;
use crate::fault::Fault;
use crate::value::Value;

mod cache;
mod re2;

pub(crate) use cache::{PATTERN_LIMIT_BYTES, find as find_cached, insert as insert_cached};

#[rustfmt::skip]
pub(super) const TABLE: &[Signature] = &[
    global("matches", "matches", "string; string", "bool", matches),
    member("matches_string", "matches", "string; string", "bool", matches),
    member("string_find_string", "find", "string; string", "string", find),
    member("string_find_all_string", "findAll", "string; string", "list<string>", find_all),
    member("string_find_all_string_int", "findAll", "string; string; int", "list<string>", find_all),
];

/// Whether a constant pattern of the function is compiled with the expression.
pub(crate) fn takes_pattern(function: &str) -> bool {
    matches!(function, "matches" | "find" | "findAll")
}

/// The nesting limit of RE2.
const MAX_NESTING: u32 = 1000;
/// Bytes of the automaton of one direction. A pattern has two automata and additional data.
const MAX_AUTOMATON_BYTES: usize = PATTERN_LIMIT_BYTES / 4;
/// Bytes of the search cache, for each direction.
const SEARCH_CACHE_BYTES: usize = 64 << 10;
/// Bytes of one state of an automaton.
const STATE_BYTES: usize = 32;
/// States times bytes of text: about one second for the slowest search.
const MAX_SEARCH_STEPS: usize = 1 << 28;

/// A compiled pattern.
#[derive(Debug)]
pub(crate) struct Pattern {
    regex: Regex,
    bytes: usize,
}

/// Whether a text is a valid pattern, regardless of its compiled size.
pub(crate) fn is_pattern(text: &str) -> bool {
    re2::translate(text).is_ok_and(|translated| syntax::parse_with(&translated, &nesting()).is_ok())
}

fn nesting() -> syntax::Config {
    syntax::Config::new().nest_limit(MAX_NESTING)
}

/// Compiles a pattern.
pub(crate) fn compile(pattern: &str) -> Result<Pattern, Fault> {
    let refuse =
        |why: &str| Fault::invalid(pattern, format_args!("is not a regular expression: {why}"));
    let translated = re2::translate(pattern).map_err(|why| refuse(&why))?;
    let config = Config::new()
        .nfa_size_limit(Some(MAX_AUTOMATON_BYTES))
        .hybrid_cache_capacity(SEARCH_CACHE_BYTES);
    let too_large = || {
        let limit = PATTERN_LIMIT_BYTES >> 20;
        refuse(&format!("its compiled form takes more than {limit} MiB"))
    };
    let build = |prefilter: bool| {
        Regex::builder()
            .configure(config.clone().auto_prefilter(prefilter))
            .syntax(nesting())
            .build(&translated)
            .map(Pattern::new)
            .map_err(|error| match error.size_limit() {
                Some(_) => too_large(),
                None => refuse(&error.to_string()),
            })
    };
    let mut pattern = build(true)?;
    if pattern.bytes > PATTERN_LIMIT_BYTES {
        // A search for literals has no size limit, and hundreds of long literals take megabytes. It only saves time.
        pattern = build(false)?;
    }
    if pattern.bytes > PATTERN_LIMIT_BYTES {
        return Err(too_large());
    }
    Ok(pattern)
}

/// Calls a function with a pattern that is compiled with the expression.
pub(crate) fn call(
    function: &str,
    pattern: &Pattern,
    args: &[Value],
    budget: &mut Budget,
) -> Result<Value, Fault> {
    match function {
        "matches" => is_match(pattern, args, budget),
        "find" => find_first(pattern, args, budget),
        _ => find_every(pattern, args, budget),
    }
}

// === impl Pattern ===

impl Pattern {
    fn new(regex: Regex) -> Self {
        // The search cache of a thread takes about as much memory as the automaton.
        let bytes = 2 * regex.memory_usage() + 2 * SEARCH_CACHE_BYTES / 4;
        Self { regex, bytes }
    }

    /// Memory in bytes, including the search caches.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Charges a search in `text` bytes before it starts.
    fn charge(&self, text: usize, budget: &mut Budget) -> Result<(), Fault> {
        let states = self.regex.memory_usage() / STATE_BYTES;
        let steps = states.saturating_mul(text);
        if steps > MAX_SEARCH_STEPS {
            return Err(Fault::TooExpensive);
        }
        budget.count_steps(1 + steps / 64)
    }
}

fn dynamic(args: &[Value], budget: &mut Budget) -> Result<Arc<Pattern>, Fault> {
    cache::find_or_compile(args[1].as_str()?, budget)
}

fn matches(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    args[0].as_str()?;
    is_match(&*dynamic(args, budget)?, args, budget)
}

fn find(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    args[0].as_str()?;
    find_first(&*dynamic(args, budget)?, args, budget)
}

fn find_all(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    args[0].as_str()?;
    find_every(&*dynamic(args, budget)?, args, budget)
}

fn is_match(pattern: &Pattern, args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    let text = args[0].as_str()?;
    pattern.charge(text.len(), budget)?;
    Ok(Value::Bool(pattern.regex.is_match(&**text)))
}

fn find_first(pattern: &Pattern, args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    let text = args[0].as_str()?;
    pattern.charge(text.len(), budget)?;
    let found = pattern.regex.find(&**text);
    budget.string(found.map_or("", |found| &text[found.range()]))
}

fn find_every(pattern: &Pattern, args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    let text = args[0].as_str()?;
    let limit = args.get(2).map_or(Ok(-1), Value::as_int)?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut all = Vec::new();
    let mut rest = text.len();
    pattern.charge(rest, budget)?;
    for found in pattern.regex.find_iter(&**text).take(limit) {
        budget.charge_element()?;
        all.push(budget.string(&text[found.range()])?);
        // A search may scan all of the remaining text, regardless of its result.
        rest = text.len() - found.end();
        pattern.charge(rest, budget)?;
    }
    budget.list(all)
}
