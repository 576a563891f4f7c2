//! Quantities such as `40Gi`.

use std::cmp::Ordering;
use std::sync::Arc;

use dra_api::{Quantity, QuantityError, QuantityFormat};

use super::{Signature, global, member};
use crate::budget::Budget;
use crate::fault::Fault;
use crate::value::{Amount, Value};

#[rustfmt::skip]
pub(super) const TABLE: &[Signature] = &[
    global(
        "string_to_quantity",
        "quantity",
        "string",
        "quantity",
        |args, budget| {
            let quantity = parse(&args[0], budget)?;
            Ok(read(quantity.map_err(|error| Fault::new(error.to_string()))?))
        },
    ),
    global("is_quantity_string", "isQuantity", "string", "bool", |args, budget| Ok(Value::Bool(parse(&args[0], budget)?.is_ok()))),
    global("quantity_sign", "sign", "quantity", "int", |args, budget| Ok(Value::Int(amount(&args[0], budget)?.quantity.sign() as i64))),
    member("quantity_is_greater_than", "isGreaterThan", "quantity; quantity", "bool", |args, budget| Ok(Value::Bool(order(args, budget)?.is_gt()))),
    member("quantity_is_less_than", "isLessThan", "quantity; quantity", "bool", |args, budget| Ok(Value::Bool(order(args, budget)?.is_lt()))),
    member("quantity_compare_to", "compareTo", "quantity; quantity", "int", |args, budget| Ok(Value::Int(order(args, budget)? as i64))),
    member(
        "quantity_get_float",
        "asApproximateFloat",
        "quantity",
        "double",
        |args, budget| {
            Ok(Value::Double(
                amount(&args[0], budget)?.quantity.as_approximate_float(),
            ))
        },
    ),
    member("quantity_get_int", "asInteger", "quantity", "int", |args, budget| {
        let value = amount(&args[0], budget)?.quantity.as_i64();
        value
            .map(Value::Int)
            .ok_or_else(|| Fault::new("the quantity is not an integer of 64 bits"))
    }),
    member("quantity_is_integer", "isInteger", "quantity", "bool", |args, budget| Ok(Value::Bool(amount(&args[0], budget)?.quantity.as_i64().is_some()))),
    member("quantity_add", "add", "quantity; quantity", "quantity", |args, budget| compute(args, Quantity::add, budget)),
    member("quantity_add_int", "add", "quantity; int", "quantity", |args, budget| compute(args, Quantity::add, budget)),
    member("quantity_sub", "sub", "quantity; quantity", "quantity", |args, budget| compute(args, Quantity::sub, budget)),
    member("quantity_sub_int", "sub", "quantity; int", "quantity", |args, budget| compute(args, Quantity::sub, budget)),
];

/// The value of a parsed quantity.
pub(crate) fn read(quantity: Quantity) -> Value {
    let huge = is_huge(&quantity);
    Value::Quantity(Arc::new(Amount {
        quantity,
        computed: false,
        huge,
    }))
}

/// Parses a text. The outer error ends the evaluation.
fn parse(text: &Value, budget: &mut Budget) -> Result<Result<Quantity, QuantityError>, Fault> {
    let text = text.as_str()?;
    budget.charge_shared()?;
    // Upper bound: the text, its digits, the number, and an error that quotes it.
    budget.charge(text.len().saturating_mul(4))?;
    budget.count_steps(text.len())?;
    Ok(Quantity::parse(text))
}

fn amount<'v>(value: &'v Value, budget: &mut Budget) -> Result<&'v Amount, Fault> {
    match value {
        Value::Quantity(amount) => {
            // Formatting and comparison of numbers with many digits are slow.
            budget.count_steps(amount.quantity.heap_bytes())?;
            Ok(amount)
        }
        other => Err(Fault::no_overload_for(other)),
    }
}

fn order(args: &[Value], budget: &mut Budget) -> Result<Ordering, Fault> {
    let left = amount(&args[0], budget)?;
    Ok(left.quantity.cmp(&amount(&args[1], budget)?.quantity))
}

/// Whether the exponent is so large that an addition would take minutes.
fn is_huge(quantity: &Quantity) -> bool {
    let text = quantity.as_given();
    let exponent = text.rsplit(['e', 'E']).next().unwrap_or_default();
    exponent.len() < text.len()
        && exponent
            .trim_start_matches(['+', '-'])
            .trim_start_matches('0')
            .len()
            > 5
}

fn compute(
    args: &[Value],
    operation: fn(&mut Quantity, &Quantity),
    budget: &mut Budget,
) -> Result<Value, Fault> {
    let is_huge = |value: &Value| matches!(value, Value::Quantity(amount) if amount.huge);
    if args.iter().any(is_huge) {
        return Err(Fault::TooExpensive);
    }
    let mut quantity = amount(&args[0], budget)?.quantity.clone();
    let other = match &args[1] {
        Value::Int(value) => &Quantity::new(*value, QuantityFormat::DecimalExponent),
        other => &amount(other, budget)?.quantity,
    };
    budget.charge_shared()?;
    budget.charge(quantity.sum_bytes(other).saturating_mul(3))?;
    operation(&mut quantity, other);
    Ok(Value::Quantity(Arc::new(Amount {
        quantity,
        computed: true,
        huge: false,
    })))
}
