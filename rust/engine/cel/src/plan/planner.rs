//! Builds the plan of a checked tree: resolves names, evaluates constants, selects overloads.

use std::collections::HashMap;
use std::sync::Arc;

use super::membership::in_constant_list;
use super::{Base, Call, FoldStep, Path, PathSegment, SegmentKey, Step, Variable};
use crate::check::{Checked, Resolution};
use crate::cost::Rule;
use crate::error::CompileError;
use crate::error::Position;
use crate::eval::Interpreter;
use crate::library::regex::{PATTERN_LIMIT_BYTES, Pattern};
use crate::library::{self, Overload};
use crate::syntax::{Entry, Expr, Fold, Node};
use crate::value::Value;

mod paths;

use paths::{choice, follow, pair};

/// A plan, and its size.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) step: Step,
    /// The number of loops.
    pub(crate) slots: usize,
    /// The maximum depth of nested steps.
    pub(crate) depth: usize,
    /// Memory of the regular expressions, in bytes.
    pub(crate) pattern_bytes: usize,
}

/// Plans a checked tree.
pub(crate) fn plan(
    root: &Node,
    checked: &Checked,
    cache_patterns: PatternCaching,
) -> Result<Plan, CompileError> {
    let mut planner = Planner {
        checked,
        scopes: Vec::new(),
        slots: 0,
        depth: 0,
        deepest: 0,
        cache_patterns,
        patterns: HashMap::new(),
        pattern_bytes: 0,
    };
    let step = planner.step(root)?;
    Ok(Plan {
        step,
        slots: planner.slots,
        depth: planner.deepest,
        pattern_bytes: planner.pattern_bytes,
    })
}

struct Planner<'c> {
    checked: &'c Checked,
    scopes: Vec<(Arc<str>, usize, Variable)>,
    slots: usize,
    depth: usize,
    deepest: usize,
    cache_patterns: PatternCaching,
    patterns: HashMap<Arc<str>, Arc<Pattern>>,
    pattern_bytes: usize,
}

/// Whether compiled constant regular expressions are added to the cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum PatternCaching {
    Enabled,
    /// For an expression that is only validated.
    Disabled,
}

impl Planner<'_> {
    fn step(&mut self, node: &Node) -> Result<Step, CompileError> {
        self.depth += 1;
        self.deepest = self.deepest.max(self.depth);
        let step = self.plan_node(node);
        self.depth -= 1;
        step
    }

    fn plan_node(&mut self, node: &Node) -> Result<Step, CompileError> {
        match &node.expr {
            Expr::Literal(value) => Ok(Step::Const(value.clone())),
            Expr::Ident(_) => self.name(node),
            Expr::Select {
                operand,
                field,
                test,
            } => {
                if self.checked.resolution(node).is_some() {
                    return self.name(node);
                }
                let operand = self.step(operand)?;
                let key = SegmentKey::Const(Value::String(Arc::clone(field)));
                let segment = PathSegment {
                    key,
                    optional: false,
                    test: *test,
                    at: node.at,
                };
                Ok(Step::Path(Box::new(follow(operand, segment))))
            }
            Expr::Call { target, args, .. } => self.call(node, target.as_deref(), args),
            Expr::List(items) => self.list(node, items),
            Expr::Map(entries) => self.map(node, entries),
            Expr::Fold(fold) => self.fold(node, fold),
            Expr::Struct(name) => Err(CompileError::at(
                node.at,
                format!("objects such as {name}{{...}} cannot be created here"),
            )),
        }
    }

    fn name(&mut self, node: &Node) -> Result<Step, CompileError> {
        let base = match self.checked.resolution(node) {
            Some(Resolution::TypeName(name)) => {
                return Ok(Step::Const(Value::Type(Arc::clone(name))));
            }
            Some(Resolution::Variable {
                global: true,
                shadowed,
                ..
            }) => Base::Device {
                uncounted: *shadowed,
            },
            Some(Resolution::Variable { name, .. }) => {
                let found = self.scopes.iter().rev().find(|(local, ..)| local == name);
                let Some((_, slot, variable)) = found else {
                    return Err(CompileError::at(node.at, format!("unknown name {name:?}")));
                };
                Base::Local {
                    slot: *slot,
                    variable: *variable,
                }
            }
            _ => return Err(CompileError::at(node.at, "unknown name")),
        };
        Ok(Step::Path(Box::new(Path {
            base,
            segments: Vec::new(),
            test: false,
            at: node.at,
        })))
    }

    fn call(
        &mut self,
        node: &Node,
        target: Option<&Node>,
        arg_nodes: &[Node],
    ) -> Result<Step, CompileError> {
        if let Expr::Call { function, .. } = &node.expr
            && &**function == "_?._"
        {
            return self.index(node, &arg_nodes[0], &arg_nodes[1], true);
        }
        let Some(Resolution::Call {
            function,
            overloads,
            namespaced,
        }) = self.checked.resolution(node)
        else {
            return Err(CompileError::at(node.at, "unknown function"));
        };
        let (function, overloads) = (*function, overloads.clone());
        if let "_[_]" | "_[?_]" = function {
            return self.index(node, &arg_nodes[0], &arg_nodes[1], function == "_[?_]");
        }
        let target = target.filter(|_| !namespaced);
        let mut args = Vec::with_capacity(arg_nodes.len() + 1);
        for arg in target.into_iter().chain(arg_nodes) {
            args.push(self.step(arg)?);
        }
        let at = node.at;
        Ok(match function {
            "_&&_" => Step::And(args.into(), at),
            "_||_" => Step::Or(args.into(), at),
            "_?_:_" => choice(args, at),
            "_==_" | "_!=_" => Step::Equal {
                sides: pair(args),
                negated: function == "_!=_",
                at,
            },
            "@not_strictly_false" => Step::NotStrictlyFalse(Box::new(args.remove(0))),
            "or" | "orValue" => Step::Either {
                sides: pair(args),
                unwrap: function == "orValue",
                at,
            },
            _ => return self.plain_call(function, overloads, args, at, arg_nodes),
        })
    }

    fn plain_call(
        &mut self,
        function: &'static str,
        overloads: Vec<&'static Overload>,
        args: Vec<Step>,
        at: Position,
        arg_nodes: &[Node],
    ) -> Result<Step, CompileError> {
        let only = match overloads.as_slice() {
            [only] => Some(*only),
            _ => None,
        };
        if only.is_some_and(|overload| overload.id == "in_list")
            && let Some(step) = in_constant_list(&args, at)
        {
            return Ok(step);
        }
        let pattern = match args.get(1) {
            Some(Step::Const(Value::String(pattern)))
                if library::regex::takes_pattern(function) =>
            {
                let place = arg_nodes.last().map_or(at, |node| node.at);
                Some(self.pattern(pattern, place)?)
            }
            _ => None,
        };
        let constant = args.len() == 1
            && matches!(args[0], Step::Const(_))
            && library::is_conversion(function);
        let rule = Rule::of(function, only);
        let call = Step::Call(Box::new(Call {
            function,
            overloads,
            rule,
            args,
            pattern,
            at,
        }));
        if constant {
            let value =
                Interpreter::constant(&call).map_err(|fault| CompileError::constant(at, fault))?;
            return Ok(Step::Const(value));
        }
        Ok(call)
    }

    /// A constant regular expression, compiled once per expression.
    fn pattern(&mut self, text: &Arc<str>, at: Position) -> Result<Arc<Pattern>, CompileError> {
        if let Some(known) = self.patterns.get(text) {
            return Ok(Arc::clone(known));
        }
        let cached = match self.cache_patterns {
            PatternCaching::Enabled => library::regex::find_cached(text),
            PatternCaching::Disabled => None,
        };
        let pattern = match cached {
            Some(pattern) => pattern,
            None => Arc::new(
                library::regex::compile(text).map_err(|fault| CompileError::constant(at, fault))?,
            ),
        };
        self.pattern_bytes += pattern.bytes();
        if self.pattern_bytes > PATTERN_LIMIT_BYTES {
            return Err(CompileError::at(
                at,
                format!(
                    "the regular expressions take more than {} MiB together",
                    PATTERN_LIMIT_BYTES >> 20
                ),
            ));
        }
        if matches!(self.cache_patterns, PatternCaching::Enabled) {
            library::regex::insert_cached(text, &pattern);
        }
        self.patterns.insert(Arc::clone(text), Arc::clone(&pattern));
        Ok(pattern)
    }

    fn index(
        &mut self,
        node: &Node,
        operand: &Node,
        index: &Node,
        optional: bool,
    ) -> Result<Step, CompileError> {
        let operand = self.step(operand)?;
        let key = match self.step(index)? {
            Step::Const(value) if is_key(&value) => SegmentKey::Const(value),
            Step::Const(value) => {
                return Err(CompileError::at(
                    index.at,
                    format!("a value of type {} cannot be an index", value.type_name()),
                ));
            }
            Step::Path(path) => SegmentKey::Path(Arc::from(path)),
            other => SegmentKey::Computed(Arc::new(other)),
        };
        Ok(Step::Path(Box::new(follow(
            operand,
            PathSegment {
                key,
                optional,
                test: false,
                at: node.at,
            },
        ))))
    }

    fn list(&mut self, node: &Node, items: &[(Node, bool)]) -> Result<Step, CompileError> {
        let mut steps = Vec::with_capacity(items.len());
        for (item, optional) in items {
            steps.push((self.step(item)?, *optional));
        }
        let constant = steps.iter().all(|(step, _)| matches!(step, Step::Const(_)));
        let list = Step::List {
            items: steps,
            at: node.at,
        };
        self.folded(list, constant, node.at)
    }

    fn map(&mut self, node: &Node, entries: &[Entry]) -> Result<Step, CompileError> {
        let mut steps = Vec::with_capacity(entries.len());
        for entry in entries {
            steps.push((
                self.step(&entry.key)?,
                self.step(&entry.value)?,
                entry.optional,
            ));
        }
        let constant = steps
            .iter()
            .all(|(key, value, _)| matches!((key, value), (Step::Const(_), Step::Const(_))));
        let map = Step::Map {
            entries: steps,
            at: node.at,
        };
        self.folded(map, constant, node.at)
    }

    /// Replaces a constant literal by its value.
    fn folded(&self, step: Step, constant: bool, at: Position) -> Result<Step, CompileError> {
        if !constant {
            return Ok(step);
        }
        Interpreter::constant(&step)
            .map(Step::Const)
            .map_err(|fault| CompileError::constant(at, fault))
    }

    fn fold(&mut self, node: &Node, fold: &Fold) -> Result<Step, CompileError> {
        let init = self.step(&fold.init)?;
        let range = self.step(&fold.range)?;
        let slot = self.slots;
        self.slots += 1;
        let depth = self.scopes.len();
        self.scopes
            .push((Arc::clone(&fold.accumulator), slot, Variable::Accumulator));
        self.scopes
            .push((Arc::clone(&fold.variable), slot, Variable::First));
        if let Some(name) = &fold.second_variable {
            self.scopes.push((Arc::clone(name), slot, Variable::Second));
        }
        let condition = self.step(&fold.condition)?;
        let step = self.step(&fold.step)?;
        self.scopes.truncate(depth + 1);
        let result = self.step(&fold.result)?;
        self.scopes.truncate(depth);
        let two_variables = fold.second_variable.is_some();
        Ok(Step::Fold(Box::new(FoldStep {
            slot,
            range,
            two_variables,
            init,
            condition,
            step,
            result,
            at: node.at,
        })))
    }
}

/// Whether the type of a value can be a key or an index.
fn is_key(value: &Value) -> bool {
    matches!(
        value,
        Value::Bool(_) | Value::Int(_) | Value::Uint(_) | Value::Double(_) | Value::String(_)
    )
}
