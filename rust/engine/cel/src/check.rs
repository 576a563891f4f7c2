//! The type checker: assigns types to nodes, overloads to calls, and resolves names.
//!
//! Kubernetes declares attributes as `dyn`, so many errors occur only at run time; all others are reported here.

use std::sync::Arc;

use crate::error::CompileError;
use crate::error::Position;
use crate::library::Overload;
use crate::syntax::{Entry, Expr, Fold, Node};
use crate::types::{self, Type};
use crate::unify::{Bindings, most_general};

/// The result of the checker, by node id.
#[derive(Debug)]
pub(crate) struct Checked {
    types: Vec<Type>,
    resolutions: Vec<Option<Resolution>>,
}

/// The resolution of a name or a call.
#[derive(Clone, Debug)]
pub(crate) enum Resolution {
    /// The variable `device`, or a variable of a macro.
    Variable {
        name: Arc<str>,
        global: bool,
        /// The global variable, although a variable of a macro has the same name.
        shadowed: bool,
    },
    /// The name of a type.
    TypeName(Arc<str>),
    /// A function with the overloads that match the arguments; `namespaced` if the apparent receiver is part of its name.
    Call {
        function: &'static str,
        overloads: Vec<&'static Overload>,
        namespaced: bool,
    },
}

// === impl Checked ===

impl Checked {
    pub(crate) fn type_of(&self, node: &Node) -> &Type {
        &self.types[node.id]
    }

    pub(crate) fn resolution(&self, node: &Node) -> Option<&Resolution> {
        self.resolutions[node.id].as_ref()
    }
}

/// Checks the types of a tree with node ids below `size`.
pub(crate) fn check(root: &Node, size: usize) -> Result<Checked, CompileError> {
    let mut checker = Checker {
        types: vec![Type::Dyn; size],
        resolutions: vec![None; size],
        bindings: Bindings::default(),
        scopes: Vec::new(),
        errors: Vec::new(),
    };
    checker.check(root);
    let too_large = || CompileError::whole("the types of the expression are too large");
    if checker.bindings.is_exhausted() {
        return Err(too_large());
    }
    if !checker.errors.is_empty() {
        return Err(CompileError::many(checker.errors));
    }
    let bindings = checker.bindings;
    let types = checker
        .types
        .iter()
        .map(|t| bindings.resolve(t, true))
        .collect();
    if bindings.is_exhausted() {
        return Err(too_large());
    }
    Ok(Checked {
        types,
        resolutions: checker.resolutions,
    })
}

mod calls;

struct Checker {
    types: Vec<Type>,
    resolutions: Vec<Option<Resolution>>,
    bindings: Bindings,
    scopes: Vec<(Arc<str>, Type)>,
    errors: Vec<(Position, String)>,
}

impl Checker {
    fn check(&mut self, node: &Node) -> Type {
        let t = self.type_of(node);
        let t = if self.bindings.is_too_large(&t) {
            self.error(node, "the type of this value is too large".to_owned())
        } else {
            t
        };
        self.types[node.id] = t.clone();
        t
    }

    fn type_of(&mut self, node: &Node) -> Type {
        match &node.expr {
            Expr::Literal(value) => literal_type(value),
            Expr::Ident(name) => self.ident(node, name),
            Expr::Select {
                operand,
                field,
                test,
            } => self.select(node, operand, field, *test),
            Expr::Call {
                function,
                target,
                args,
            } => self.call(node, function, target.as_deref(), args),
            Expr::List(items) => self.list(items),
            Expr::Map(entries) => self.map(entries),
            Expr::Struct(name) => self.error(
                node,
                format!("objects such as {name}{{...}} cannot be created here"),
            ),
            Expr::Fold(fold) => self.fold(fold),
        }
    }

    fn error(&mut self, node: &Node, message: String) -> Type {
        self.errors.push((node.at, message));
        Type::Error
    }

    fn local(&self, name: &str) -> Option<&Type> {
        self.scopes
            .iter()
            .rev()
            .find(|(local, _)| &**local == name)
            .map(|(_, t)| t)
    }

    fn ident(&mut self, node: &Node, name: &Arc<str>) -> Type {
        let local = self.local(name).filter(|_| !name.starts_with('.')).cloned();
        if let Some(t) = local {
            self.resolutions[node.id] = Some(Resolution::Variable {
                name: Arc::clone(name),
                global: false,
                shadowed: false,
            });
            return t;
        }
        match self.global(node, name) {
            Some(t) => t,
            None => self.unknown_name(node, name),
        }
    }

    /// `device`, or the name of a type. A leading dot bypasses the variables of macros.
    fn global(&mut self, node: &Node, name: &str) -> Option<Type> {
        let name = name.strip_prefix('.').unwrap_or(name);
        if name == "device" {
            self.resolutions[node.id] = Some(Resolution::Variable {
                name: Arc::from(name),
                global: true,
                shadowed: self.local(name).is_some(),
            });
            return Some(Type::Object(types::DEVICE));
        }
        let named = named_type(name)?;
        self.resolutions[node.id] = Some(Resolution::TypeName(Arc::from(name)));
        Some(Type::Meta(Some(Arc::new(named))))
    }

    fn unknown_name(&mut self, node: &Node, name: &str) -> Type {
        let hint = match name {
            "attributes" | "capacity" | "driver" | "allowMultipleAllocations" => {
                format!("; did you mean device.{name}?")
            }
            _ => "; only device and its fields are available".to_owned(),
        };
        self.error(node, format!("unknown name {name:?}{hint}"))
    }

    fn select(&mut self, node: &Node, operand: &Node, field: &str, test: bool) -> Type {
        if let Some(path) = qualified_name(node) {
            let root = path.split('.').next().unwrap_or(&path);
            if self.local(root).is_none()
                && let Some(t) = self.global(node, &path)
            {
                return t;
            }
        }
        let t = self.field(node, operand, field, false);
        if test {
            Type::Bool
        } else {
            self.bindings.resolve(&t, false)
        }
    }

    fn field(&mut self, node: &Node, operand: &Node, field: &str, optional: bool) -> Type {
        let operand_type = self.check(operand);
        let operand_type = self.bindings.resolve(&operand_type, false);
        let (target, is_optional) = match operand_type.optional_value() {
            Some(inner) => (inner.clone(), true),
            None => (operand_type, false),
        };
        let t = match &target {
            Type::Map(entry) => entry.1.clone(),
            Type::Object(name) => self.object_field(node, name, field),
            Type::Param(_) => {
                self.bindings.is_assignable(&Type::Dyn, &target);
                Type::Dyn
            }
            other if other.is_dyn_or_error() => Type::Dyn,
            other => {
                let message = format!("a value of type {other} has no field {field:?}");
                self.error(node, message);
                Type::Dyn
            }
        };
        if is_optional || optional {
            Type::optional(t)
        } else {
            t
        }
    }

    fn object_field(&mut self, node: &Node, object: &str, field: &str) -> Type {
        if object == types::DEVICE {
            let named = |value| Type::map(Type::String, Type::map(Type::String, value));
            match field {
                "driver" => return Type::String,
                "allowMultipleAllocations" => return Type::Bool,
                "attributes" => return named(Type::Dyn),
                "capacity" => return named(Type::Object(types::QUANTITY)),
                _ => {}
            }
            let fields = "driver, attributes, capacity and allowMultipleAllocations";
            return self.error(
                node,
                format!("device has no field {field:?}, only {fields}"),
            );
        }
        self.error(
            node,
            format!("a value of type {object} has no field {field:?}"),
        )
    }

    /// The common type of elements, or `dyn`. [`crate::validate`] reports mixed types.
    fn join(&mut self, previous: Option<Type>, t: Type) -> Type {
        let Some(previous) = previous else { return t };
        if self.bindings.is_assignable(&previous, &t) {
            return most_general(&previous, &t).clone();
        }
        Type::Dyn
    }

    fn unwrap_optional(&mut self, node: &Node, t: Type, optional: bool) -> Type {
        match t.optional_value() {
            Some(inner) if optional => inner.clone(),
            _ if optional && !t.is_dyn() => {
                let message =
                    format!("an element after ? must be an optional, not a value of type {t}");
                self.error(node, message);
                t
            }
            _ => t,
        }
    }

    fn list(&mut self, items: &[(Node, bool)]) -> Type {
        let mut element = None;
        for (item, optional) in items {
            let t = self.check(item);
            let t = self.unwrap_optional(item, t, *optional);
            element = Some(self.join(element, t));
        }
        Type::list(element.unwrap_or_else(|| self.bindings.fresh()))
    }

    fn map(&mut self, entries: &[Entry]) -> Type {
        let (mut key_type, mut value_type) = (None, None);
        for entry in entries {
            let t = self.check(&entry.key);
            key_type = Some(self.join(key_type, t));
            let t = self.check(&entry.value);
            let t = self.unwrap_optional(&entry.value, t, entry.optional);
            value_type = Some(self.join(value_type, t));
        }
        let key = key_type.unwrap_or_else(|| self.bindings.fresh());
        Type::map(key, value_type.unwrap_or_else(|| self.bindings.fresh()))
    }

    fn fold(&mut self, fold: &Fold) -> Type {
        let range = self.check(&fold.range);
        let accu = self.check(&fold.init);
        let range = self.bindings.resolve(&range, false);
        let (first, second) = self.loop_types(fold, &range);
        let depth = self.scopes.len();
        self.scopes
            .push((Arc::clone(&fold.accumulator), accu.clone()));
        self.scopes.push((Arc::clone(&fold.variable), first));
        if let Some(name) = &fold.second_variable {
            self.scopes.push((Arc::clone(name), second));
        }
        let condition = self.check(&fold.condition);
        self.assert_type(&fold.condition, &condition, &Type::Bool);
        let step = self.check(&fold.step);
        self.assert_type(&fold.step, &step, &accu);
        self.scopes.truncate(depth + 1);
        let result = self.check(&fold.result);
        self.scopes.truncate(depth);
        self.bindings.resolve(&result, false)
    }

    fn loop_types(&mut self, fold: &Fold, range: &Type) -> (Type, Type) {
        let two = fold.second_variable.is_some();
        match range {
            Type::List(element) if two => (Type::Int, Type::clone(element)),
            Type::List(element) => (Type::clone(element), Type::Error),
            Type::Map(entry) => (entry.0.clone(), entry.1.clone()),
            Type::Dyn | Type::Error | Type::Param(_) => {
                self.bindings.is_assignable(&Type::Dyn, range);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                self.error(
                    &fold.range,
                    format!("only lists and maps can be iterated, not a value of type {other}"),
                );
                (Type::Error, Type::Error)
            }
        }
    }

    fn assert_type(&mut self, node: &Node, found: &Type, expected: &Type) {
        if !self.bindings.is_assignable(expected, found) {
            let (expected, found) = (
                self.bindings.resolve(expected, true),
                self.bindings.resolve(found, true),
            );
            self.error(
                node,
                format!("expected a value of type {expected}, found {found}"),
            );
        }
    }
}

fn literal_type(value: &crate::value::Value) -> Type {
    use crate::value::Value;
    match value {
        Value::Null => Type::Null,
        Value::Bool(_) => Type::Bool,
        Value::Int(_) => Type::Int,
        Value::Uint(_) => Type::Uint,
        Value::Double(_) => Type::Double,
        Value::String(_) => Type::String,
        Value::Bytes(_) => Type::Bytes,
        _ => Type::Dyn,
    }
}

/// The type that a name in an expression refers to.
fn named_type(name: &str) -> Option<Type> {
    Some(match name {
        "bool" | "bytes" | "double" | "int" | "string" | "uint" => Type::parse(name),
        "list" => Type::list(Type::param("A")),
        "map" => Type::map(Type::param("A"), Type::param("B")),
        "null_type" => Type::Null,
        "type" => Type::Meta(None),
        "google.protobuf.Duration" => Type::Duration,
        "google.protobuf.Timestamp" => Type::Timestamp,
        types::OPTIONAL => Type::optional(Type::param("V")),
        types::IP | types::CIDR => Type::parse(&name[4..].to_ascii_lowercase()),
        _ => return None,
    })
}

/// `a.b.c` for selections on a name.
fn qualified_name(node: &Node) -> Option<String> {
    match &node.expr {
        Expr::Ident(name) => Some(name.to_string()),
        Expr::Select {
            operand,
            field,
            test: false,
        } => Some(format!("{}.{field}", qualified_name(operand)?)),
        _ => None,
    }
}
