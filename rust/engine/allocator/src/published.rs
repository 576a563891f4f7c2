//! A slice with the known results of selectors on its devices.
//!
//! The results belong to the slice, so they end with it: a slice that replaces another one starts without results.

use std::ops::Deref;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dra_api::ResourceSlice;

/// Expressions with results on one slice. The results of the oldest expression are dropped first.
const MAX_EXPRESSIONS: usize = 32;

const UNKNOWN: u8 = 0;
const FALSE: u8 = 1;
const TRUE: u8 = 2;

/// A ResourceSlice of a cluster.
#[derive(Debug)]
pub(crate) struct Published {
    slice: ResourceSlice,
    /// By the id of a compiled expression, oldest first.
    results: Mutex<Vec<(u64, Results)>>,
}

/// The results of one expression on the devices of a slice, in their order. Clones share the results.
#[derive(Debug, Clone)]
pub(crate) struct Results(Arc<[AtomicU8]>);

impl Results {
    /// The result on the device at `position`; `None` if it is not known. Errors are never known.
    pub(crate) fn get(&self, position: usize) -> Option<bool> {
        match self.0.get(position)?.load(Ordering::Relaxed) {
            FALSE => Some(false),
            TRUE => Some(true),
            _ => None,
        }
    }

    pub(crate) fn set(&self, position: usize, matches: bool) {
        if let Some(result) = self.0.get(position) {
            result.store(if matches { TRUE } else { FALSE }, Ordering::Relaxed);
        }
    }
}

impl Published {
    /// The results of the expression with this id, which is unique in the process.
    pub(crate) fn results_of(&self, expression: u64) -> Results {
        let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = results.iter().find(|(id, _)| *id == expression) {
            return known.clone();
        }
        if results.len() >= MAX_EXPRESSIONS {
            results.remove(0);
        }
        let devices = self.slice.spec.devices.iter();
        let unknown = Results(devices.map(|_| AtomicU8::new(UNKNOWN)).collect());
        results.push((expression, unknown.clone()));
        unknown
    }
}

impl Deref for Published {
    type Target = ResourceSlice;

    fn deref(&self) -> &ResourceSlice {
        &self.slice
    }
}

impl From<ResourceSlice> for Published {
    fn from(slice: ResourceSlice) -> Self {
        Self {
            slice,
            results: Mutex::default(),
        }
    }
}
