//! Type inference: assignability of types, and substitution of type parameters.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::types::Type;

/// The substitution of type parameters so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bindings {
    known: HashMap<Arc<str>, Type>,
    fresh: usize,
    /// Steps over all attempts.
    steps: Rc<Cell<u32>>,
}

/// Maximum number of parts of one type. Each level of `{x: x}` doubles a type; practical expressions have few parts.
const MAX_TYPE_PARTS: usize = 1_000;
/// Maximum number of steps of inference for one expression.
const MAX_TYPE_STEPS: u32 = 1_000_000;

// === impl Bindings ===

impl Bindings {
    pub(crate) fn fresh(&mut self) -> Type {
        self.fresh += 1;
        Type::param(&format!("_{}", self.fresh))
    }

    pub(crate) fn bind(&mut self, name: &Arc<str>, to: Type) {
        self.known.insert(Arc::clone(name), to);
    }

    fn find(&self, t: &Type) -> Option<&Type> {
        match t {
            Type::Param(name) => self.known.get(name),
            _ => None,
        }
    }

    /// Whether a value of type `from` is assignable to `to`. The substitution changes only if it is.
    pub(crate) fn is_assignable(&mut self, to: &Type, from: &Type) -> bool {
        let mut attempt = self.clone();
        let fits = attempt.unify(to, from);
        if fits {
            *self = attempt;
        }
        fits
    }

    /// The same for a list of arguments, all or nothing.
    pub(crate) fn are_assignable(&mut self, to: &[Type], from: &[Type]) -> bool {
        let mut attempt = self.clone();
        let fits = to.len() == from.len() && to.iter().zip(from).all(|(t, f)| attempt.unify(t, f));
        if fits {
            *self = attempt;
        }
        fits
    }

    /// Counts one step. Returns false after `MAX_TYPE_STEPS`.
    fn step(&self) -> bool {
        self.steps.set(self.steps.get().saturating_add(1));
        !self.is_exhausted()
    }

    /// Whether inference exceeded `MAX_TYPE_STEPS`. The result is then invalid.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.steps.get() > MAX_TYPE_STEPS
    }

    /// Whether a type has too many parts after substitution.
    pub(crate) fn is_too_large(&self, t: &Type) -> bool {
        let mut left = MAX_TYPE_PARTS;
        !self.fits(t, &mut left)
    }

    fn fits(&self, t: &Type, left: &mut usize) -> bool {
        if *left == 0 {
            return false;
        }
        *left -= 1;
        match t {
            Type::Param(_) => self.find(t).is_none_or(|known| self.fits(known, left)),
            Type::List(element) => self.fits(element, left),
            Type::Map(entry) => self.fits(&entry.0, left) && self.fits(&entry.1, left),
            Type::Meta(Some(named)) => self.fits(named, left),
            Type::Opaque(_, parameters) => parameters.iter().all(|p| self.fits(p, left)),
            _ => true,
        }
    }

    fn unify(&mut self, a: &Type, b: &Type) -> bool {
        if !self.step() {
            return false;
        }
        if matches!(b, Type::Param(_)) {
            let (valid, bound) = self.substitutes(a, b);
            if valid || bound {
                return valid;
            }
        }
        if matches!(a, Type::Param(_)) {
            return self.substitutes(b, a).0;
        }
        if a.is_dyn_or_error() || b.is_dyn_or_error() {
            return true;
        }
        match (a, b) {
            (Type::Null, other) | (other, Type::Null) => matches!(
                other,
                Type::Null | Type::Object(_) | Type::Opaque(..) | Type::Duration | Type::Timestamp
            ),
            (Type::Meta(_), Type::Meta(_)) => true,
            (Type::List(a), Type::List(b)) => self.unify(a, b),
            (Type::Map(a), Type::Map(b)) => self.unify(&a.0, &b.0) && self.unify(&a.1, &b.1),
            (Type::Opaque(a, p), Type::Opaque(b, q)) => {
                a == b
                    && p.len() == q.len()
                    && p.iter().zip(q.iter()).all(|(a, b)| self.unify(a, b))
            }
            _ => a == b,
        }
    }

    /// Whether the parameter `param` can be `t`, and whether it already has a substitution.
    fn substitutes(&mut self, t: &Type, param: &Type) -> (bool, bool) {
        if t == param {
            return (true, true);
        }
        let Type::Param(name) = param else {
            return (false, false);
        };
        if let Some(known) = self.known.get(name).cloned() {
            if *t == known {
                return (true, true);
            }
            if self.unify(t, &known) {
                let general = most_general(t, &known).clone();
                if self.is_free_of(param, &general) {
                    self.bind(name, general);
                }
                return (true, true);
            }
            return (false, true);
        }
        if self.is_free_of(param, t) {
            self.bind(name, t.clone());
            return (true, false);
        }
        (false, false)
    }

    /// The occurs check: a parameter must not be bound to a type that contains it.
    fn is_free_of(&self, param: &Type, within: &Type) -> bool {
        if param == within || !self.step() {
            return false;
        }
        match within {
            Type::Param(_) => self
                .find(within)
                .is_none_or(|known| self.is_free_of(param, known)),
            Type::List(element) => self.is_free_of(param, element),
            Type::Map(entry) => {
                self.is_free_of(param, &entry.0) && self.is_free_of(param, &entry.1)
            }
            Type::Meta(Some(named)) => self.is_free_of(param, named),
            Type::Opaque(_, parameters) => parameters.iter().all(|p| self.is_free_of(param, p)),
            _ => true,
        }
    }

    /// `t` after substitution. With `close`, the remaining parameters become `dyn`.
    pub(crate) fn resolve(&self, t: &Type, close: bool) -> Type {
        if !self.step() {
            return Type::Error;
        }
        if let Some(known) = self.find(t) {
            return self.resolve(known, close);
        }
        match t {
            Type::Param(_) if close => Type::Dyn,
            Type::List(element) => Type::list(self.resolve(element, close)),
            Type::Map(entry) => {
                Type::map(self.resolve(&entry.0, close), self.resolve(&entry.1, close))
            }
            Type::Meta(Some(named)) => Type::Meta(Some(Arc::new(self.resolve(named, close)))),
            Type::Opaque(name, parameters) => Type::Opaque(
                name,
                parameters.iter().map(|p| self.resolve(p, close)).collect(),
            ),
            _ => t.clone(),
        }
    }
}

/// The more general of two types that unify.
pub(crate) fn most_general<'t>(a: &'t Type, b: &'t Type) -> &'t Type {
    if is_at_most_as_specific(a, b) { a } else { b }
}

fn is_at_most_as_specific(a: &Type, b: &Type) -> bool {
    match (a, b) {
        (Type::Dyn | Type::Param(_), _) => true,
        (_, Type::Dyn | Type::Param(_)) => false,
        (Type::List(a), Type::List(b)) => is_at_most_as_specific(a, b),
        (Type::Map(a), Type::Map(b)) => {
            is_at_most_as_specific(&a.0, &b.0) && is_at_most_as_specific(&a.1, &b.1)
        }
        (Type::Meta(_), Type::Meta(_)) => true,
        (Type::Opaque(a, p), Type::Opaque(b, q)) => {
            a == b
                && p.len() == q.len()
                && p.iter()
                    .zip(q.iter())
                    .all(|(a, b)| is_at_most_as_specific(a, b))
        }
        _ => a == b,
    }
}
