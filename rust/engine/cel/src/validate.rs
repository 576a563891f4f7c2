//! Kubernetes' checks after type checking: literals that always fail, and literals of mixed types.

use crate::check::{Checked, Resolution};
use crate::error::CompileError;
use crate::error::Position;
use crate::fault::excerpt;
use crate::library::{self, templates};
use crate::syntax::{Entry, Expr, Node};
use crate::types::Type;
use crate::value::Value;

/// Validates a tree without type errors.
pub(crate) fn validate(root: &Node, checked: &Checked) -> Result<(), CompileError> {
    let mut validator = Validator {
        checked,
        errors: Vec::new(),
    };
    validator.visit(root, false);
    if validator.errors.is_empty() {
        Ok(())
    } else {
        Err(CompileError::many(validator.errors))
    }
}

struct Validator<'c> {
    checked: &'c Checked,
    errors: Vec<(Position, String)>,
}

impl Validator<'_> {
    /// `mixed` in the arguments of `format`, which may have any types.
    fn visit(&mut self, node: &Node, mixed: bool) {
        match &node.expr {
            Expr::Literal(_) | Expr::Ident(_) | Expr::Struct(_) => {}
            Expr::Select { operand, .. } => self.visit(operand, mixed),
            Expr::Call { target, args, .. } => {
                let function = match self.checked.resolution(node) {
                    Some(Resolution::Call { function, .. }) => *function,
                    _ => "",
                };
                self.call(function, args);
                if let (Some(target), [arg]) = (target, args.as_slice()) {
                    self.template(function, target, arg);
                }
                let mixed = mixed || function == "format";
                target.iter().for_each(|target| self.visit(target, mixed));
                args.iter().for_each(|arg| self.visit(arg, mixed));
            }
            Expr::List(items) => {
                if !mixed {
                    self.list(items);
                }
                items.iter().for_each(|(item, _)| self.visit(item, mixed));
            }
            Expr::Map(entries) => {
                if !mixed {
                    self.map(entries);
                }
                for entry in entries {
                    self.visit(&entry.key, mixed);
                    self.visit(&entry.value, mixed);
                }
            }
            Expr::Fold(fold) => {
                for part in [
                    &fold.range,
                    &fold.init,
                    &fold.condition,
                    &fold.step,
                    &fold.result,
                ] {
                    self.visit(part, mixed);
                }
            }
        }
    }

    /// Kubernetes checks the first argument, even of `matches(text, pattern)`, where it is the text.
    fn call(&mut self, function: &str, args: &[Node]) {
        if function != "matches" {
            return;
        }
        if let Some(Node {
            expr: Expr::Literal(Value::String(pattern)),
            at,
            ..
        }) = args.first()
            && !library::regex::is_pattern(pattern)
        {
            self.errors.push((
                *at,
                format!("{} is not a regular expression", excerpt(pattern)),
            ));
        }
    }

    /// A literal template must match a literal list of values.
    fn template(&mut self, function: &str, target: &Node, arg: &Node) {
        let (Expr::Literal(Value::String(template)), Expr::List(items)) = (&target.expr, &arg.expr)
        else {
            return;
        };
        if function != "format" {
            return;
        }
        let pieces = match templates::pieces(template) {
            Ok(pieces) => pieces,
            Err(message) => return self.errors.push((target.at, message)),
        };
        let mut items = items.iter();
        for piece in pieces {
            let templates::Piece::Clause(clause) = piece else {
                continue;
            };
            match items.next() {
                Some((item, _)) => self.clause(clause, item),
                None => {
                    return self
                        .errors
                        .push((arg.at, "format() has fewer values than clauses".to_owned()));
                }
            }
        }
        if items.next().is_some() {
            self.errors
                .push((arg.at, "format() has more values than clauses".to_owned()));
        }
    }

    fn clause(&mut self, clause: templates::Clause, node: &Node) {
        let t = self.checked.type_of(node);
        if !clause.accepts(t) {
            self.errors.push((
                node.at,
                format!("%{} cannot write a value of type {t}", clause.verb()),
            ));
            return;
        }
        match &node.expr {
            Expr::List(items) if clause.formats_elements() => {
                items.iter().for_each(|(item, _)| self.clause(clause, item))
            }
            Expr::Map(entries) if clause.formats_elements() => {
                for entry in entries {
                    self.clause(clause, &entry.key);
                    self.clause(clause, &entry.value);
                }
            }
            _ => {}
        }
    }

    fn list(&mut self, items: &[(Node, bool)]) {
        let mut first: Option<Type> = None;
        for (item, optional) in items {
            let t = self.element_type(item, *optional);
            match &first {
                None => first = Some(t),
                Some(expected) if expected.is_equivalent(&t) => {}
                Some(expected) => {
                    self.mixed(item, expected.clone(), &t);
                    break;
                }
            }
        }
    }

    fn map(&mut self, entries: &[Entry]) {
        let mut first: Option<(Type, Type)> = None;
        for entry in entries {
            let key = self.checked.type_of(&entry.key).clone();
            let value = self.element_type(&entry.value, entry.optional);
            let Some((key_type, value_type)) = first.clone() else {
                first = Some((key, value));
                continue;
            };
            if !key_type.is_equivalent(&key) {
                self.mixed(&entry.key, key_type, &key);
            }
            if !value_type.is_equivalent(&value) {
                self.mixed(&entry.value, value_type, &value);
            }
        }
    }

    fn element_type(&mut self, node: &Node, optional: bool) -> Type {
        let t = self.checked.type_of(node);
        match t.optional_value() {
            Some(inner) if optional => inner.clone(),
            _ if optional => {
                self.errors.push((
                    node.at,
                    format!("an element after ? must be an optional, not a value of type {t}"),
                ));
                Type::Error
            }
            _ => t.clone(),
        }
    }

    fn mixed(&mut self, node: &Node, expected: Type, found: &Type) {
        self.errors.push((
            node.at,
            format!("all elements must have one type: expected {expected}, found {found}"),
        ));
    }
}
