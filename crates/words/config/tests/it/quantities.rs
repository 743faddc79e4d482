//! Quantities: what they mean, what is refused, and that printing and reading are inverse.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;
use tidegate_config::bounds::COUNT_MAX;
use tidegate_config::quantity::{Bytes, Count, Cpus, Indices, Ports, Share, Span};
use tidegate_config::scalar::{CalendarDate, CivilTime, ClockTime, Zone};

#[test]
fn counts_are_powers_of_1000_and_of_1024() {
    for (text, value) in [
        ("0", 0),
        ("500", 500),
        ("500k", 500_000),
        ("2M", 2_000_000),
        ("2G", 2_000_000_000),
        ("1.5M", 1_500_000),
        ("8Ki", 8_192),
        ("128Ki", 131_072),
        ("1Mi", 1_048_576),
        ("1Gi", 1_073_741_824),
        ("0.5Ki", 512),
        ("9007199254740991", COUNT_MAX),
    ] {
        assert_eq!(text.parse(), Ok(Count(value)), "{text}");
    }
    for text in [
        "",
        "-1",
        "+1",
        "1K",
        "1 k",
        "1kk",
        "k",
        "1e3",
        ".5k",
        "5.k",
        "1.0001k",
        "0x10",
        "1_000",
        "9007199254740992",
        "99999999999999999999G",
        "½",
    ] {
        assert!(text.parse::<Count>().is_err(), "{text}");
    }
}

#[test]
fn memory_always_has_its_unit() {
    for (text, value) in [
        ("288GB", 288_000_000_000),
        ("2TB", 2_000_000_000_000),
        ("268GiB", 268 << 30),
        ("32MiB", 32 << 20),
        ("1.5TB", 1_500_000_000_000),
        ("0B", 0),
    ] {
        assert_eq!(text.parse(), Ok(Bytes(value)), "{text}");
    }
    for text in ["288", "288G", "288gb", "288Gi", "GB", "-1GB", "1.0000000001kB", "9007199254741kB"] {
        assert!(text.parse::<Bytes>().is_err(), "{text}");
    }
}

#[test]
fn durations_go_from_large_units_to_small_ones() {
    for (text, ms) in [
        ("0s", 0),
        ("250ms", 250),
        ("30s", 30_000),
        ("5m", 300_000),
        ("1h30m", 5_400_000),
        ("7d", 604_800_000),
        ("1.5h", 5_400_000),
        ("366d", 31_622_400_000),
    ] {
        assert_eq!(text.parse(), Ok(Span(Duration::from_millis(ms))), "{text}");
    }
    for text in ["", "0", "5", "5 m", "m", "30m1h", "1h1h", "-5m", "5M", "366d1ms", "0.5ms", "99999999999999999999d"] {
        assert!(text.parse::<Span>().is_err(), "{text}");
    }
}

#[test]
fn shares_indices_ports_and_cpus() {
    assert_eq!("10%".parse(), Ok(Share::Millipercent(10_000)));
    assert_eq!("0.5%".parse(), Ok(Share::Millipercent(500)));
    assert_eq!("500GB".parse(), Ok(Share::Bytes(Bytes(500_000_000_000))));
    for text in ["100.001%", "-1%", "%", "10", "10 %"] {
        assert!(text.parse::<Share>().is_err(), "{text}");
    }
    assert_eq!("0-3,6".parse(), Ok(Indices(BTreeSet::from([0, 1, 2, 3, 6]))));
    assert_eq!("5".parse(), Ok(Indices(BTreeSet::from([5]))));
    assert_eq!("0-8191".parse::<Indices>().unwrap().0.len(), 8_192);
    for text in ["", "3-1", "0-3,3", "a", "0-", "-3", "0--3", "8192", "0-4294967295", "1,,2"] {
        assert!(text.parse::<Indices>().is_err(), "{text}");
    }
    assert_eq!("8001-8099".parse(), Ok(Ports(8001..=8099)));
    assert_eq!("8001".parse(), Ok(Ports(8001..=8001)));
    for text in ["0-10", "8099-8001", "1-65536", "", "8001-"] {
        assert!(text.parse::<Ports>().is_err(), "{text}");
    }
    assert_eq!("0.5".parse(), Ok(Cpus { milli: 500 }));
    assert_eq!("500m".parse(), Ok(Cpus { milli: 500 }));
    assert_eq!("8192".parse(), Ok(Cpus { milli: 8_192_000 }));
    for text in ["0", "0m", "8193", "0.0001", "m", "-1"] {
        assert!(text.parse::<Cpus>().is_err(), "{text}");
    }
}

#[test]
fn civil_times_have_one_form_each() {
    assert_eq!("08:00".parse::<ClockTime>().unwrap().to_string(), "08:00:00");
    assert_eq!("2026-12-24".parse::<CalendarDate>().unwrap().to_string(), "2026-12-24");
    assert_eq!("2026-12-05T00:00".parse::<CivilTime>().unwrap().to_string(), "2026-12-05T00:00:00");
    assert_eq!("Asia/Seoul".parse::<Zone>().unwrap().to_string(), "Asia/Seoul");
    assert_eq!("UTC".parse::<Zone>().unwrap().to_string(), "UTC");
    for text in ["8:00", "24:00", "08:60", "08:00Z", "T08:00", "0800"] {
        assert!(text.parse::<ClockTime>().is_err(), "{text}");
    }
    for text in ["2026-02-30", "2026-1-1", "20261224", "2026-13-01"] {
        assert!(text.parse::<CalendarDate>().is_err(), "{text}");
    }
    for text in ["2026-12-05T00:00Z", "2026-12-05T00:00+09:00", "2026-12-05", "2026-12-05 00:00", "2026-12-05T25:00"] {
        assert!(text.parse::<CivilTime>().is_err(), "{text}");
    }
    for text in ["Seoul", "", "KST+9", "Asia/Soul", "../etc/passwd"] {
        assert!(text.parse::<Zone>().is_err(), "{text}");
    }
}

proptest! {
    #[test]
    fn what_is_printed_is_read_back(count in 0..=COUNT_MAX, ms in 0..=31_622_400_000_u64, share in 0..=100_000_u32, milli in 1..=8_192_000_u32) {
        prop_assert_eq!(Count(count).to_string().parse(), Ok(Count(count)));
        prop_assert_eq!(Bytes(count).to_string().parse(), Ok(Bytes(count)));
        let span = Span(Duration::from_millis(ms));
        prop_assert_eq!(span.to_string().parse(), Ok(span));
        prop_assert_eq!(Share::Millipercent(share).to_string().parse(), Ok(Share::Millipercent(share)));
        prop_assert_eq!(Cpus { milli }.to_string().parse(), Ok(Cpus { milli }));
    }

    #[test]
    fn round_counts_are_read_back_from_their_units(number in 1..8_000_u64, unit in prop::sample::select(vec![("k", 1_000_u64), ("M", 1_000_000), ("G", 1_000_000_000), ("Ki", 1_024), ("Mi", 1 << 20), ("Gi", 1 << 30)])) {
        let count: Count = format!("{number}{}", unit.0).parse().unwrap();
        prop_assert_eq!(count.0, number * unit.1);
        prop_assert_eq!(count.to_string().parse(), Ok(count));
    }

    #[test]
    fn sets_are_read_back(set in prop::collection::btree_set(0..8_192_u32, 1..200), first in 1..=u16::MAX, length in 0..1_000_u16) {
        let set = Indices(set);
        prop_assert_eq!(set.to_string().parse(), Ok(set));
        let ports = Ports(first..=first.saturating_add(length));
        prop_assert_eq!(ports.to_string().parse(), Ok(ports));
    }

    #[test]
    fn no_text_makes_a_quantity_panic(text in "[0-9a-zA-Z.,%:+ü -]{0,24}") {
        let _ = (text.parse::<Count>(), text.parse::<Bytes>(), text.parse::<Span>(), text.parse::<Share>());
        let _ = (text.parse::<Indices>(), text.parse::<Ports>(), text.parse::<Cpus>());
        let _ = (text.parse::<ClockTime>(), text.parse::<CalendarDate>(), text.parse::<CivilTime>(), text.parse::<Zone>());
    }
}
