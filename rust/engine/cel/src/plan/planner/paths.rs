//! Builds paths segment by segment, also through the branches of a choice.

use crate::error::Position;
use crate::plan::{Base, Path, PathSegment, Step};
use crate::value::Value;

pub(super) fn pair(mut args: Vec<Step>) -> Box<(Step, Step)> {
    let second = args.pop().unwrap_or(Step::Const(Value::Null));
    let first = args.pop().unwrap_or(Step::Const(Value::Null));
    Box::new((first, second))
}

/// The path of an operand, extended by one segment.
pub(super) fn follow(operand: Step, segment: PathSegment) -> Path {
    let test = segment.test;
    let at = segment.at;
    let mut path = match operand {
        Step::Path(path) => *path,
        other => Path {
            base: Base::Value(other),
            segments: Vec::new(),
            test: false,
            at,
        },
    };
    path.extend(segment);
    path.test = test;
    path
}

impl Path {
    fn extend(&mut self, segment: PathSegment) {
        match &mut self.base {
            Base::Choice { branches, .. } => {
                branches.0.extend(segment.clone());
                branches.1.extend(segment);
            }
            _ => self.segments.push(segment),
        }
    }
}

pub(super) fn choice(mut args: Vec<Step>, at: Position) -> Step {
    let branches = pair(args.split_off(1));
    let branch = |step: Step| match step {
        Step::Path(path) => Path {
            test: false,
            ..*path
        },
        other => Path {
            base: Base::Value(other),
            segments: Vec::new(),
            test: false,
            at,
        },
    };
    let branches = Box::new((branch(branches.0), branch(branches.1)));
    let base = Base::Choice {
        condition: args.remove(0),
        branches,
    };
    Step::Path(Box::new(Path {
        base,
        segments: Vec::new(),
        test: false,
        at,
    }))
}
