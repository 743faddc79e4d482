//! Figures of a deployment: the ModelProductionProfile document, and the same by hand in a Deployment.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::quantity::Count;

/// What qualification measured and decided for a model. Named by `Deployment.spec.profile.fromFile`, alone in its
/// file.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "ModelProductionProfile")]
pub(crate) struct ModelProductionProfile {
    /// Name of the Model that was measured.
    pub(crate) model: Option<String>,
    /// Tensor-parallel size that was selected: 1, 2, 4 or 8.
    #[schemars(extend("enum" = [1, 2, 4, 8]))]
    pub(crate) tp: Option<u32>,
    /// Expected peak of requests in flight; the alias's limit is made from it.
    pub(crate) concurrency: Option<Count>,
    /// Expected peak of requests per minute.
    pub(crate) rpm: Option<Count>,
    /// Expected peak of tokens per minute.
    pub(crate) tpm: Option<Count>,
    /// Measured capacity of one replica, in requests in flight: beyond it a replica counts as saturated.
    pub(crate) capacity: Option<Count>,
    /// Waiting requests at which a replica counts as saturated.
    pub(crate) queue_threshold: Option<Count>,
    /// Tensor-parallel sizes that passed, each with its measured capacity: `{"4": 48}`.
    #[serde(default)]
    pub(crate) passed: BTreeMap<String, Count>,
    /// Context window in tokens.
    pub(crate) context_tokens: Option<Count>,
    /// Largest output in tokens.
    pub(crate) max_output_tokens: Option<Count>,
}

/// The figures of a deployment: from a file, or by hand.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "Profile")]
pub(crate) struct Profile {
    /// File with a ModelProductionProfile, relative to the folder of the document; nothing else beside it.
    pub(crate) from_file: Option<String>,
    /// Expected peak of requests in flight; the alias's limit is made from it.
    pub(crate) concurrency: Option<Count>,
    /// Expected peak of requests per minute.
    pub(crate) rpm: Option<Count>,
    /// Expected peak of tokens per minute.
    pub(crate) tpm: Option<Count>,
    /// Measured capacity of one replica, in requests in flight: beyond it a replica counts as saturated.
    pub(crate) capacity: Option<Count>,
    /// Waiting requests at which a replica counts as saturated.
    pub(crate) queue_threshold: Option<Count>,
    /// Tensor-parallel sizes that passed, each with its measured capacity: `{"4": 48}`.
    #[serde(default)]
    pub(crate) passed: BTreeMap<String, Count>,
}
