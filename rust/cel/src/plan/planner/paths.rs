//! Paths that grow hop by hop, also through the branches of a choice.

use crate::plan::{Base, Hop, Path, Step};
use crate::position::Position;
use crate::value::Value;

pub(super) fn pair(mut args: Vec<Step>) -> Box<(Step, Step)> {
    let second = args.pop().unwrap_or(Step::Const(Value::Null));
    let first = args.pop().unwrap_or(Step::Const(Value::Null));
    Box::new((first, second))
}

/// A path from an operand one hop further.
pub(super) fn follow(operand: Step, hop: Hop) -> Path {
    let test = hop.test;
    let at = hop.at;
    let mut path = match operand {
        Step::Path(path) => *path,
        other => Path {
            base: Base::Value(other),
            hops: Vec::new(),
            test: false,
            at,
        },
    };
    path.extend(hop);
    path.test = test;
    path
}

impl Path {
    fn extend(&mut self, hop: Hop) {
        match &mut self.base {
            Base::Choice { branches, .. } => {
                branches.0.extend(hop.clone());
                branches.1.extend(hop);
            }
            _ => self.hops.push(hop),
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
            hops: Vec::new(),
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
        hops: Vec::new(),
        test: false,
        at,
    }))
}
