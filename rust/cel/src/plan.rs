//! The steps that [`crate::eval`] takes.

use std::collections::HashSet;
use std::sync::Arc;

use crate::cost::Rule;
use crate::library::Overload;
use crate::library::regex::Pattern;
use crate::map::Key;
use crate::position::Position;
use crate::types::Type;
use crate::value::Value;

mod membership;
mod planner;

pub(crate) use planner::{Patterns, Plan, plan};

/// A step of an evaluation.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Const(Value),
    Path(Box<Path>),
    Call(Box<Call>),
    And(Box<[Step]>, Position),
    Or(Box<[Step]>, Position),
    Equal {
        sides: Box<(Step, Step)>,
        negated: bool,
        at: Position,
    },
    NotStrictlyFalse(Box<Step>),
    /// `in` a constant list.
    InSet {
        value: Box<Step>,
        set: Arc<HashSet<Key>>,
        at: Position,
    },
    /// `or` and, with `unwrap`, `orValue`.
    Either {
        sides: Box<(Step, Step)>,
        unwrap: bool,
        at: Position,
    },
    List {
        items: Vec<(Step, bool)>,
        at: Position,
    },
    Map {
        entries: Vec<(Step, Step, bool)>,
        at: Position,
    },
    Fold(Box<FoldStep>),
}

/// A variable or a value, and the fields and elements to follow from there.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    pub(crate) base: Base,
    pub(crate) hops: Vec<Hop>,
    /// The question is whether the last hop leads anywhere: `has()`.
    pub(crate) test: bool,
    pub(crate) at: Position,
}

#[derive(Clone, Debug)]
pub(crate) enum Base {
    /// With `uncounted` the hops cost nothing: Kubernetes loses count when a variable of a macro hides `device`.
    Device {
        uncounted: bool,
    },
    Local {
        slot: usize,
        variable: Variable,
    },
    Value(Step),
    /// `condition ? yes : no`; the hops are followed in the branches.
    Choice {
        condition: Step,
        branches: Box<(Path, Path)>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Variable {
    Accumulator,
    First,
    Second,
}

#[derive(Clone, Debug)]
pub(crate) struct Hop {
    pub(crate) key: HopKey,
    pub(crate) optional: bool,
    pub(crate) test: bool,
    pub(crate) at: Position,
}

/// Shared between the branches of a choice: copies would double with each level.
#[derive(Clone, Debug)]
pub(crate) enum HopKey {
    Const(Value),
    Path(Arc<Path>),
    Computed(Arc<Step>),
}

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) function: &'static str,
    pub(crate) overloads: Vec<&'static Overload>,
    pub(crate) rule: Rule,
    pub(crate) args: Vec<Step>,
    /// The regular expression, where it is known.
    pub(crate) pattern: Option<Arc<Pattern>>,
    pub(crate) at: Position,
}

#[derive(Clone, Debug)]
pub(crate) struct FoldStep {
    pub(crate) slot: usize,
    pub(crate) range: Step,
    pub(crate) two_variables: bool,
    pub(crate) init: Step,
    pub(crate) condition: Step,
    pub(crate) step: Step,
    pub(crate) result: Step,
    pub(crate) at: Position,
}

/// Whether the type of an expression can decide about a device: a bool, or an attribute of unknown type.
pub(crate) fn decides(t: &Type) -> bool {
    matches!(t, Type::Bool | Type::Dyn)
}
