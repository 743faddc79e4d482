//! The Model document.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::quantity::Count;

/// Weights and tokenizer, with what is needed to run them.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "Model")]
pub(crate) struct Model {
    /// Where the weights come from. Needed as soon as a deployment of the model is started by Tidegate.
    pub(crate) source: Option<Source>,
    /// Name of an entry of `Site.spec.engines`, or a dialect: vllm, llama.cpp.
    #[schemars(with = "String")]
    pub(crate) engine: Option<String>,
    /// `fp8`, `bf16`, `q4_1`, …; a label of metrics. Default unknown.
    pub(crate) precision: Option<String>,
    /// Tokens that one image of a prompt counts as. Default 1024.
    pub(crate) image_tokens: Option<Count>,
    /// Folder with `tokenizer.json`, relative to the folder of the document. Default the model's own folder.
    pub(crate) tokenizer: Option<String>,
}

/// Where weights come from. Exactly one of `path` and `local`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Source {
    /// `FAMILY/VERSION` in the model store.
    pub(crate) path: Option<String>,
    /// Digest of its manifest, `sha256:…`: pins the content.
    pub(crate) digest: Option<String>,
    /// A folder or file that is on this machine already, relative to the folder of the document.
    pub(crate) local: Option<String>,
}
