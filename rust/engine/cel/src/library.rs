//! The functions of Kubernetes' environment: names, signatures and implementations.
//!
//! Each module has a table of signatures with their implementations. [`crate::eval`] implements indexing and the operators
//! with conditional evaluation (`&&`, `||`, `?:`, `or`, `orValue`).

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use crate::budget::Budget;
use crate::fault::Fault;
use crate::types::Type;
use crate::value::{Kind, Value};

mod conversions;
pub(crate) mod format;
mod lists;
mod net;
mod operators;
mod optional;
pub(crate) mod quantity;
pub(crate) mod regex;
pub(crate) mod semver;
mod sets;
mod strings;
pub(crate) mod templates;
mod times;
pub(crate) mod url;

/// The implementation of a function. A receiver is the first argument.
pub(crate) type Implementation = fn(&[Value], &mut Budget) -> Result<Value, Fault>;

/// One row of a table. The types are in the notation of [`Type::parse`].
pub(crate) struct Signature {
    pub(crate) id: &'static str,
    pub(crate) function: &'static str,
    pub(crate) member: bool,
    pub(crate) args: &'static str,
    pub(crate) result: &'static str,
    pub(crate) call: Implementation,
}

/// `function(args)`.
pub(crate) const fn global(
    id: &'static str,
    function: &'static str,
    args: &'static str,
    result: &'static str,
    call: Implementation,
) -> Signature {
    Signature {
        id,
        function,
        member: false,
        args,
        result,
        call,
    }
}

/// `receiver.function(args)`; the receiver is the first of `args`.
pub(crate) const fn member(
    id: &'static str,
    function: &'static str,
    args: &'static str,
    result: &'static str,
    call: Implementation,
) -> Signature {
    Signature {
        id,
        function,
        member: true,
        args,
        result,
        call,
    }
}

/// One overload of a function. The ids come from Kubernetes, because its cost model uses them.
#[derive(Debug)]
pub(crate) struct Overload {
    pub(crate) id: &'static str,
    pub(crate) function: &'static str,
    pub(crate) member: bool,
    pub(crate) args: Vec<Type>,
    pub(crate) result: Type,
    pub(crate) params: Vec<Arc<str>>,
    pub(crate) call: Implementation,
    kinds: Vec<Option<Kind>>,
}

/// All functions by name.
static FUNCTIONS: LazyLock<HashMap<&'static str, Vec<Overload>>> = LazyLock::new(|| {
    let tables: [&[Signature]; 14] = [
        operators::TABLE,
        conversions::TABLE,
        strings::TABLE,
        times::TABLE,
        optional::TABLE,
        regex::TABLE,
        url::TABLE,
        quantity::TABLE,
        net::TABLE,
        format::TABLE,
        sets::TABLE,
        semver::TABLE,
        lists::TABLE,
        templates::TABLE,
    ];
    let mut functions = HashMap::<_, Vec<Overload>>::new();
    for signature in tables.into_iter().flatten() {
        functions
            .entry(signature.function)
            .or_default()
            .push(Overload::from(signature));
    }
    functions
});

/// The overloads of a function, or `None` for an unknown function.
pub(crate) fn function(name: &str) -> Option<&'static [Overload]> {
    FUNCTIONS.get(name).map(Vec::as_slice)
}

/// The names of all functions, for suggestions.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    FUNCTIONS.keys().copied()
}

/// Whether a call with a constant argument is evaluated at compile time.
pub(crate) fn is_conversion(function: &str) -> bool {
    conversions::is_conversion(function)
}

// === impl Overload ===

impl Overload {
    /// Whether the implementation checks the types of its arguments itself, as operators do.
    pub(crate) fn is_unguarded(&self) -> bool {
        self.function.contains('_') || matches!(self.function, "size" | "@in")
    }

    /// Whether the types of these values match the parameters.
    pub(crate) fn accepts(&self, args: &[Value]) -> bool {
        self.kinds.len() == args.len()
            && self
                .kinds
                .iter()
                .zip(args)
                .all(|(kind, arg)| kind.is_none_or(|kind| kind == arg.kind()))
    }
}

impl From<&Signature> for Overload {
    fn from(signature: &Signature) -> Self {
        let args: Vec<Type> = split(signature.args).into_iter().map(Type::parse).collect();
        let result = Type::parse(signature.result);
        let mut params = Vec::new();
        args.iter().for_each(|arg| collect_params(arg, &mut params));
        collect_params(&result, &mut params);
        Self {
            id: signature.id,
            function: signature.function,
            member: signature.member,
            kinds: args.iter().map(kind).collect(),
            args,
            result,
            params,
            call: signature.call,
        }
    }
}

fn split(args: &'static str) -> Vec<&'static str> {
    args.split("; ").filter(|arg| !arg.is_empty()).collect()
}

fn collect_params(t: &Type, params: &mut Vec<Arc<str>>) {
    match t {
        Type::Param(name) if !params.contains(name) => params.push(Arc::clone(name)),
        Type::List(element) => collect_params(element, params),
        Type::Map(entry) => {
            collect_params(&entry.0, params);
            collect_params(&entry.1, params);
        }
        Type::Meta(Some(named)) => collect_params(named, params),
        Type::Opaque(_, parameters) => parameters.iter().for_each(|p| collect_params(p, params)),
        _ => {}
    }
}

/// The run-time kind of a type; `None` for `dyn` and parameters, which accept any value.
fn kind(t: &Type) -> Option<Kind> {
    Some(match t {
        Type::Dyn | Type::Error | Type::Param(_) => return None,
        Type::Null => Kind::Null,
        Type::Bool => Kind::Bool,
        Type::Int => Kind::Int,
        Type::Uint => Kind::Uint,
        Type::Double => Kind::Double,
        Type::String => Kind::String,
        Type::Bytes => Kind::Bytes,
        Type::Duration => Kind::Duration,
        Type::Timestamp => Kind::Timestamp,
        Type::List(_) => Kind::List,
        Type::Map(_) => Kind::Map,
        Type::Meta(_) => Kind::Type,
        Type::Object(name) | Type::Opaque(name, _) => match *name {
            crate::types::OPTIONAL => Kind::Optional,
            crate::types::QUANTITY => Kind::Quantity,
            crate::types::SEMVER => Kind::Semver,
            crate::types::URL => Kind::Url,
            crate::types::IP => Kind::Ip,
            crate::types::CIDR => Kind::Cidr,
            crate::types::FORMAT => Kind::Format,
            _ => Kind::Map,
        },
    })
}
