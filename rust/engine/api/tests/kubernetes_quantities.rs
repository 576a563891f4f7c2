//! Compares quantities with the results of Kubernetes' own library (tests/api/oracle).

use std::path::Path;

use dra_api::{Quantity, QuantityFormat};
use serde_json::Value;

#[test]
fn quantities_are_what_kubernetes_makes_of_them() {
    let default =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/api/golden/quantities.jsonl");
    let path = std::env::var_os("DRA_API_QUANTITIES").map_or(default, Into::into);
    let golden = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut before: Option<Quantity> = None;
    let mut count = 0;
    for line in golden.lines() {
        let known: Value = serde_json::from_str(line).expect("a line of JSON");
        let text = known["text"].as_str().expect("a text");
        let quantity = Quantity::parse(text);
        assert_eq!(
            quantity.is_err(),
            known["refused"] == true,
            "{text}: {quantity:?}"
        );
        let Ok(quantity) = quantity else { continue };
        let format = match quantity.format() {
            QuantityFormat::BinarySi => "BinarySI",
            QuantityFormat::DecimalSi => "DecimalSI",
            QuantityFormat::DecimalExponent => "DecimalExponent",
        };
        assert_eq!(
            quantity.to_string(),
            known["canonical"],
            "{text}: canonical"
        );
        assert_eq!(format, known["format"], "{text}: format");
        assert_eq!(quantity.as_i64(), known["int64"].as_i64(), "{text}: int64");
        assert_eq!(
            quantity.value(),
            known["value"].as_i64().unwrap_or(0),
            "{text}: value"
        );
        assert_eq!(
            quantity.milli_value(),
            known["milli"].as_i64().unwrap_or(0),
            "{text}: milli"
        );
        let float: f64 = known["float"]
            .as_str()
            .and_then(|float| float.parse().ok())
            .expect("a float");
        assert_eq!(
            quantity.as_approximate_float().to_bits(),
            float.to_bits(),
            "{text}: float"
        );
        if let Some(before) = &before {
            let compared = quantity.cmp(before) as i64;
            assert_eq!(
                Some(compared),
                known["compared"].as_i64(),
                "{text} and {before}: compared"
            );
            let (mut sum, mut less) = (quantity.clone(), quantity.clone());
            sum.add(before);
            less.sub(before);
            assert_eq!(sum.to_string(), known["sum"], "{text} + {before}");
            assert_eq!(less.to_string(), known["less"], "{text} - {before}");
        }
        before = Some(quantity);
        count += 1;
    }
    assert!(count > 500, "only {count} quantities");
}
