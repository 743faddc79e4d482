//! Which credential of a request counts (attack case B15).

use proptest::prelude::*;
use tidegate_identity::credential::{CREDENTIAL_LEN_MAX, NoCredential, find};

const KEY: &str = "tg_test_0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcd3bvG7i";

fn of<'a>(headers: &'a [(&'a str, &'a str)], query: Option<&str>) -> Result<&'a str, NoCredential> {
    let headers = headers.iter().map(|(name, value)| (*name, value.as_bytes()));
    find(headers, query).map(|found| std::str::from_utf8(found).unwrap())
}

#[test]
fn the_three_forms_are_found_in_any_case_and_spacing() {
    let bearer = format!("Bearer {KEY}");
    let shouting = format!("BEARER   {KEY}  ");
    for (name, value) in [
        ("authorization", bearer.as_str()),
        ("Authorization", &shouting),
        ("x-api-key", KEY),
        ("X-API-Key", KEY),
        ("api-key", KEY),
    ] {
        assert_eq!(of(&[("host", "gate"), (name, value)], None), Ok(KEY), "{name}");
    }
}

#[test]
fn the_same_credential_in_several_forms_is_one() {
    let bearer = format!("Bearer {KEY}");
    assert_eq!(of(&[("authorization", &bearer), ("x-api-key", KEY), ("api-key", KEY)], None), Ok(KEY));
    assert_eq!(of(&[("x-api-key", KEY), ("x-api-key", KEY)], None), Ok(KEY));
}

#[test]
fn two_different_credentials_are_refused_in_every_pairing() {
    let forms =
        [("authorization", format!("Bearer {KEY}")), ("x-api-key", KEY.to_owned()), ("api-key", KEY.to_owned())];
    let others = [("authorization", "Bearer other"), ("x-api-key", "other"), ("api-key", "other")];
    for (name, value) in &forms {
        for other in others {
            assert_eq!(of(&[(name, value), other], None), Err(NoCredential::Conflict), "{name} {other:?}");
            assert_eq!(of(&[other, (name, value)], None), Err(NoCredential::Conflict), "{other:?} {name}");
        }
    }
}

#[test]
fn basic_and_other_schemes_are_refused_even_beside_a_good_key() {
    for value in ["Basic dXNlcjpwYXNz", "Bearer", "bearer\u{a0}x", "Digest a", "", KEY, "Bearerx y"] {
        assert_eq!(of(&[("authorization", value)], None), Err(NoCredential::Scheme), "{value:?}");
        let beside = [("x-api-key", KEY), ("authorization", value)];
        assert_eq!(of(&beside, None), Err(NoCredential::Scheme), "{value:?} beside a good key");
    }
}

#[test]
fn a_credential_in_the_query_is_refused_even_beside_a_good_key() {
    for name in [
        "key",
        "KEY",
        "api_key",
        "api-key",
        "apikey",
        "x-api-key",
        "access_token",
        "token",
        "%6bey",
        "k%65y",
        "api%5Fkey",
        "authorization",
    ] {
        for query in [format!("{name}={KEY}"), format!("a=b&{name}={KEY}"), name.to_owned()] {
            assert_eq!(of(&[("x-api-key", KEY)], Some(&query)), Err(NoCredential::Query), "{query}");
        }
    }
    for query in ["", "a=b", "keys=1", "monkey=1", "k=ey", "limit=3&after=key", "%", "%6", "%zz=1"] {
        assert_eq!(of(&[("x-api-key", KEY)], Some(query)), Ok(KEY), "{query}");
    }
}

#[test]
fn a_key_in_a_cookie_is_refused_and_other_cookies_are_nobodys_business() {
    let cookie = format!("a=b; key={KEY}");
    assert_eq!(of(&[("cookie", &cookie)], None), Err(NoCredential::Cookie));
    assert_eq!(of(&[("x-api-key", KEY), ("Cookie", &cookie)], None), Err(NoCredential::Cookie));
    assert_eq!(of(&[("x-api-key", KEY), ("cookie", "lb=7f3a; tg=1")], None), Ok(KEY));
    assert_eq!(of(&[("cookie", "session=abc")], None), Err(NoCredential::Missing));
}

#[test]
fn lengths_are_bounded() {
    let longest = "k".repeat(CREDENTIAL_LEN_MAX);
    let longer = "k".repeat(CREDENTIAL_LEN_MAX + 1);
    assert_eq!(of(&[("api-key", &longest)], None), Ok(longest.as_str()));
    assert_eq!(of(&[("api-key", &longer)], None), Err(NoCredential::Length));
    assert_eq!(of(&[("api-key", &"k".repeat(1 << 20))], None), Err(NoCredential::Length));
    for empty in ["", "   "] {
        assert_eq!(of(&[("api-key", empty)], None), Err(NoCredential::Length));
    }
    assert_eq!(of(&[("authorization", "Bearer   ")], None), Err(NoCredential::Length));
    assert_eq!(of(&[], None), Err(NoCredential::Missing));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever comes in: what is found stands in an accepted header, and nothing panics.
    #[test]
    fn what_is_found_was_sent_in_an_accepted_form(
        headers in prop::collection::vec(
            (
                prop::sample::select(vec!["authorization", "x-api-key", "api-key", "cookie", "host"]),
                prop::collection::vec(any::<u8>(), 0..40),
            ),
            0..5,
        ),
        query in prop::option::of(".{0,30}"),
    ) {
        let sent = headers.iter().map(|(name, value)| (*name, value.as_slice()));
        if let Ok(found) = find(sent, query.as_deref()) {
            let accepted = |(name, value): &(&str, Vec<u8>)| {
                !matches!(*name, "cookie" | "host") && value.windows(found.len().max(1)).any(|part| part == found)
            };
            prop_assert!(headers.iter().any(accepted));
        }
    }
}
