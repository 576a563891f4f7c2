//! The CEL environment of Kubernetes DRA: compiles the selectors of DeviceClasses and ResourceClaims, and evaluates them on
//! devices with the same results as kube-scheduler.
//!
//! The parser comes from the `cel` crate. This crate has the type checker, the functions and the cost model of Kubernetes,
//! because compile errors, run-time errors and the cost limit are part of the result.
//! The crate has no notion of requests: the allocator decides which selectors apply to which device.
//!
//! ```
//! use dra_cel::{DeviceInput, Program};
//!
//! let device: dra_api::Device = serde_json::from_str(
//!     r#"{"name": "gpu-0", "attributes": {"model": {"string": "H100"}}, "capacity": {"memory": {"value": "80Gi"}}}"#,
//! )?;
//! let device = DeviceInput::new("gpu.example.com", &device)?;
//! let program = Program::compile(
//!     r#"device.attributes["gpu.example.com"].model == "H100" &&
//!        device.capacity["gpu.example.com"].memory.compareTo(quantity("40Gi")) >= 0"#,
//! )?;
//! assert!(program.matches(&device)?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod budget;
mod check;
mod compare;
mod cost;
mod device;
mod error;
mod eval;
mod fault;
mod json;
mod library;
mod macros;
mod map;
mod number;
mod path;
mod plan;
mod program;
mod stack;
mod syntax;
mod time;
mod types;
mod unify;
mod validate;
mod value;

pub use budget::{EVALUATION_TIMEOUT, MEMORY_LIMIT_BYTES};
pub use cost::COST_LIMIT;
pub use device::DeviceInput;
pub use error::{CompileError, EvalError, Position};
pub use program::{MAX_LENGTH, Program};
