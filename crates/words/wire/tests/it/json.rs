use proptest::prelude::*;
use tidegate_wire::json::{DEPTH_MAX, Document, Kind, MEMBERS_MAX, parse};

#[test]
fn members_keep_their_bytes_and_their_kinds() {
    let text = br#" {"a" : "x\n\u00e9\ud83d\ude00", "b":[1,-2.5e3,true,null,{"c":"d"}],"n":18446744073709551615} "#;
    let object = parse(text).unwrap();
    assert_eq!(object.get("a").unwrap().as_str().unwrap(), "x\né😀");
    let list: Vec<_> = object.get("b").unwrap().array().unwrap().collect();
    assert_eq!(
        list.iter().map(|value| value.kind).collect::<Vec<_>>(),
        [Kind::Number, Kind::Number, Kind::Bool, Kind::Null, Kind::Object]
    );
    assert_eq!(list[0].as_u64(), Some(1));
    assert_eq!((list[1].as_i64(), list[1].as_f64()), (None, Some(-2500.0)));
    assert_eq!(list[4].object().unwrap().get("c").unwrap().as_str().unwrap(), "d");
    assert_eq!(object.get("n").unwrap().as_u64(), Some(u64::MAX));
    assert_eq!(object.members().map(|(key, _)| key.into_owned()).collect::<Vec<_>>(), ["a", "b", "n"]);
}

#[test]
fn what_has_two_readings_or_none_is_refused_and_the_place_is_said() {
    for (text, what, offset) in [
        ("", "expected an object", 0),
        ("[]", "expected an object", 0),
        ("\u{feff}{}", "expected an object", 0),
        ("{} x", "text after the object", 3),
        ("{}{}", "text after the object", 2),
        (r#"{"a":1,"a":2}"#, "key given twice", 7),
        (r#"{"a":1,"\u0061":2}"#, "key given twice", 7),
        (r#"{"x":[{"b":{"c":1,"c":1}}]}"#, "key given twice", 18),
        (r#"{"a":"\ud800"}"#, "bad escape", 6),
        (r#"{"a":"\ud800\u0041"}"#, "bad escape", 6),
        (r#"{"a":"\udc00"}"#, "bad escape", 6),
        (r#"{"a":"\x"}"#, "bad escape", 6),
        ("{\"a\":\"\n\"}", "control character in a string", 6),
        (r#"{"a":"#, "expected a value", 5),
        (r#"{"a":"x"#, "string without end", 7),
        (r#"{"a":NaN}"#, "expected a value", 5),
        (r#"{"a":-}"#, "expected a digit", 6),
        (r#"{"a":01}"#, "expected , or }", 6),
        (r#"{"a":1.}"#, "expected a digit", 7),
        (r#"{"a":1e}"#, "expected a digit", 7),
        (r#"{"a":+1}"#, "expected a value", 5),
        (r#"{"a":tru}"#, "expected a value", 5),
        (r#"{"a":1,}"#, "expected a key", 7),
        (r#"{"a":[1,]}"#, "expected a value", 8),
        (r#"{a:1}"#, "expected a key", 1),
        (r#"{"a" 1}"#, "expected :", 5),
    ] {
        let error = parse(text.as_bytes()).unwrap_err();
        assert_eq!((error.what, error.offset), (what, offset), "{text}");
    }
    assert_eq!(parse(b"{\"a\":\"\xff\"}").unwrap_err().offset, 6);
}

#[test]
fn depth_is_bounded_and_the_bound_passes() {
    let nested = |depth: usize| format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
    assert!(parse(nested(DEPTH_MAX).as_bytes()).is_ok());
    assert_eq!(parse(nested(DEPTH_MAX + 1).as_bytes()).unwrap_err().what, "nested too deeply");
    let list = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    assert!(parse(list(DEPTH_MAX - 1).as_bytes()).is_ok());
    assert_eq!(parse(list(DEPTH_MAX).as_bytes()).unwrap_err().what, "nested too deeply");
}

#[test]
fn members_are_bounded_and_duplicates_are_found_among_many() {
    let object = |count: usize, last: &str| {
        let members: Vec<String> = (0..count).map(|i| format!("\"k{i}\":0")).collect();
        format!("{{{}{last}}}", members.join(","))
    };
    assert!(parse(object(MEMBERS_MAX, "").as_bytes()).is_ok());
    assert_eq!(parse(object(MEMBERS_MAX + 1, "").as_bytes()).unwrap_err().what, "too many members in one object");
    for count in [1, 15, 16, 17, 200] {
        assert!(parse(object(count, "").as_bytes()).is_ok());
        for key in ["k0", "\\u006b0"] {
            let text = object(count, &format!(",\"{key}\":1"));
            assert_eq!(parse(text.as_bytes()).unwrap_err().what, "key given twice", "{count} {key}");
        }
    }
}

#[test]
fn a_document_keeps_its_object() {
    let document = Document::parse(br#"{"model":"m"}"#.to_vec().into()).unwrap();
    assert_eq!(document.object().get("model").unwrap().as_str().unwrap(), "m");
}

/// Any JSON value, with keys and texts that need escapes.
pub(crate) fn value() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_filter("finite", |number| number.is_finite()).prop_map(Into::into),
        any::<String>().prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 48, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
            prop::collection::btree_map(any::<String>(), inner, 0..24)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Rebuilds a value through our reader alone.
fn reread(value: &tidegate_wire::json::Value<'_>) -> serde_json::Value {
    match value.kind {
        Kind::Null => serde_json::Value::Null,
        Kind::Bool => value.as_bool().unwrap().into(),
        Kind::Number => value.as_i64().map_or_else(|| value.as_f64().unwrap().into(), Into::into),
        Kind::String => value.as_str().unwrap().into(),
        Kind::Array => value.array().unwrap().map(|element| reread(&element)).collect(),
        Kind::Object => {
            value.object().unwrap().members().map(|(key, value)| (key.into_owned(), reread(&value))).collect()
        }
    }
}

proptest! {
    #[test]
    fn what_another_writer_wrote_is_read_the_same(value in value(), pretty in any::<bool>()) {
        let wrapped = serde_json::json!({"value": value});
        let text = if pretty { serde_json::to_vec_pretty(&wrapped) } else { serde_json::to_vec(&wrapped) }.unwrap();
        let object = parse(&text).unwrap();
        prop_assert_eq!(reread(&object.get("value").unwrap()), value);
    }

    #[test]
    fn what_another_reader_refuses_is_refused(mut text in value().prop_map(|v| serde_json::to_vec(&serde_json::json!({"v": v})).unwrap()),
        at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let at = at.index(text.len());
        text[at] = byte;
        if parse(&text).is_ok() {
            // Grammar alone: the other reader's numbers end where a double does.
            prop_assert!(serde_json::from_slice::<serde::de::IgnoredAny>(&text).is_ok());
        }
    }

    #[test]
    fn strings_survive_writing_and_reading(text in any::<String>()) {
        let mut out = b"{\"s\":".to_vec();
        tidegate_wire::json::write_str(&mut out, &text);
        out.push(b'}');
        prop_assert_eq!(parse(&out).unwrap().get("s").unwrap().as_str().unwrap(), text);
    }
}
