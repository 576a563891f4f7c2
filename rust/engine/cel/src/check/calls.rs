//! Selects the overloads of a call that match its arguments, and the type of its result.

use std::sync::Arc;

use super::{Checker, Resolution, qualified_name};
use crate::library::{self, Overload};
use crate::syntax::{Expr, Node};
use crate::types::Type;
use crate::unify::Bindings;
use crate::value::Value;

impl Checker {
    pub(super) fn call(
        &mut self,
        node: &Node,
        function: &str,
        target: Option<&Node>,
        args: &[Node],
    ) -> Type {
        if function == "_?._" {
            return self.optional_select(node, args);
        }
        let mut arg_types: Vec<Type> = args.iter().map(|arg| self.check(arg)).collect();
        let Some(target) = target else {
            let function = function.strip_prefix('.').unwrap_or(function);
            return match library::function(function) {
                Some(overloads) => self.resolve(node, overloads, &arg_types, args, false, false),
                None => self.unknown_function(node, function),
            };
        };
        if let Some(prefix) = qualified_name(target) {
            let name = format!("{}.{function}", prefix.strip_prefix('.').unwrap_or(&prefix));
            if let Some(overloads) = library::function(&name) {
                return self.resolve(node, overloads, &arg_types, args, false, true);
            }
        }
        arg_types.insert(0, self.check(target));
        match library::function(function) {
            Some(overloads) => self.resolve(node, overloads, &arg_types, args, true, false),
            None => self.unknown_function(node, function),
        }
    }

    fn optional_select(&mut self, node: &Node, args: &[Node]) -> Type {
        let [
            operand,
            Node {
                expr: Expr::Literal(Value::String(field)),
                ..
            },
        ] = args
        else {
            return self.error(node, "the field of .? must be a name".to_owned());
        };
        let field = Arc::clone(field);
        self.types[args[1].id] = Type::String;
        let t = self.field(node, operand, &field, true);
        self.bindings.resolve(&t, false)
    }

    fn unknown_function(&mut self, node: &Node, function: &str) -> Type {
        let near = library::names()
            .filter(|name| name.eq_ignore_ascii_case(function))
            .min();
        let hint = near.map_or_else(String::new, |name| format!("; did you mean {name}()?"));
        self.error(node, format!("unknown function {function}(){hint}"))
    }

    fn resolve(
        &mut self,
        node: &Node,
        overloads: &'static [Overload],
        arg_types: &[Type],
        args: &[Node],
        member: bool,
        namespaced: bool,
    ) -> Type {
        let function = overloads[0].function;
        if function == "_&&_" || function == "_||_" {
            return self.logical(node, &overloads[0], arg_types, args);
        }
        let mut fitting = Vec::new();
        let mut result: Option<Type> = None;
        for overload in overloads
            .iter()
            .filter(|overload| overload.member == member)
        {
            let mut instance = Bindings::default();
            for param in &overload.params {
                instance.bind(param, self.bindings.fresh());
            }
            let expected: Vec<Type> = overload
                .args
                .iter()
                .map(|arg| instance.resolve(arg, false))
                .collect();
            if !self.bindings.are_assignable(arg_types, &expected) {
                continue;
            }
            fitting.push(overload);
            let own = self
                .bindings
                .resolve(&instance.resolve(&overload.result, false), false);
            match &result {
                None => result = Some(own),
                Some(known) if !known.is_dyn() && own != *known => result = Some(Type::Dyn),
                Some(_) => {}
            }
        }
        let Some(result) = result else {
            return self.no_overload(node, overloads, arg_types, member);
        };
        self.resolutions[node.id] = Some(Resolution::Call {
            function,
            overloads: fitting,
            namespaced,
        });
        result
    }

    fn logical(
        &mut self,
        node: &Node,
        overload: &'static Overload,
        arg_types: &[Type],
        args: &[Node],
    ) -> Type {
        for (arg, t) in args.iter().zip(arg_types) {
            if !self.bindings.is_assignable(t, &Type::Bool) {
                let t = self.bindings.resolve(t, true);
                let operator = overload.function.trim_matches('_');
                self.error(
                    arg,
                    format!("{operator} needs a bool, not a value of type {t}"),
                );
            }
        }
        self.resolutions[node.id] = Some(Resolution::Call {
            function: overload.function,
            overloads: vec![overload],
            namespaced: false,
        });
        Type::Bool
    }

    fn no_overload(
        &mut self,
        node: &Node,
        overloads: &[Overload],
        arg_types: &[Type],
        member: bool,
    ) -> Type {
        let types: Vec<String> = arg_types
            .iter()
            .map(|t| self.bindings.resolve(t, true).to_string())
            .collect();
        let function = overloads[0].function;
        let message = match (function.contains('_'), types.as_slice()) {
            (true, [a, b]) => format!("{a} {} {b} is not defined", operator(function)),
            (true, [a]) => format!("{}{a} is not defined", operator(function)),
            (_, [receiver, args @ ..]) if member => {
                format!(
                    "{function}({}) is not defined on a value of type {receiver}",
                    args.join(", ")
                )
            }
            _ => format!("{function}({}) is not defined", types.join(", ")),
        };
        self.error(node, message)
    }
}

/// The source form of an operator.
fn operator(function: &str) -> &str {
    match function {
        "_[_]" | "_[?_]" => "[...]",
        "@in" => "in",
        other => other.trim_matches('_'),
    }
}
