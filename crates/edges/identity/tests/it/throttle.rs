//! Failures by peer (attack case B19).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use tidegate_core::{Case, Fault, Monotonic};
use tidegate_identity::PeerThrottle;
use tidegate_identity::throttle::{FAILURE_FORGIVEN, FAILURES_BURST, PEERS_MAX};

const NOW: Monotonic = Monotonic::from_ms(1_000_000);

fn peer(n: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0a00_0000 + n).into()
}

fn failure() -> Fault {
    Fault::new(Case::InvalidKey).internal("why")
}

#[test]
fn a_peer_that_guesses_is_answered_429_with_a_true_wait() {
    let throttle = PeerThrottle::new();
    for _ in 0..FAILURES_BURST {
        assert_eq!(throttle.answer(peer(1), failure(), NOW).case, Case::InvalidKey);
    }
    for _ in 0..1_000 {
        let fault = throttle.answer(peer(1), failure(), NOW);
        assert_eq!((fault.case, fault.retry_after), (Case::AuthThrottled, Some(FAILURE_FORGIVEN)));
        assert_eq!(fault.internal.as_deref(), Some("why"), "the log still says why");
    }
    let later = NOW.after(FAILURE_FORGIVEN);
    assert_eq!(throttle.answer(peer(1), failure(), later).case, Case::InvalidKey, "waited as told");
    assert_eq!(throttle.answer(peer(1), failure(), later).case, Case::AuthThrottled);
    assert_eq!(throttle.answer(peer(2), failure(), later).case, Case::InvalidKey, "another peer is not touched");
}

#[test]
fn only_failures_of_the_peer_count() {
    let throttle = PeerThrottle::new();
    for _ in 0..10 * FAILURES_BURST {
        let away = throttle.answer(peer(1), Fault::new(Case::AuthUnavailable), NOW);
        assert_eq!(away.case, Case::AuthUnavailable);
    }
    assert!(throttle.is_empty());
}

#[test]
fn a_thousand_failures_a_second_are_answered_401_once_a_second() {
    let throttle = PeerThrottle::new();
    let unauthorised = (0..60_000)
        .filter(|n| {
            let now = NOW.after(Duration::from_millis(*n));
            throttle.answer(peer(1), failure(), now).case == Case::InvalidKey
        })
        .count();
    assert!((79..=80).contains(&unauthorised), "{unauthorised}");
}

#[test]
fn an_ipv6_network_and_a_mapped_address_are_one_peer() {
    let throttle = PeerThrottle::new();
    let network = |host: u16| IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 7, 0, 0, 0, host));
    for host in 0..FAILURES_BURST as u16 {
        assert_eq!(throttle.answer(network(host), failure(), NOW).case, Case::InvalidKey);
    }
    assert_eq!(throttle.answer(network(999), failure(), NOW).case, Case::AuthThrottled);
    let IpAddr::V4(plain) = peer(5) else { panic!("peers are IPv4 here") };
    for _ in 0..FAILURES_BURST {
        let _answer = throttle.answer(plain.into(), failure(), NOW);
    }
    assert_eq!(throttle.answer(plain.to_ipv6_mapped().into(), failure(), NOW).case, Case::AuthThrottled);
}

#[test]
fn peers_are_bounded_and_the_worst_are_remembered() {
    let throttle = PeerThrottle::new();
    for _ in 0..FAILURES_BURST {
        let _answer = throttle.answer(peer(0), failure(), NOW);
    }
    for n in 1..3 * PEERS_MAX as u32 {
        let _answer = throttle.answer(peer(n), failure(), NOW);
    }
    assert!(throttle.len() <= PEERS_MAX, "{}", throttle.len());
    assert!(throttle.len() > PEERS_MAX * 9 / 10);
    assert_eq!(throttle.answer(peer(0), failure(), NOW).case, Case::AuthThrottled, "a flood of peers hides nobody");
}
