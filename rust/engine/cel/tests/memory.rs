//! Compares the heap memory of evaluations with the charged memory.

#![allow(clippy::unwrap_used)]

use dra_cel::{DeviceInput, MEMORY_LIMIT_BYTES, Program};
use peak_alloc::PeakAlloc;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// A deterministic pseudo-random generator.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn pick<'t>(&mut self, from: &[&'t str]) -> &'t str {
        from[self.below(from.len())]
    }
}

const TEXT_STEPS: &[&str] = &[
    "X + X",
    "X.replace(\"a\", X)",
    "X.replace(\"\", \"aaaaaaaa\")",
    "[X, X, X, X].join(X)",
    "\"%s%s%s%s%s%s%s%s\".format([X, X, X, X, X, X, X, X])",
    "\"%s\".format([[X, X, {1: X}]])",
    "\"%x\".format([X])",
    "strings.quote(X)",
    "X.upperAscii().lowerAscii()",
    "X.split(\"\").join(\"bb\")",
    "X.split(\"a\").map(p, p + X).join()",
    "X.findAll(\"a\").join(\"a\")",
    "X.substring(1) + X.trim()",
    "string(bytes(X)) + X",
    "lists.range(100).map(i, X + string(i)).join()",
    "url(\"https://h/\" + X).getEscapedPath()",
    "X.matches(\"^a+$\") ? X + \"a\" : X",
];

const LIST_STEPS: &[&str] = &[
    "X + X",
    "[X, X, X, X].flatten()",
    "X.map(i, i)",
    "X.filter(i, true)",
    "X.reverse()",
    "X.slice(0, 1) + X",
    "X.map(i, [i, i]).flatten()",
    "X.distinct() + X",
    "X + lists.range(10000)",
    "X.sortBy(i, -i)",
    "X.transformList(i, v, v + i)",
    "X.map(i, {i: X}).map(m, 1)",
    "lists.range(200).map(i, X).flatten()",
    "cel.bind(g, [], X.all(i, size(g + [i]) > 0) ? g : g)",
];

fn expression(random: &mut Random) -> String {
    let (steps, first, last) = if random.below(2) == 0 {
        (TEXT_STEPS, "\"aaaaaaaaaaaaaaaa\"", "X.size() >= 0")
    } else {
        (LIST_STEPS, "[1, 2, 3, 4]", "X.size() >= 0")
    };
    let levels = 3 + random.below(16);
    let mut text = last.replace('X', &format!("x{levels}"));
    for level in (1..=levels).rev() {
        let step = random.pick(steps).replace('X', &format!("x{}", level - 1));
        text = format!("cel.bind(x{level}, {step}, {text})");
    }
    format!("cel.bind(x0, {first}, {text})")
}

#[test]
fn no_expression_takes_more_than_twice_its_budget() {
    let device = serde_json::from_str(r#"{"name": "gpu-0"}"#).unwrap();
    let device = DeviceInput::new("d.example.com", &device).unwrap();
    let mut random = Random(20_261_122);
    let (mut refused, mut evaluated, mut highest) = (0, 0, 0);
    for _ in 0..150 {
        let text = expression(&mut random);
        let program = Program::compile(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        HEAP.reset_peak_usage();
        let before = HEAP.current_usage();
        let outcome = program.matches(&device);
        let peak = HEAP.peak_usage() - before;
        assert!(
            peak < 2 * MEMORY_LIMIT_BYTES,
            "{peak} bytes for {text}: {outcome:?}"
        );
        highest = highest.max(peak);
        match outcome {
            Ok(_) => evaluated += 1,
            Err(_) => refused += 1,
        }
    }
    assert!(
        refused > 15 && evaluated > 15,
        "{refused} refused, {evaluated} evaluated"
    );
    assert!(
        highest > MEMORY_LIMIT_BYTES / 2,
        "only {highest} bytes at most"
    );
}
