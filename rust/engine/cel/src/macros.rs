//! Macros: calls that are expanded to other expressions.
//!
//! The standard macros, the macros with two variables, `cel.bind`, `optMap`, `optFlatMap` and `sortBy`.

use std::sync::Arc;

use crate::error::CompileError;
use crate::error::Position;
use crate::syntax::{Builder, Expr, Fold, Node};
use crate::value::Value;

const ACCUMULATOR: &str = "@result";
/// The name of the accumulator in older versions of CEL. No variable may shadow it.
const OLD_ACCUMULATOR: &str = "__result__";
const UNUSED: &str = "#unused";
const SORT_INPUT: &str = "@__sortBy_input__";

/// The call, or its expansion if it is a macro.
pub(crate) fn expand(
    builder: &mut Builder,
    at: Position,
    function: &str,
    target: Option<Node>,
    mut args: Vec<Node>,
) -> Result<Node, CompileError> {
    let Some(target) = target else {
        if function == "has" && args.len() == 1 {
            return has(builder, at, args.remove(0));
        }
        return Ok(builder.call(at, function, args));
    };
    let mut expansion = Expansion { builder, at };
    match (function, args.len()) {
        ("all", 2 | 3) => expansion.quantifier(Quantifier::All, target, args),
        ("exists", 2 | 3) => expansion.quantifier(Quantifier::Exists, target, args),
        ("exists_one", 2 | 3) | ("existsOne", 3) => {
            expansion.quantifier(Quantifier::ExistsOne, target, args)
        }
        ("map", 2 | 3) => expansion.map(target, args),
        ("filter", 2) => expansion.filter(target, args),
        ("transformList", 3 | 4) => expansion.transform(Transform::List, target, args),
        ("transformMap", 3 | 4) => expansion.transform(Transform::Map, target, args),
        ("transformMapEntry", 3 | 4) => expansion.transform(Transform::Entry, target, args),
        ("bind", 3) if matches!(&target.expr, Expr::Ident(name) if &**name == "cel") => {
            expansion.bind(args)
        }
        ("optMap", 2) => expansion.optional(target, args, true),
        ("optFlatMap", 2) => expansion.optional(target, args, false),
        ("sortBy", 2) => expansion.sort_by(target, args),
        _ => Ok(expansion.builder.member(at, target, function, args)),
    }
}

fn has(builder: &mut Builder, at: Position, arg: Node) -> Result<Node, CompileError> {
    match arg.expr {
        Expr::Select { operand, field, .. } => Ok(builder.node(
            at,
            Expr::Select {
                operand,
                field,
                test: true,
            },
        )),
        _ => Err(CompileError::at(
            arg.at,
            "has() needs a field, as in has(device.attributes[\"domain\"].name)",
        )),
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Quantifier {
    All,
    Exists,
    ExistsOne,
}

#[derive(Clone, Copy, PartialEq)]
enum Transform {
    List,
    Map,
    Entry,
}

struct Expansion<'b> {
    builder: &'b mut Builder,
    at: Position,
}

/// The parts of a loop that differ from macro to macro.
struct Loop {
    init: Node,
    condition: Node,
    step: Node,
    result: Node,
}

impl Expansion<'_> {
    fn accu(&mut self) -> Node {
        self.builder.ident(self.at, &Arc::from(ACCUMULATOR))
    }

    fn literal(&mut self, value: Value) -> Node {
        self.builder.literal(self.at, value)
    }

    fn call(&mut self, function: &str, args: Vec<Node>) -> Node {
        self.builder.call(self.at, function, args)
    }

    fn list_of(&mut self, items: Vec<Node>) -> Node {
        self.builder.node(
            self.at,
            Expr::List(items.into_iter().map(|item| (item, false)).collect()),
        )
    }

    fn fold(&mut self, range: Node, variables: Variables, parts: Loop) -> Node {
        let fold = Fold {
            range,
            variable: variables.0,
            second_variable: variables.1,
            accumulator: Arc::from(ACCUMULATOR),
            init: parts.init,
            condition: parts.condition,
            step: parts.step,
            result: parts.result,
        };
        self.builder.node(self.at, Expr::Fold(Box::new(fold)))
    }

    /// `name` bound to `init` within `result`: a fold over an empty list.
    fn bound(&mut self, name: &Arc<str>, init: Node, result: Node) -> Node {
        let range = self.list_of(Vec::new());
        let condition = self.literal(Value::Bool(false));
        let step = self.builder.ident(self.at, name);
        let fold = Fold {
            range,
            variable: Arc::from(UNUSED),
            second_variable: None,
            accumulator: Arc::clone(name),
            init,
            condition,
            step,
            result,
        };
        self.builder.node(self.at, Expr::Fold(Box::new(fold)))
    }

    fn quantifier(
        &mut self,
        kind: Quantifier,
        range: Node,
        mut args: Vec<Node>,
    ) -> Result<Node, CompileError> {
        let predicate = args.remove(args.len() - 1);
        let variables = variables(&args)?;
        let accu = self.accu();
        let parts = match kind {
            Quantifier::All => {
                let step_accu = self.accu();
                Loop {
                    init: self.literal(Value::Bool(true)),
                    condition: self.call("@not_strictly_false", vec![accu]),
                    step: self.call("_&&_", vec![step_accu, predicate]),
                    result: self.accu(),
                }
            }
            Quantifier::Exists => {
                let not = self.call("!_", vec![accu]);
                let step_accu = self.accu();
                Loop {
                    init: self.literal(Value::Bool(false)),
                    condition: self.call("@not_strictly_false", vec![not]),
                    step: self.call("_||_", vec![step_accu, predicate]),
                    result: self.accu(),
                }
            }
            Quantifier::ExistsOne => {
                let one = self.literal(Value::Int(1));
                let sum = self.call("_+_", vec![accu, one]);
                let same = self.accu();
                let total = self.accu();
                let one = self.literal(Value::Int(1));
                Loop {
                    init: self.literal(Value::Int(0)),
                    condition: self.literal(Value::Bool(true)),
                    step: self.call("_?_:_", vec![predicate, sum, same]),
                    result: self.call("_==_", vec![total, one]),
                }
            }
        };
        Ok(self.fold(range, variables, parts))
    }

    fn map(&mut self, range: Node, mut args: Vec<Node>) -> Result<Node, CompileError> {
        let transform = args.remove(args.len() - 1);
        let filter = (args.len() == 2).then(|| args.remove(1));
        let variables = variables(&args)?;
        Ok(self.collect(range, variables, filter, transform))
    }

    fn filter(&mut self, range: Node, mut args: Vec<Node>) -> Result<Node, CompileError> {
        let predicate = args.remove(1);
        let variables = variables(&args)?;
        let element = args.remove(0);
        Ok(self.collect(range, variables, Some(predicate), element))
    }

    /// A list of `element` for every item that passes `filter`.
    fn collect(
        &mut self,
        range: Node,
        variables: Variables,
        filter: Option<Node>,
        element: Node,
    ) -> Node {
        let accu = self.accu();
        let item = self.list_of(vec![element]);
        let added = self.call("_+_", vec![accu, item]);
        let step = self.if_filtered(filter, added);
        let parts = Loop {
            init: self.list_of(Vec::new()),
            condition: self.literal(Value::Bool(true)),
            step,
            result: self.accu(),
        };
        self.fold(range, variables, parts)
    }

    fn if_filtered(&mut self, filter: Option<Node>, step: Node) -> Node {
        let Some(filter) = filter else { return step };
        let same = self.accu();
        self.call("_?_:_", vec![filter, step, same])
    }

    fn transform(
        &mut self,
        kind: Transform,
        range: Node,
        mut args: Vec<Node>,
    ) -> Result<Node, CompileError> {
        let result = args.remove(args.len() - 1);
        let filter = (args.len() == 3).then(|| args.remove(2));
        let variables = variables(&args)?;
        if kind == Transform::List {
            return Ok(self.collect(range, variables, filter, result));
        }
        let accu = self.accu();
        let inserted = if kind == Transform::Map {
            let key = self.builder.ident(self.at, &variables.0);
            self.call("cel.@mapInsert", vec![accu, key, result])
        } else {
            self.call("cel.@mapInsert", vec![accu, result])
        };
        let step = self.if_filtered(filter, inserted);
        let parts = Loop {
            init: self.builder.node(self.at, Expr::Map(Vec::new())),
            condition: self.literal(Value::Bool(true)),
            step,
            result: self.accu(),
        };
        Ok(self.fold(range, variables, parts))
    }

    fn bind(&mut self, mut args: Vec<Node>) -> Result<Node, CompileError> {
        let result = args.remove(2);
        let init = args.remove(1);
        let name = simple_name(&args[0], "cel.bind() needs a simple variable name")?;
        Ok(self.bound(&name, init, result))
    }

    /// `optMap` (`wrap`) and `optFlatMap`.
    fn optional(
        &mut self,
        target: Node,
        mut args: Vec<Node>,
        wrap: bool,
    ) -> Result<Node, CompileError> {
        let result = args.remove(1);
        let name = simple_name(
            &args[0],
            "optMap() and optFlatMap() need a simple variable name",
        )?;
        let copy = self.builder.copy(&target);
        let has_value = self.builder.member(self.at, target, "hasValue", Vec::new());
        let value = self.builder.member(self.at, copy, "value", Vec::new());
        let mut mapped = self.bound(&name, value, result);
        if wrap {
            mapped = self.call("optional.of", vec![mapped]);
        }
        let none = self.call("optional.none", Vec::new());
        Ok(self.call("_?_:_", vec![has_value, mapped, none]))
    }

    fn sort_by(&mut self, target: Node, args: Vec<Node>) -> Result<Node, CompileError> {
        if matches!(
            target.expr,
            Expr::Literal(_) | Expr::Map(_) | Expr::Struct(_)
        ) {
            return Err(CompileError::at(target.at, "sortBy() needs a list"));
        }
        let name: Arc<str> = Arc::from(SORT_INPUT);
        let input = self.builder.ident(self.at, &name);
        let keys = self.map(input, args)?;
        let input = self.builder.ident(self.at, &name);
        let sorted = self
            .builder
            .member(self.at, input, "@sortByAssociatedKeys", vec![keys]);
        Ok(self.bound(&name, target, sorted))
    }
}

type Variables = (Arc<str>, Option<Arc<str>>);

/// The loop variables: one or two names.
fn variables(args: &[Node]) -> Result<Variables, CompileError> {
    let mut names = Vec::with_capacity(2);
    for arg in args {
        let name = simple_name(arg, "a macro's variable must be a simple name")?;
        if &*name == ACCUMULATOR || &*name == OLD_ACCUMULATOR {
            return Err(CompileError::at(
                arg.at,
                format!("the name {name} is reserved for macros"),
            ));
        }
        if names.contains(&name) {
            return Err(CompileError::at(
                arg.at,
                format!("the variable {name} appears twice"),
            ));
        }
        names.push(name);
    }
    let second = (names.len() == 2).then(|| names.remove(1));
    Ok((names.remove(0), second))
}

fn simple_name(node: &Node, otherwise: &str) -> Result<Arc<str>, CompileError> {
    match &node.expr {
        Expr::Ident(name) => Ok(Arc::clone(name)),
        _ => Err(CompileError::at(node.at, otherwise)),
    }
}
