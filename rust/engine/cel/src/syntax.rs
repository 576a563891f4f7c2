//! The tree of an expression: the output of the `cel` crate's parser with expanded macros and positions.

use std::sync::Arc;

use cel::common::ast::{EntryExpr, Expr as Parsed, IdedExpr, LiteralValue, SourceInfo};

use crate::error::CompileError;
use crate::error::Position;
use crate::macros;
use crate::value::Value;

/// The maximum depth in Kubernetes' parser, of nested expressions and of nested operators, fields and calls.
pub(crate) const MAX_DEPTH: u16 = 250;

/// The maximum number of nested `!` and `-`. Kubernetes has no limit; here they use stack space.
const MAX_UNARY_OPERATORS: u16 = 500;

/// The maximum number of nodes. Only nested macros that copy their operand exceed it within 10 KiB of text.
const MAX_NODES: usize = 50_000;

/// One node. Ids are unique in a tree, also in copies by macros.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) id: usize,
    pub(crate) at: Position,
    pub(crate) expr: Expr,
}

#[derive(Clone, Debug)]
pub(crate) enum Expr {
    Literal(Value),
    Ident(Arc<str>),
    /// `operand.field`, or with `test` whether it exists (`has()`).
    Select {
        operand: Box<Node>,
        field: Arc<str>,
        test: bool,
    },
    Call {
        function: Arc<str>,
        target: Option<Box<Node>>,
        args: Vec<Node>,
    },
    /// Elements, each with whether an empty optional is omitted.
    List(Vec<(Node, bool)>),
    Map(Vec<Entry>),
    Struct(Arc<str>),
    Fold(Box<Fold>),
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: Node,
    pub(crate) value: Node,
    pub(crate) optional: bool,
}

/// A loop over a range with an accumulator. Macros expand to folds.
#[derive(Clone, Debug)]
pub(crate) struct Fold {
    pub(crate) range: Node,
    pub(crate) variable: Arc<str>,
    pub(crate) second_variable: Option<Arc<str>>,
    pub(crate) accumulator: Arc<str>,
    pub(crate) init: Node,
    pub(crate) condition: Node,
    pub(crate) step: Node,
    pub(crate) result: Node,
}

/// Creates nodes with unique ids.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    next: usize,
}

/// Parses `source` and expands the macros of Kubernetes' environment.
pub(crate) fn parse(source: &str) -> Result<(Node, usize), CompileError> {
    let parser = cel::Env::default()
        .parser()
        .enable_optional_syntax(true)
        .max_recursion_depth(MAX_DEPTH - 1);
    let (parsed, info) = parser
        .parse_with_source_info(source)
        .map_err(|errors| CompileError::syntax(&errors))?;
    let positions = PositionMap::new(source, &info);
    let mut lowering = Lowering {
        builder: Builder::default(),
        positions,
        depth: 0,
        unary_depth: 0,
    };
    let root = lowering.lower(parsed)?;
    if lowering.builder.next > MAX_NODES {
        return Err(CompileError::whole(format!(
            "with its macros expanded the expression has more than {MAX_NODES} parts"
        )));
    }
    Ok((root, lowering.builder.next))
}

// === impl Builder ===

impl Builder {
    pub(crate) fn node(&mut self, at: Position, expr: Expr) -> Node {
        self.next += 1;
        Node {
            id: self.next - 1,
            at,
            expr,
        }
    }

    pub(crate) fn ident(&mut self, at: Position, name: &Arc<str>) -> Node {
        self.node(at, Expr::Ident(Arc::clone(name)))
    }

    pub(crate) fn literal(&mut self, at: Position, value: Value) -> Node {
        self.node(at, Expr::Literal(value))
    }

    pub(crate) fn call(&mut self, at: Position, function: &str, args: Vec<Node>) -> Node {
        self.node(
            at,
            Expr::Call {
                function: Arc::from(function),
                target: None,
                args,
            },
        )
    }

    pub(crate) fn member(
        &mut self,
        at: Position,
        target: Node,
        function: &str,
        args: Vec<Node>,
    ) -> Node {
        self.node(
            at,
            Expr::Call {
                function: Arc::from(function),
                target: Some(Box::new(target)),
                args,
            },
        )
    }

    /// A copy with new ids.
    pub(crate) fn copy(&mut self, node: &Node) -> Node {
        if self.next > MAX_NODES {
            // `parse` reports the limit when the tree is complete. Until then the tree must not grow.
            return self.literal(node.at, Value::Null);
        }
        let expr = match &node.expr {
            Expr::Select {
                operand,
                field,
                test,
            } => Expr::Select {
                operand: Box::new(self.copy(operand)),
                field: Arc::clone(field),
                test: *test,
            },
            Expr::Call {
                function,
                target,
                args,
            } => Expr::Call {
                function: Arc::clone(function),
                target: target.as_ref().map(|target| Box::new(self.copy(target))),
                args: args.iter().map(|arg| self.copy(arg)).collect(),
            },
            Expr::List(items) => Expr::List(
                items
                    .iter()
                    .map(|(item, optional)| (self.copy(item), *optional))
                    .collect(),
            ),
            Expr::Map(entries) => Expr::Map(
                entries
                    .iter()
                    .map(|entry| Entry {
                        key: self.copy(&entry.key),
                        value: self.copy(&entry.value),
                        optional: entry.optional,
                    })
                    .collect(),
            ),
            Expr::Fold(fold) => Expr::Fold(Box::new(Fold {
                range: self.copy(&fold.range),
                variable: Arc::clone(&fold.variable),
                second_variable: fold.second_variable.clone(),
                accumulator: Arc::clone(&fold.accumulator),
                init: self.copy(&fold.init),
                condition: self.copy(&fold.condition),
                step: self.copy(&fold.step),
                result: self.copy(&fold.result),
            })),
            Expr::Literal(_) | Expr::Ident(_) | Expr::Struct(_) => node.expr.clone(),
        };
        self.node(node.at, expr)
    }
}

/// Converts the parser's offsets in characters to lines and columns.
struct PositionMap<'s> {
    info: &'s SourceInfo,
    line_starts: Vec<u32>,
}

impl<'s> PositionMap<'s> {
    fn new(source: &str, info: &'s SourceInfo) -> Self {
        let after_newline = source
            .chars()
            .enumerate()
            .filter(|(_, c)| *c == '\n')
            .map(|(at, _)| at as u32 + 1);
        Self {
            info,
            line_starts: std::iter::once(0).chain(after_newline).collect(),
        }
    }

    fn of(&self, id: u64) -> Position {
        let offset = self.info.offset_for(id).map_or(0, |(start, _)| start);
        let line = self
            .line_starts
            .partition_point(|start| *start <= offset)
            .max(1);
        Position {
            line: line as u32,
            column: offset - self.line_starts[line - 1] + 1,
        }
    }
}

struct Lowering<'s> {
    builder: Builder,
    positions: PositionMap<'s>,
    depth: u16,
    /// The depth of nested `!` and `-`.
    unary_depth: u16,
}

impl Lowering<'_> {
    fn lower(&mut self, parsed: IdedExpr) -> Result<Node, CompileError> {
        let counts = u16::from(counts_as_nesting(&parsed.expr));
        let unary = u16::from(is_unary_operator(&parsed.expr));
        self.depth += counts;
        self.unary_depth += unary;
        let too_deep = match (
            self.depth > MAX_DEPTH,
            self.unary_depth > MAX_UNARY_OPERATORS,
        ) {
            (true, _) => Some(format!(
                "more than {MAX_DEPTH} nested operators, fields and calls"
            )),
            (_, true) => Some(format!("more than {MAX_UNARY_OPERATORS} nested ! or -")),
            _ => None,
        };
        if let Some(message) = too_deep {
            return Err(CompileError::at(self.positions.of(parsed.id), message));
        }
        let node = self.lower_node(parsed)?;
        self.depth -= counts;
        self.unary_depth -= unary;
        Ok(node)
    }

    fn lower_node(&mut self, parsed: IdedExpr) -> Result<Node, CompileError> {
        let at = self.positions.of(parsed.id);
        let expr = match parsed.expr {
            Parsed::Unspecified | Parsed::Comprehension(_) => {
                return Err(CompileError::at(at, "the expression cannot be parsed"));
            }
            Parsed::Ident(name) => Expr::Ident(Arc::from(name)),
            Parsed::Literal(value) => Expr::Literal(literal(value)),
            Parsed::Struct(literal) => Expr::Struct(Arc::from(literal.type_name)),
            Parsed::Select(select) => Expr::Select {
                operand: Box::new(self.lower(*select.operand)?),
                field: Arc::from(select.field),
                test: select.test,
            },
            Parsed::List(list) => {
                let optional = list.optional_indices;
                let items = list.elements.into_iter().enumerate();
                Expr::List(
                    items
                        .map(|(i, item)| Ok((self.lower(item)?, optional.contains(&i))))
                        .collect::<Result<_, CompileError>>()?,
                )
            }
            Parsed::Map(map) => {
                let mut entries = Vec::with_capacity(map.entries.len());
                for entry in map.entries {
                    if let EntryExpr::MapEntry(entry) = entry.expr {
                        let key = self.lower(entry.key)?;
                        entries.push(Entry {
                            key,
                            value: self.lower(entry.value)?,
                            optional: entry.optional,
                        });
                    }
                }
                Expr::Map(entries)
            }
            Parsed::Call(call) => {
                let target = call.target.map(|target| self.lower(*target)).transpose()?;
                let args = call
                    .args
                    .into_iter()
                    .map(|arg| self.lower(arg))
                    .collect::<Result<Vec<_>, _>>()?;
                return macros::expand(&mut self.builder, at, &call.func_name, target, args);
            }
        };
        Ok(self.builder.node(at, expr))
    }
}

/// Kubernetes does not count `!`, `-`, `&&`, `||`, calls without a receiver, lists and maps.
fn counts_as_nesting(parsed: &Parsed) -> bool {
    match parsed {
        Parsed::Select(_) => true,
        Parsed::Call(call) if call.target.is_some() => true,
        Parsed::Call(call) => {
            !matches!(call.func_name.as_str(), "!_" | "-_" | "_&&_" | "_||_")
                && is_operator(&call.func_name)
        }
        _ => false,
    }
}

fn is_unary_operator(parsed: &Parsed) -> bool {
    matches!(parsed, Parsed::Call(call) if matches!(call.func_name.as_str(), "!_" | "-_"))
}

fn is_operator(function: &str) -> bool {
    function == "@in"
        || (function.starts_with('_') && function.ends_with('_'))
        || function == "_?._"
        || function.starts_with("_[")
}

fn literal(value: LiteralValue) -> Value {
    match value {
        LiteralValue::Null => Value::Null,
        LiteralValue::Boolean(value) => Value::Bool(*value.inner()),
        LiteralValue::Int(value) => Value::Int(*value.inner()),
        LiteralValue::UInt(value) => Value::Uint(*value.inner()),
        LiteralValue::Double(value) => Value::Double(*value.inner()),
        LiteralValue::String(text) => Value::string(text.inner()),
        LiteralValue::Bytes(bytes) => Value::Bytes(Arc::from(bytes.inner())),
    }
}
