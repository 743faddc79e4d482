//! The Reservation document.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::quantity::Indices;
use crate::scalar::CivilTime;

/// GPUs that are somebody else's for a time: training, benchmarks, people.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "Reservation")]
pub(crate) struct Reservation {
    /// Name of the Node.
    #[schemars(with = "String")]
    pub(crate) node: Option<String>,
    /// Its GPUs.
    #[schemars(with = "Indices")]
    pub(crate) gpus: Option<Indices>,
    /// From this time on, in the zone of the Site.
    #[schemars(with = "CivilTime")]
    pub(crate) from: Option<CivilTime>,
    /// Until before this time, in the zone of the Site.
    #[schemars(with = "CivilTime")]
    pub(crate) until: Option<CivilTime>,
    /// Who has them.
    #[schemars(with = "String")]
    pub(crate) owner: Option<String>,
}
