use std::cmp::Ordering;

use proptest::prelude::*;

use super::*;

fn quantity(text: &str) -> Quantity {
    Quantity::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn units_of_different_families_compare_by_value() {
    assert_eq!(quantity("1Gi"), quantity("1024Mi"));
    assert_eq!(quantity("1Gi"), quantity("1073741824"));
    assert_eq!(quantity("1G").cmp(&quantity("1Gi")), Ordering::Less);
    assert_eq!(quantity("-1Gi").cmp(&quantity("-1G")), Ordering::Less);
    assert_eq!(
        quantity("1e2147483646").cmp(&quantity("1e2147483645")),
        Ordering::Greater
    );
}

#[test]
fn adding_keeps_the_format_of_the_first_unless_it_is_zero() {
    let mut sum = quantity("1Gi");
    sum.add(&quantity("1G"));
    assert_eq!(sum.to_string(), "2073741824");
    let mut sum = Quantity::default();
    sum.add(&quantity("2Gi"));
    assert_eq!(sum.to_string(), "2Gi");
    sum.sub(&quantity("512Mi"));
    assert_eq!(sum.to_string(), "1536Mi");
}

#[test]
fn json_keeps_what_was_given() {
    for text in ["\"1000m\"", "\"0.5Gi\"", "\"1e3\""] {
        let read: Quantity = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
    }
    let read: Quantity = serde_json::from_str("7").unwrap();
    assert_eq!(serde_json::to_string(&read).unwrap(), "\"7\"");
}

#[test]
fn an_object_holds_no_number_whose_sum_takes_megabytes() {
    for text in ["1e308", "-1e308", "1e-2147483648"] {
        let read = serde_json::from_value::<Quantity>(text.into());
        assert!(read.is_ok(), "{text}: {read:?}");
    }
    let digits = "9".repeat(400);
    for text in ["1e311", "-1e311", "1e10000000", "0e2147483647", &digits] {
        let error = serde_json::from_value::<Quantity>(text.into()).unwrap_err();
        assert!(error.to_string().contains("too large"), "{text}: {error}");
    }
}

#[test]
fn absurd_exponents_are_answered_at_once() {
    assert_eq!(quantity("1e-2147483648").to_string(), "1e-9");
    assert!(matches!(
        Quantity::parse("1234567890123456789e2000000000"),
        Err(QuantityError::Exponent(_))
    ));
}

#[test]
fn a_canonical_form_with_an_absurd_exponent_is_read() {
    for text in [
        "123456000433007753e118903",
        "-999999999999999999e2147483644",
    ] {
        let given = quantity(text);
        assert_eq!(quantity(&given.to_string()), given, "{text}");
    }
}

fn any_quantity() -> impl Strategy<Value = Quantity> {
    let suffix = prop::sample::select(vec![
        "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e3",
        "E-2", "e20",
    ]);
    ("[+-]?[0-9]{1,22}(\\.[0-9]{0,12})?", suffix)
        .prop_map(|(number, suffix)| quantity(&format!("{number}{suffix}")))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,12}") {
        let _ = Quantity::parse(&text);
    }

    #[test]
    fn order_is_total_and_agrees_with_subtraction(a in any_quantity(), b in any_quantity()) {
        let mut difference = a.clone();
        difference.sub(&b);
        prop_assert_eq!(difference.sign(), a.cmp(&b));
        prop_assert_eq!(a.cmp(&b), b.cmp(&a).reverse());
    }

    #[test]
    fn adding_and_subtracting_returns_to_the_start(a in any_quantity(), b in any_quantity()) {
        let mut sum = a.clone();
        sum.add(&b);
        sum.sub(&b);
        prop_assert_eq!(sum, a);
    }
}
