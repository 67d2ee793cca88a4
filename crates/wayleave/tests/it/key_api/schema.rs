//! The part of JSON Schema (2020-12) that the description uses. An unknown keyword is an error of the description.

use regex::Regex;
use serde_json::Value;

/// What says nothing about values.
const SILENT: [&str; 3] = ["description", "example", "format"];

/// Whether a value is as the schema says; `root` has what references name.
pub(super) fn check(root: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    for (keyword, of) in schema.as_object().expect("a schema") {
        let fault = |what: String| Err(format!("{at}: {what}: {value}"));
        let length = || value.as_str().map_or(0, |text| text.chars().count()) as u64;
        match keyword.as_str() {
            "$ref" => {
                let pointer = of.as_str().and_then(|text| text.strip_prefix('#')).expect("a reference within");
                let named = root.pointer(pointer).unwrap_or_else(|| panic!("{at}: {pointer} is not there"));
                check(root, named, value, at)?;
            }
            "type" => {
                let types: Vec<&str> = match of {
                    Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
                    one => one.as_str().into_iter().collect(),
                };
                if !types.iter().any(|name| is_type(name, value)) {
                    return fault(format!("not of type {types:?}"));
                }
            }
            "allOf" => {
                let mut all = of.as_array().expect("a list").iter();
                all.try_for_each(|schema| check(root, schema, value, at))?;
            }
            "oneOf" => {
                let all = of.as_array().expect("a list");
                if !all.iter().any(|schema| check(root, schema, value, at).is_ok()) {
                    return fault(format!("none of {of}"));
                }
            }
            "enum" if !of.as_array().expect("a list").contains(value) => return fault(format!("none of {of}")),
            "pattern" if value.is_string() => {
                let pattern = Regex::new(of.as_str().expect("a pattern")).expect("a pattern");
                if !pattern.is_match(value.as_str().unwrap_or_default()) {
                    return fault(format!("not {of}"));
                }
            }
            "maxLength" if value.is_string() && length() > of.as_u64().expect("a number") => {
                return fault(format!("longer than {of}"));
            }
            "minimum" | "maximum" if value.is_number() => {
                let (found, limit) = (value.as_i64().expect("an integer"), of.as_i64().expect("an integer"));
                if keyword == "minimum" && found < limit || keyword == "maximum" && found > limit {
                    return fault(format!("{keyword} {limit}"));
                }
            }
            "minItems" | "maxItems" => {
                let (found, limit) = (value.as_array().map_or(0, Vec::len) as u64, of.as_u64().expect("a number"));
                if keyword == "minItems" && found < limit || keyword == "maxItems" && found > limit {
                    return fault(format!("{keyword} {limit}"));
                }
            }
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(root, of, item, &format!("{at}[{index}]"))?;
                }
            }
            "properties" => {
                for (name, property) in of.as_object().expect("properties") {
                    if let Some(value) = value.get(name) {
                        check(root, property, value, &format!("{at}.{name}"))?;
                    }
                }
            }
            "required" => {
                let missing = of.as_array().expect("a list").iter().filter_map(Value::as_str);
                if let Some(name) = missing.into_iter().find(|name| value.get(name).is_none()) {
                    return fault(format!("{name} is missing"));
                }
            }
            // A map: its values have one schema.
            "additionalProperties" if of.is_object() => {
                for (name, value) in value.as_object().into_iter().flatten() {
                    check(root, of, value, &format!("{at}.{name}"))?;
                }
            }
            "propertyNames" => {
                for (name, _) in value.as_object().into_iter().flatten() {
                    check(root, of, &Value::String(name.clone()), at)?;
                }
            }
            "additionalProperties" => {
                assert_eq!(of, &Value::Bool(false), "{at}");
                let known = schema["properties"].as_object().expect("properties");
                let unknown = value.as_object().into_iter().flatten().find(|(name, _)| !known.contains_key(*name));
                if let Some((name, _)) = unknown {
                    return fault(format!("{name} is not described"));
                }
            }
            "enum" | "pattern" | "maxLength" | "minimum" | "maximum" => {}
            silent if SILENT.contains(&silent) => {}
            unknown => panic!("{at}: the description uses `{unknown}`, which this test does not know"),
        }
    }
    Ok(())
}

fn is_type(name: &str, value: &Value) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "integer" => value.is_i64() || value.is_u64(),
        other => panic!("the type {other}"),
    }
}

#[test]
fn a_value_that_differs_from_its_schema_is_found() {
    use serde_json::json;
    let root = json!({ "s": { "type": "object", "properties": { "n": { "type": ["integer", "null"], "maximum": 3 } },
        "required": ["n"], "additionalProperties": false } });
    let map = json!({ "type": "object", "additionalProperties": { "type": "string" }, "propertyNames": { "type": "string" } });
    assert!(
        check(&root, &map, &json!({ "a": "b" }), "").is_ok() && check(&root, &map, &json!({ "a": 1 }), "").is_err()
    );
    let of = json!({ "type": "array", "items": { "$ref": "#/s" }, "minItems": 1 });
    let good = [json!([{ "n": 3 }]), json!([{ "n": null }, { "n": -1 }])];
    assert!(good.iter().all(|value| check(&root, &of, value, "").is_ok()));
    for bad in
        [json!([]), json!({}), json!([{}]), json!([{ "n": 4 }]), json!([{ "n": "3" }]), json!([{ "n": 1, "m": 1 }])]
    {
        assert!(check(&root, &of, &bad, "").is_err(), "{bad}");
    }
}
