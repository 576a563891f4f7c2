//! The static types of CEL, which the type checker uses.
//!
//! Values at run time have only a [`Kind`](crate::value::Kind) without parameters.

use std::fmt;
use std::sync::Arc;

/// A static type. `Param` is a type variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Dyn,
    /// The type of a node with an error. It is compatible with every type, so that each error is reported once.
    Error,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Duration,
    Timestamp,
    List(Arc<Type>),
    Map(Arc<(Type, Type)>),
    /// The type of a type, with the named type if it is known.
    Meta(Option<Arc<Type>>),
    /// A named type with fields, or one of Kubernetes' value types.
    Object(&'static str),
    /// A named type with parameters, such as `optional_type`.
    Opaque(&'static str, Arc<[Type]>),
    Param(Arc<str>),
}

pub(crate) const OPTIONAL: &str = "optional_type";
pub(crate) const DEVICE: &str = "kubernetes.DRADevice";
pub(crate) const QUANTITY: &str = "kubernetes.Quantity";
pub(crate) const SEMVER: &str = "kubernetes.Semver";
pub(crate) const URL: &str = "kubernetes.URL";
pub(crate) const FORMAT: &str = "kubernetes.NamedFormat";
pub(crate) const IP: &str = "net.IP";
pub(crate) const CIDR: &str = "net.CIDR";

// === impl Type ===

impl Type {
    pub(crate) fn list(element: Type) -> Self {
        Self::List(Arc::new(element))
    }

    pub(crate) fn map(key: Type, value: Type) -> Self {
        Self::Map(Arc::new((key, value)))
    }

    pub(crate) fn optional(value: Type) -> Self {
        Self::Opaque(OPTIONAL, Arc::from([value]))
    }

    pub(crate) fn param(name: &str) -> Self {
        Self::Param(Arc::from(name))
    }

    pub(crate) fn is_dyn(&self) -> bool {
        matches!(self, Self::Dyn)
    }

    pub(crate) fn is_dyn_or_error(&self) -> bool {
        matches!(self, Self::Dyn | Self::Error)
    }

    /// The value type of an optional.
    pub(crate) fn optional_value(&self) -> Option<&Type> {
        match self {
            Self::Opaque(OPTIONAL, parameters) => parameters.first(),
            _ => None,
        }
    }

    /// Whether the types are equal up to the names of type parameters.
    pub(crate) fn is_equivalent(&self, other: &Type) -> bool {
        match (self, other) {
            (Self::Param(_), Self::Param(_)) => true,
            (Self::List(a), Self::List(b)) => a.is_equivalent(b),
            (Self::Map(a), Self::Map(b)) => a.0.is_equivalent(&b.0) && a.1.is_equivalent(&b.1),
            (Self::Meta(a), Self::Meta(b)) => match (a, b) {
                (Some(a), Some(b)) => a.is_equivalent(b),
                (None, None) => true,
                _ => false,
            },
            (Self::Opaque(a, p), Self::Opaque(b, q)) => {
                a == b
                    && p.len() == q.len()
                    && p.iter().zip(q.iter()).all(|(a, b)| a.is_equivalent(b))
            }
            _ => self == other,
        }
    }

    /// Parses the notation of the library's signatures: `int`, `list<A>`, `map<K,V>`, `optional<V>`, `type<A>`.
    pub(crate) fn parse(text: &str) -> Self {
        let text = text.trim();
        if let Some((head, rest)) = text.split_once('<') {
            let inner = rest.strip_suffix('>').unwrap_or(rest);
            let parts = split_parameters(inner);
            let mut parameters = parts.iter().map(|part| Self::parse(part));
            let mut next = || parameters.next().unwrap_or(Self::Error);
            return match head {
                "list" => Self::list(next()),
                "map" => {
                    let key = next();
                    Self::map(key, next())
                }
                "optional" => Self::optional(next()),
                "type" => Self::Meta(Some(Arc::new(next()))),
                _ => Self::Error,
            };
        }
        match text {
            "dyn" => Self::Dyn,
            "null" => Self::Null,
            "bool" => Self::Bool,
            "int" => Self::Int,
            "uint" => Self::Uint,
            "double" => Self::Double,
            "string" => Self::String,
            "bytes" => Self::Bytes,
            "duration" => Self::Duration,
            "timestamp" => Self::Timestamp,
            "quantity" => Self::Object(QUANTITY),
            "semver" => Self::Object(SEMVER),
            "url" => Self::Object(URL),
            "format" => Self::Object(FORMAT),
            "ip" => Self::Opaque(IP, Arc::from([])),
            "cidr" => Self::Opaque(CIDR, Arc::from([])),
            name => Self::param(name),
        }
    }
}

fn split_parameters(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dyn => f.write_str("dyn"),
            Self::Error => f.write_str("error"),
            Self::Null => f.write_str("null"),
            Self::Bool => f.write_str("bool"),
            Self::Int => f.write_str("int"),
            Self::Uint => f.write_str("uint"),
            Self::Double => f.write_str("double"),
            Self::String => f.write_str("string"),
            Self::Bytes => f.write_str("bytes"),
            Self::Duration => f.write_str("duration"),
            Self::Timestamp => f.write_str("timestamp"),
            Self::List(element) => write!(f, "list({element})"),
            Self::Map(entry) => write!(f, "map({}, {})", entry.0, entry.1),
            Self::Meta(None) => f.write_str("type"),
            Self::Meta(Some(named)) => write!(f, "type({named})"),
            Self::Object(name) => f.write_str(name),
            Self::Opaque(name, parameters) if parameters.is_empty() => f.write_str(name),
            Self::Opaque(name, parameters) => {
                write!(f, "{name}(")?;
                for (i, parameter) in parameters.iter().enumerate() {
                    write!(f, "{}{parameter}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str(")")
            }
            Self::Param(_) => f.write_str("unknown"),
        }
    }
}
