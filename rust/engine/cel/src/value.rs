//! The values of CEL at run time.
//!
//! Values own or share their content, so they outlive the device.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use dra_api::Quantity;

use crate::budget::Budget;
use crate::fault::Fault;
use crate::library::format::Format;
use crate::library::url::Url;
use crate::map::Entries;
use crate::time::Timestamp;

/// One value. [`crate::compare`] compares numbers of different types by value.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Arc<str>),
    Bytes(Arc<[u8]>),
    /// Nanoseconds.
    Duration(i64),
    Timestamp(Timestamp),
    /// A type, by its name.
    Type(Arc<str>),
    List(List),
    Map(Map),
    Optional(Option<Arc<Value>>),
    Quantity(Arc<Amount>),
    Semver(Arc<semver::Version>),
    Url(Arc<Url>),
    Ip(IpAddr),
    Cidr(IpAddr, u8),
    Format(&'static Format),
}

/// A quantity. Kubernetes supports `==` for a result of `add` or `sub` only as the left operand.
#[derive(Clone, Debug)]
pub(crate) struct Amount {
    pub(crate) quantity: Quantity,
    pub(crate) computed: bool,
    /// Too large for arithmetic.
    pub(crate) huge: bool,
}

/// A list. The accumulator of a macro grows in place, visible through all references, as in Kubernetes.
#[derive(Clone, Debug)]
pub(crate) enum List {
    Fixed(Arc<Vec<Value>>),
    Growing(Arc<RwLock<Vec<Value>>>),
}

/// A map. The accumulator of a macro grows in place.
#[derive(Clone, Debug)]
pub(crate) enum Map {
    Fixed(Arc<Entries>),
    Growing(Arc<RwLock<Entries>>),
}

/// The type of a value without its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Null,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Duration,
    Timestamp,
    Type,
    List,
    Map,
    Optional,
    Quantity,
    Semver,
    Url,
    Ip,
    Cidr,
    Format,
}

// === impl Value ===

impl Value {
    pub(crate) fn string(text: &str) -> Self {
        Self::String(Arc::from(text))
    }

    pub(crate) fn list(items: Vec<Value>) -> Self {
        Self::List(List::Fixed(Arc::new(items)))
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Null => Kind::Null,
            Self::Bool(_) => Kind::Bool,
            Self::Int(_) => Kind::Int,
            Self::Uint(_) => Kind::Uint,
            Self::Double(_) => Kind::Double,
            Self::String(_) => Kind::String,
            Self::Bytes(_) => Kind::Bytes,
            Self::Duration(_) => Kind::Duration,
            Self::Timestamp(_) => Kind::Timestamp,
            Self::Type(_) => Kind::Type,
            Self::List(_) => Kind::List,
            Self::Map(_) => Kind::Map,
            Self::Optional(_) => Kind::Optional,
            Self::Quantity(_) => Kind::Quantity,
            Self::Semver(_) => Kind::Semver,
            Self::Url(_) => Kind::Url,
            Self::Ip(_) => Kind::Ip,
            Self::Cidr(..) => Kind::Cidr,
            Self::Format(_) => Kind::Format,
        }
    }

    pub(crate) fn type_name(&self) -> &'static str {
        self.kind().name()
    }

    /// The size in the cost model: characters, bytes or elements, and 1 for other values.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::String(text) => text.chars().count() as u64,
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::List(list) => list.len() as u64,
            Self::Map(map) => map.len() as u64,
            Self::Ip(IpAddr::V4(_)) => 4,
            Self::Ip(IpAddr::V6(_)) => 16,
            Self::Cidr(_, bits) => u64::from(*bits).div_ceil(8),
            _ => 1,
        }
    }

    /// The bytes of a string, which a function may scan for one value.
    pub(crate) fn own_bytes(&self) -> usize {
        match self {
            Self::String(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
            _ => 0,
        }
    }

    /// Whether `optional.ofNonZeroValue` of the value is empty.
    pub(crate) fn is_zero(&self) -> bool {
        match self {
            Self::Null => true,
            Self::Bool(value) => !value,
            Self::Int(value) => *value == 0,
            Self::Uint(value) => *value == 0,
            Self::Double(value) => *value == 0.0,
            Self::String(text) => text.is_empty(),
            Self::Bytes(bytes) => bytes.is_empty(),
            Self::Duration(nanos) => *nanos == 0,
            Self::Timestamp(time) => time.is_year_one(),
            Self::List(list) => list.len() == 0,
            Self::Map(map) => map.len() == 0,
            _ => false,
        }
    }

    pub(crate) fn as_str(&self) -> Result<&Arc<str>, Fault> {
        match self {
            Self::String(text) => Ok(text),
            other => Err(Fault::no_overload_for(other)),
        }
    }

    pub(crate) fn as_int(&self) -> Result<i64, Fault> {
        match self {
            Self::Int(value) => Ok(*value),
            other => Err(Fault::no_overload_for(other)),
        }
    }

    pub(crate) fn as_list(&self) -> Result<&List, Fault> {
        match self {
            Self::List(list) => Ok(list),
            other => Err(Fault::no_overload_for(other)),
        }
    }
}

// === impl Kind ===

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Null => "null_type",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Duration => "google.protobuf.Duration",
            Self::Timestamp => "google.protobuf.Timestamp",
            Self::Type => "type",
            Self::List => "list",
            Self::Map => "map",
            Self::Optional => crate::types::OPTIONAL,
            Self::Quantity => crate::types::QUANTITY,
            Self::Semver => crate::types::SEMVER,
            Self::Url => crate::types::URL,
            Self::Ip => crate::types::IP,
            Self::Cidr => crate::types::CIDR,
            Self::Format => crate::types::FORMAT,
        }
    }
}

// === impl List ===

impl List {
    pub(crate) fn growing() -> Self {
        Self::Growing(Arc::default())
    }

    /// Whether both are the same growing list.
    pub(crate) fn is_same(&self, other: &List) -> bool {
        matches!((self, other), (Self::Growing(a), Self::Growing(b)) if Arc::ptr_eq(a, b))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Fixed(items) => items.len(),
            Self::Growing(items) => read(items).len(),
        }
    }

    pub(crate) fn get(&self, index: usize) -> Option<Value> {
        match self {
            Self::Fixed(items) => items.get(index).cloned(),
            Self::Growing(items) => read(items).get(index).cloned(),
        }
    }

    /// The current elements. A growing list is copied.
    pub(crate) fn items(&self, budget: &mut Budget) -> Result<Arc<Vec<Value>>, Fault> {
        match self {
            Self::Fixed(items) => Ok(Arc::clone(items)),
            Self::Growing(items) => {
                let items = read(items);
                budget.charge_values(items.len())?;
                Ok(Arc::new(items.clone()))
            }
        }
    }

    /// The final list of an accumulator.
    pub(crate) fn finished(self, budget: &mut Budget) -> Result<List, Fault> {
        match self {
            Self::Growing(items) if Arc::strong_count(&items) == 1 => {
                let mut items = items.write().unwrap_or_else(PoisonError::into_inner);
                Ok(Self::Fixed(Arc::new(std::mem::take(&mut *items))))
            }
            list => Ok(Self::Fixed(list.items(budget)?)),
        }
    }

    /// This list followed by the other. A growing list is extended in place.
    pub(crate) fn concat(&self, other: &List, budget: &mut Budget) -> Result<List, Fault> {
        match self {
            Self::Fixed(items) => match (items.is_empty(), other.len()) {
                (true, _) => Ok(other.clone()),
                (_, 0) => Ok(self.clone()),
                (_, more) => {
                    budget.charge_values(items.len() + more)?;
                    let tail = other.items(budget)?;
                    let mut joined = Vec::with_capacity(items.len() + tail.len());
                    joined.extend(items.iter().chain(tail.iter()).cloned());
                    Ok(Self::Fixed(Arc::new(joined)))
                }
            },
            Self::Growing(items) => {
                let tail = other.items(budget)?;
                for _ in tail.iter() {
                    budget.charge_element()?;
                }
                let mut items = items.write().unwrap_or_else(PoisonError::into_inner);
                items.extend(tail.iter().cloned());
                Ok(self.clone())
            }
        }
    }

    /// Removes all elements of a growing list. A list that contains itself would otherwise never be freed.
    pub(crate) fn clear(&self) {
        if let Self::Growing(items) = self {
            let taken = std::mem::take(&mut *items.write().unwrap_or_else(PoisonError::into_inner));
            drop(taken);
        }
    }
}

// === impl Map ===

impl Map {
    pub(crate) fn fixed(entries: Entries) -> Self {
        Self::Fixed(Arc::new(entries))
    }

    pub(crate) fn growing() -> Self {
        Self::Growing(Arc::default())
    }

    /// Whether both are the same growing map.
    pub(crate) fn is_same(&self, other: &Map) -> bool {
        matches!((self, other), (Self::Growing(a), Self::Growing(b)) if Arc::ptr_eq(a, b))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Fixed(entries) => entries.len(),
            Self::Growing(entries) => read(entries).len(),
        }
    }

    /// The current entries. A growing map is copied.
    pub(crate) fn entries(&self, budget: &mut Budget) -> Result<Arc<Entries>, Fault> {
        match self {
            Self::Fixed(entries) => Ok(Arc::clone(entries)),
            Self::Growing(entries) => read(entries).charged_copy(budget).map(Arc::new),
        }
    }

    /// The final map of an accumulator.
    pub(crate) fn finished(self, budget: &mut Budget) -> Result<Map, Fault> {
        match self {
            Self::Growing(entries) if Arc::strong_count(&entries) == 1 => {
                let mut entries = entries.write().unwrap_or_else(PoisonError::into_inner);
                Ok(Self::Fixed(Arc::new(std::mem::take(&mut *entries))))
            }
            map => Ok(Self::Fixed(map.entries(budget)?)),
        }
    }

    /// Removes all entries of a growing map. A map that contains itself would otherwise never be freed.
    pub(crate) fn clear(&self) {
        if let Self::Growing(entries) = self {
            let taken =
                std::mem::take(&mut *entries.write().unwrap_or_else(PoisonError::into_inner));
            drop(taken);
        }
    }

    /// The value of a key by the rules of a lookup. A map may have a default value for every key.
    pub(crate) fn find(&self, key: &Value) -> Option<Value> {
        match self {
            Self::Fixed(entries) => entries.find(key),
            Self::Growing(entries) => read(entries).find(key),
        }
    }

    /// This map with one more entry. A growing map is extended in place.
    pub(crate) fn insert(
        &self,
        key: &Value,
        value: &Value,
        budget: &mut Budget,
    ) -> Result<Map, Fault> {
        budget.charge_entry()?;
        match self {
            Self::Fixed(entries) => {
                let mut entries = entries.charged_copy(budget)?;
                entries.insert(key.clone(), value.clone())?;
                Ok(Self::fixed(entries))
            }
            Self::Growing(entries) => {
                let mut growing = entries.write().unwrap_or_else(PoisonError::into_inner);
                growing.insert(key.clone(), value.clone())?;
                Ok(self.clone())
            }
        }
    }

    pub(crate) fn contains(&self, key: &Value) -> bool {
        match self {
            Self::Fixed(entries) => entries.contains(key),
            Self::Growing(entries) => read(entries).contains(key),
        }
    }
}

fn read<T>(lock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}
