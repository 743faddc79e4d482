//! Seats as a list of pairs: in JSON only texts can be keys.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::placement::{ReplicaKey, Seat, Seats};

pub(super) fn serialize<S: Serializer>(seats: &Seats, serializer: S) -> Result<S::Ok, S::Error> {
    seats.iter().collect::<Vec<_>>().serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Seats, D::Error> {
    Ok(Vec::<(ReplicaKey, Seat)>::deserialize(deserializer)?.into_iter().collect())
}
