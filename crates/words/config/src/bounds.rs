//! What a set of documents may cost at most. Documents come from Git and from people, so every one of these has a test
//! at the bound.

/// Largest file, in bytes.
pub const FILE_BYTES_MAX: usize = 1 << 20;
/// Most bytes of all files of one check together.
pub const TOTAL_BYTES_MAX: usize = 16 << 20;
/// Most files in one check.
pub const FILES_MAX: usize = 2_000;
/// Most documents in one check, over all files.
pub const DOCUMENTS_MAX: usize = 10_000;
/// Deepest nesting of mappings and lists in one document; the document itself is level 1.
pub const DEPTH_MAX: usize = 24;
/// Most values (scalars, lists, mappings) in one document, with every `*alias` counted at the size of what it stands
/// for: this is what makes alias bombs harmless.
pub const VALUES_MAX: usize = 50_000;
/// Most errors that are collected from the shape (keys and types) of one document.
pub const SHAPE_ERRORS_MAX: usize = 100;
/// Most diagnostics of one check; one more says how many were left out.
pub const DIAGNOSTICS_MAX: usize = 1_000;
/// Most characters of a value that a diagnostic repeats.
pub const VALUE_SHOWN_MAX: usize = 80;
/// Longest name, in bytes: what a Kubernetes label value holds.
pub const NAME_BYTES_MAX: usize = 63;
/// Most GPUs of one node.
pub const GPUS_MAX: u32 = 256;
/// Most CPUs of one node.
pub const CPUS_MAX: u32 = 8_192;
/// Most replicas of one deployment.
pub const REPLICAS_MAX: u32 = 1_024;
/// Largest weight of a target.
pub const WEIGHT_MAX: u32 = 1_000_000;
/// Longest duration in a document.
pub const DURATION_MAX: std::time::Duration = std::time::Duration::from_secs(366 * 86_400);
/// Largest count (`limits`, tokens): what a JSON number holds exactly.
pub const COUNT_MAX: u64 = (1 << 53) - 1;
