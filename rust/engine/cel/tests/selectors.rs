//! Selectors as users write them.

use dra_cel::{DeviceInput, Program};

fn gpu() -> DeviceInput {
    let device: dra_api::Device = serde_json::from_str(
        r#"{
            "name": "gpu-0",
            "attributes": {
                "model": {"string": "H100"},
                "index": {"int": 3},
                "shared": {"bool": true},
                "driverVersion": {"version": "550.54.15"},
                "resource.kubernetes.io/pcieRoot": {"string": "pci0000:3a"}
            },
            "capacity": {"memory": {"value": "80Gi"}}
        }"#,
    )
    .expect("a device");
    DeviceInput::new("gpu.example.com", &device).expect("a valid device")
}

fn evaluate(expression: &str) -> Result<bool, String> {
    let program = Program::compile(expression).map_err(|error| format!("compile: {error}"))?;
    program.matches(&gpu()).map_err(|error| error.to_string())
}

#[test]
fn selectors_of_users_give_their_answers() {
    for (expression, expected) in [
        (r#"device.driver == "gpu.example.com""#, true),
        (
            r#"device.attributes["gpu.example.com"].model == "H100""#,
            true,
        ),
        (r#"device.attributes["gpu.example.com"].index > 3"#, false),
        (r#"device.attributes["gpu.example.com"].shared"#, true),
        (
            r#"device.attributes["resource.kubernetes.io"].pcieRoot.startsWith("pci")"#,
            true,
        ),
        (
            r#"device.attributes["gpu.example.com"].driverVersion.compareTo(semver("550.0.0")) >= 0"#,
            true,
        ),
        (
            r#"device.capacity["gpu.example.com"].memory.isGreaterThan(quantity("40Gi"))"#,
            true,
        ),
        (
            r#"cel.bind(gpu, device.attributes["gpu.example.com"], gpu.model in ["H100", "H200"] && gpu.index < 8)"#,
            true,
        ),
        (
            r#"has(device.attributes["other.example.com"].model)"#,
            false,
        ),
        (
            r#"device.attributes["gpu.example.com"].?none.orValue("x") == "x""#,
            true,
        ),
        (
            r#"["A", "H100"].exists(m, m == device.attributes["gpu.example.com"].model)"#,
            true,
        ),
        ("device.allowMultipleAllocations", false),
    ] {
        assert_eq!(evaluate(expression), Ok(expected), "{expression}");
    }
}

#[test]
fn errors_state_their_place_and_reason() {
    for (expression, message) in [
        (
            r#"device.attributes["gpu.example.com"].none == 1"#,
            r#"1:37: no such key "none""#,
        ),
        (
            r#"device.attributes["gpu.example.com"].model > 1"#,
            "1:44: string and int have no order",
        ),
        (
            "device.name == 'x'",
            r#"compile: 1:7: device has no field "name", only driver, attributes, capacity and allowMultipleAllocations"#,
        ),
        (
            "1 + 1",
            "compile: the expression must return a bool, it returns a value of type int",
        ),
        (
            "attributes['x'].y",
            r#"compile: 1:1: unknown name "attributes"; did you mean device.attributes?"#,
        ),
        (
            "device.driver.startswith('x')",
            "compile: 1:25: unknown function startswith(); did you mean startsWith()?",
        ),
        ("1 == 'a'", "compile: 1:3: int == string is not defined"),
        (
            "lists.range(200000).all(x, x >= 0 && x < 1000000)",
            "the evaluation exceeds the cost limit of 1000000",
        ),
    ] {
        assert_eq!(
            evaluate(expression),
            Err(message.to_owned()),
            "{expression}"
        );
    }
}

/// Test threads have a stack of 2 MiB, less than any thread of the agent.
#[test]
fn the_deepest_expressions_are_answered_and_deeper_ones_refused() {
    let nested =
        |open: &str, inner: &str, close: &str, n: usize| open.repeat(n) + inner + &close.repeat(n);
    for (deep, n) in [
        (("(", "true", ")"), 249),
        (("[", "", "] == [[]]"), 1),
        (("dyn([", "1", "])[0] == 1"), 1),
        (("", "1", "+1"), 240),
        (("", "'a'", ".trim()"), 240),
        (("true ? true : ", "true", ""), 240),
        (("[true].all(x, ", "true", ")"), 240),
        (("cel.bind(x, 1, ", "true", ")"), 240),
        (("!", "true", ""), 400),
        (("", "true", " && true"), 1000),
        (("[1].map(x, ", "1", ").size()"), 120),
    ] {
        let (open, inner, close) = deep;
        let expression = nested(open, inner, close, n);
        let outcome = Program::compile_value(&expression).map(|program| program.evaluate(&gpu()));
        assert!(outcome.is_ok(), "{n} times {open}{close}: {outcome:?}");
        let deeper = nested(
            open,
            inner,
            close,
            10 * 1024 / (open.len() + close.len()).max(1),
        );
        let _ = Program::compile_value(&deeper).map(|program| program.evaluate(&gpu()));
    }
    assert!(Program::compile(&nested("(", "true", ")", 250)).is_err());
    assert!(Program::compile(&format!("{} > 0", nested("", "1", "+1", 250))).is_err());
}

#[test]
fn what_would_fill_the_memory_is_too_expensive() {
    let doubled = (0..40).fold("l".to_owned(), |inner, _| {
        format!("cel.bind(l, l + l, {inner})")
    });
    let doubled = format!("cel.bind(l, [1, 2, 3, 4], {doubled}.size() > 0)");
    let text = (0..40).fold("t".to_owned(), |inner, _| {
        format!("cel.bind(t, t + t, {inner})")
    });
    let text = format!("cel.bind(t, \"a\", {text}.size() > 0)");
    let replaced =
        r#"cel.bind(t, lists.range(9999).map(i, "abcdefgh").join(), t.replace("", t).size() > 0)"#;
    for expression in [
        doubled.as_str(),
        &text,
        replaced,
        "cel.bind(l, lists.range(90000), [l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l].flatten().size() > 0)",
        "lists.range(9000000).size() > 0",
        r#"'%.999999999f'.format([1.0]) == """#,
        r#"quantity("1e999999999").add(1).isGreaterThan(quantity("1"))"#,
    ] {
        let error = evaluate(expression).expect_err(expression);
        assert!(
            error.contains("cost limit") || error.contains("too expensive"),
            "{expression}: {error}"
        );
    }
}
