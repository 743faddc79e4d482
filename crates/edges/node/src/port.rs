//! Ports for engines.

use std::collections::BTreeSet;
use std::net::{IpAddr, TcpListener};
use std::ops::RangeInclusive;

/// The lowest port of the range that is not booked and that binds now. Another process may still take it before the
/// engine does: book it, and on "address in use" ask again.
#[must_use]
pub fn lowest_free(range: RangeInclusive<u16>, booked: &BTreeSet<u16>, host: IpAddr) -> Option<u16> {
    range.into_iter().find(|port| !booked.contains(port) && binds(host, *port))
}

/// Whether a port can be listened at now.
pub(crate) fn binds(host: IpAddr, port: u16) -> bool {
    TcpListener::bind((host, port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn booked_and_taken_ports_are_passed_over() {
        let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let taken = TcpListener::bind((host, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        assert_eq!(lowest_free(port..=port, &BTreeSet::new(), host), None);
        drop(taken);
        assert_eq!(lowest_free(port..=port, &BTreeSet::from([port]), host), None);
        assert_eq!(lowest_free(port..=port, &BTreeSet::new(), host), Some(port));
    }
}
