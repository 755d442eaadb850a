//! Shown values as JSON; docs/guide.md describes the shape for users.

use cenote_layout::values::shown::ShownValue;
use serde_json::{Map, Value, json};

/// The largest whole number up to which each is a number of each JSON reader: 2^53 - 1.
const EXACT: u128 = (1 << 53) - 1;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// With what was left out, and what is damaged beside the elements.
fn list(mut items: Vec<Value>, more: u64, damage: &[String]) -> Value {
    items.extend(damage.iter().map(|what| json!({ "$damaged": what })));
    if more > 0 {
        items.push(json!({ "$more": more }));
    }
    Value::Array(items)
}

fn float(number: f64, text: String) -> Value {
    serde_json::Number::from_f64(number).map_or(Value::String(text), Value::Number)
}

fn structure(variant: Option<&str>, fields: &[(String, ShownValue)]) -> Value {
    let inner: Map<String, Value> =
        fields.iter().map(|(name, field)| (name.clone(), value(field))).collect();
    match variant {
        Some(variant) if fields.is_empty() => json!(variant),
        Some(variant) => json!({ variant: inner }),
        None => Value::Object(inner),
    }
}

pub(super) fn value(shown: &ShownValue) -> Value {
    match shown {
        ShownValue::Unit | ShownValue::Null => Value::Null,
        ShownValue::Bool(is) => json!(is),
        ShownValue::Char(letter) => json!(letter),
        ShownValue::Unsigned(number) => match u64::try_from(*number) {
            Ok(small) if *number <= EXACT => json!(small),
            _ => json!(number.to_string()),
        },
        ShownValue::Signed(number) => match i64::try_from(*number) {
            Ok(small) if number.unsigned_abs() <= EXACT => json!(small),
            _ => json!(number.to_string()),
        },
        ShownValue::Float32(number) => {
            // The shortest decimal that is this number, not all digits of its double.
            let text = number.to_string();
            float(text.parse().unwrap_or(f64::NAN), text)
        }
        ShownValue::Float64(number) => float(*number, number.to_string()),
        ShownValue::Text { text, more: 0 } => json!(text),
        ShownValue::Text { text, more } => json!({ "$text": text, "$more": more }),
        ShownValue::Bytes { bytes, more: 0 } => json!({ "$bytes": hex(bytes) }),
        ShownValue::Bytes { bytes, more } => json!({ "$bytes": hex(bytes), "$more": more }),
        ShownValue::Struct { variant, fields, .. } => structure(variant.as_deref(), fields),
        ShownValue::List { items, more, damage } => {
            list(items.iter().map(value).collect(), *more, damage)
        }
        ShownValue::Map { entries, more, damage } => {
            let pairs = entries.iter().map(|(key, of)| json!([value(key), value(of)]));
            list(pairs.collect(), *more, damage)
        }
        ShownValue::Pointer(target) => value(target),
        ShownValue::Again { addr, path } => json!({ "$same": path, "$at": format!("{addr:#x}") }),
        ShownValue::Deep { addr, type_name } => {
            json!({ "$deeper": type_name, "$at": format!("{addr:#x}") })
        }
        ShownValue::Cut => json!({ "$cut": true }),
        ShownValue::Destroyed => json!({ "$destroyed": true }),
        ShownValue::Damaged { what, bytes } if bytes.is_empty() => json!({ "$damaged": what }),
        ShownValue::Damaged { what, bytes } => json!({ "$damaged": what, "$bytes": hex(bytes) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_not_each_reader_has_are_strings() {
        let unsigned = |number| value(&ShownValue::Unsigned(number));
        assert_eq!(unsigned(EXACT), json!(9_007_199_254_740_991_u64));
        assert_eq!(unsigned(EXACT + 1), json!("9007199254740992"));
        assert_eq!(unsigned(u128::MAX), json!(u128::MAX.to_string()));
        let signed = |number| value(&ShownValue::Signed(number));
        assert_eq!(signed(-9_007_199_254_740_991), json!(-9_007_199_254_740_991_i64));
        assert_eq!(signed(-9_007_199_254_740_992), json!("-9007199254740992"));
        assert_eq!(value(&ShownValue::Float64(f64::NAN)), json!("NaN"));
        assert_eq!(value(&ShownValue::Float64(f64::NEG_INFINITY)), json!("-inf"));
        assert_eq!(value(&ShownValue::Float32(0.1)), json!(0.1));
    }
}
