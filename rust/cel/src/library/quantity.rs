//! Quantities such as `40Gi`.

use std::cmp::Ordering;
use std::sync::Arc;

use dra_api::{Quantity, QuantityFormat};

use super::{Signature, global, member};
use crate::fault::Fault;
use crate::value::{Amount, Value};

#[rustfmt::skip]
pub(super) const TABLE: &[Signature] = &[
    global(
        "string_to_quantity",
        "quantity",
        "string",
        "quantity",
        |args| {
            let quantity = Quantity::parse(args[0].as_str()?)
                .map_err(|error| Fault::new(error.to_string()))?;
            Ok(read(quantity))
        },
    ),
    global("is_quantity_string", "isQuantity", "string", "bool", |args| Ok(Value::Bool(Quantity::parse(args[0].as_str()?).is_ok()))),
    global("quantity_sign", "sign", "quantity", "int", |args| Ok(Value::Int(amount(&args[0])?.quantity.sign() as i64))),
    member("quantity_is_greater_than", "isGreaterThan", "quantity; quantity", "bool", |args| Ok(Value::Bool(order(args)?.is_gt()))),
    member("quantity_is_less_than", "isLessThan", "quantity; quantity", "bool", |args| Ok(Value::Bool(order(args)?.is_lt()))),
    member("quantity_compare_to", "compareTo", "quantity; quantity", "int", |args| Ok(Value::Int(order(args)? as i64))),
    member(
        "quantity_get_float",
        "asApproximateFloat",
        "quantity",
        "double",
        |args| {
            Ok(Value::Double(
                amount(&args[0])?.quantity.as_approximate_float(),
            ))
        },
    ),
    member("quantity_get_int", "asInteger", "quantity", "int", |args| {
        let value = amount(&args[0])?.quantity.as_i64();
        value
            .map(Value::Int)
            .ok_or_else(|| Fault::new("the quantity is not an integer of 64 bits"))
    }),
    member("quantity_is_integer", "isInteger", "quantity", "bool", |args| Ok(Value::Bool(amount(&args[0])?.quantity.as_i64().is_some()))),
    member("quantity_add", "add", "quantity; quantity", "quantity", |args| compute(args, Quantity::add)),
    member("quantity_add_int", "add", "quantity; int", "quantity", |args| compute(args, Quantity::add)),
    member("quantity_sub", "sub", "quantity; quantity", "quantity", |args| compute(args, Quantity::sub)),
    member("quantity_sub_int", "sub", "quantity; int", "quantity", |args| compute(args, Quantity::sub)),
];

/// A quantity as it was read.
pub(crate) fn read(quantity: Quantity) -> Value {
    let huge = is_huge(&quantity);
    Value::Quantity(Arc::new(Amount {
        quantity,
        computed: false,
        huge,
    }))
}

fn amount(value: &Value) -> Result<&Amount, Fault> {
    match value {
        Value::Quantity(amount) => Ok(amount),
        other => Err(Fault::no_overload_for(other)),
    }
}

fn order(args: &[Value]) -> Result<Ordering, Fault> {
    Ok(amount(&args[0])?.quantity.cmp(&amount(&args[1])?.quantity))
}

/// Whether adding to it would take minutes: an exponent that no real quantity has.
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

fn compute(args: &[Value], operation: fn(&mut Quantity, &Quantity)) -> Result<Value, Fault> {
    let is_huge = |value: &Value| matches!(value, Value::Quantity(amount) if amount.huge);
    if args.iter().any(is_huge) {
        return Err(Fault::TooExpensive);
    }
    let mut quantity = amount(&args[0])?.quantity.clone();
    match &args[1] {
        Value::Int(value) => operation(
            &mut quantity,
            &Quantity::new(*value, QuantityFormat::DecimalExponent),
        ),
        other => operation(&mut quantity, &amount(other)?.quantity),
    }
    Ok(Value::Quantity(Arc::new(Amount {
        quantity,
        computed: true,
        huge: false,
    })))
}
