//! The steps that [`crate::eval`] evaluates.

use std::collections::HashSet;
use std::sync::Arc;

use crate::cost::Rule;
use crate::error::Position;
use crate::library::Overload;
use crate::library::regex::Pattern;
use crate::map::Key;
use crate::types::Type;
use crate::value::Value;

mod membership;
mod planner;

pub(crate) use planner::{PatternCaching, Plan, plan};

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
    /// `in` with a constant list.
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

/// A variable or a value, and a path of fields and elements from it.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    pub(crate) base: Base,
    pub(crate) segments: Vec<PathSegment>,
    /// The path is a test whether the last segment exists: `has()`.
    pub(crate) test: bool,
    pub(crate) at: Position,
}

#[derive(Clone, Debug)]
pub(crate) enum Base {
    /// With `uncounted` the segments have no cost: Kubernetes does not count them if a macro variable shadows `device`.
    Device {
        uncounted: bool,
    },
    Local {
        slot: usize,
        variable: Variable,
    },
    Value(Step),
    /// `condition ? yes : no`; the branches contain the segments.
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
pub(crate) struct PathSegment {
    pub(crate) key: SegmentKey,
    pub(crate) optional: bool,
    pub(crate) test: bool,
    pub(crate) at: Position,
}

/// Reference-counted for the branches of a choice: copies would double at each level.
#[derive(Clone, Debug)]
pub(crate) enum SegmentKey {
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
    /// The regular expression, if it is constant.
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

/// Whether an expression of this type can be a selector: a bool, or a value of unknown type.
pub(crate) fn is_selector_type(t: &Type) -> bool {
    matches!(t, Type::Bool | Type::Dyn)
}
