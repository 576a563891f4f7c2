//! The CEL environment of Kubernetes DRA: compiles the selectors of DeviceClasses and ResourceClaims, and evaluates them on
//! devices, with the answers of kube-scheduler.
//!
//! The parser is that of the `cel` crate. The type checker, the functions and the cost model are Kubernetes' and stand here,
//! because an answer includes what does not compile, what fails at run time, and what costs too much.
//! It knows devices, not requests: which selectors apply to which device is the allocator's business.
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
mod position;
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
pub use error::{CompileError, EvalError};
pub use position::Position;
pub use program::{MAX_LENGTH, Program};
