//! Evaluations per second of typical selectors: `cargo run --locked --release -p dra-cel --example benchmark`.

use std::hint::black_box;
use std::time::Instant;

use dra_cel::{DeviceInput, Program};

const ROUNDS: u32 = 200_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device: dra_api::Device = serde_json::from_str(
        r#"{"name": "gpu-0", "attributes": {"model": {"string": "H100"}, "index": {"int": 3}, "type": {"string": "gpu"},
            "driverVersion": {"version": "550.54.15"}, "resource.kubernetes.io/pcieRoot": {"string": "pci0000:3a"}},
            "capacity": {"memory": {"value": "80Gi"}}}"#,
    )?;
    let started = Instant::now();
    for _ in 0..ROUNDS {
        black_box(DeviceInput::new("gpu.example.com", &device)?);
    }
    report("prepare a device", started);
    let prepared = DeviceInput::new("gpu.example.com", &device)?;
    for expression in [
        r#"device.driver == "gpu.example.com""#,
        r#"device.attributes["gpu.example.com"].model == "H100" && device.attributes["gpu.example.com"].index < 8"#,
        r#"device.capacity["gpu.example.com"].memory.compareTo(quantity("40Gi")) >= 0"#,
        r#"device.attributes["gpu.example.com"].?none.orValue("x").matches("^[a-z]+$")"#,
        r#"["A100", "H100"].exists(m, m == device.attributes["gpu.example.com"].model)"#,
    ] {
        let program = Program::compile(expression)?;
        let started = Instant::now();
        for _ in 0..ROUNDS {
            black_box(program.matches(black_box(&prepared))?);
        }
        report(expression, started);
    }
    Ok(())
}

fn report(name: &str, started: Instant) {
    let nanos = started.elapsed().as_nanos() / u128::from(ROUNDS);
    println!(
        "{nanos:>6} ns  {:>9} per second  {name}",
        1_000_000_000 / nanos.max(1)
    );
}
