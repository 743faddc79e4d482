//! Names that others read: labels, annotations, the field manager, and what an instance's objects are called.

use aws_lc_rs::digest;

/// The field manager of everything that is applied here, and the value of `app.kubernetes.io/managed-by`.
pub const MANAGER: &str = "tidegate-controller";
/// Who manages an object.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The deployment that a Pod serves.
pub const DEPLOYMENT: &str = "tidegate.dev/deployment";
/// The instance that a Pod belongs to, as a label's value ([`label_value`]).
pub const INSTANCE: &str = "tidegate.dev/instance";
/// The generation of the controller that wrote an object last.
pub const GENERATION: &str = "tidegate.dev/generation";
/// What an object was rendered from, as JSON.
pub const ORDER: &str = "tidegate.dev/order";
/// Identities of the Pods that an instance was started with: others are not it.
pub const PODS: &str = "tidegate.dev/pods";
/// Why an instance was ended.
pub const ENDED: &str = "tidegate.dev/ended";
/// The label that a pool selects: put on a Pod that has proven itself, taken off before its drain.
pub const MODEL: &str = "model";
/// The alias whose requests an HTTPRoute carries.
pub const ALIAS: &str = "tidegate.dev/alias";
/// What an HTTPRoute was last set to, as JSON.
pub const ROUTE: &str = "tidegate.dev/route";
/// The taint of nodes whose GPUs Tidegate gives out by itself.
pub const TAINT: &str = "tidegate.dev/gpus";
/// The variable that names the instance in every process of an engine.
pub const INSTANCE_VARIABLE: &str = "TIDEGATE_INSTANCE";
/// The object that keeps the highest generation of a namespace.
pub const FENCE: &str = "tidegate-controller";

/// Longest value of a label.
pub const LABEL_MAX: usize = 63;
/// Longest name of an object of ours: its Pods' names add a dozen bytes, and are labels themselves.
pub const OBJECT_NAME_MAX: usize = 46;
/// Bytes of a digest in a shortened name, as hexadecimal digits.
const DIGEST_DIGITS: usize = 8;

/// The name of an instance's object: a DNS label, the id itself where it is one and short enough, else as much of it as
/// fits with a digest behind.
#[must_use]
pub fn object_name(instance: &str) -> String {
    let is_label = instance.starts_with(|c: char| c.is_ascii_lowercase())
        && instance.ends_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && instance.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'));
    if is_label && instance.len() <= OBJECT_NAME_MAX {
        return instance.to_owned();
    }
    let plain: String =
        instance.chars().map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' }).collect();
    let prefix = if plain.starts_with(|c: char| c.is_ascii_lowercase()) { "" } else { "r" };
    let room = OBJECT_NAME_MAX - DIGEST_DIGITS - 1 - prefix.len();
    let kept: String = plain.chars().take(room).collect();
    format!("{prefix}{}-{}", kept.trim_end_matches('-'), short_digest(instance))
}

/// An instance id as the value of a label.
#[must_use]
pub fn label_value(instance: &str) -> String {
    let ends_well = instance.ends_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    if ends_well && instance.len() <= LABEL_MAX { instance.to_owned() } else { object_name(instance) }
}

fn short_digest(text: &str) -> String {
    let digest = digest::digest(&digest::SHA256, text.as_bytes());
    digest.as_ref().iter().take(DIGEST_DIGITS / 2).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_is_a_label_names_its_object() {
        assert_eq!(object_name("glm-0-g7"), "glm-0-g7");
        assert_eq!(label_value("glm-5.3-0-g7"), "glm-5.3-0-g7");
    }

    #[test]
    fn other_ids_get_names_of_their_own_that_are_labels() {
        let long = "a".repeat(120);
        let ids = ["glm-5.3-0-g7", "glm-5-3.0-g7", "0-g7", "7", "a.", "a..b-", &long, &format!("{}b", &long[1..])];
        let names: std::collections::BTreeSet<String> = ids.iter().map(|id| object_name(id)).collect();
        assert_eq!(names.len(), ids.len(), "{names:?}");
        for name in names {
            assert!(name.len() <= OBJECT_NAME_MAX, "{name}");
            assert!(name.starts_with(|c: char| c.is_ascii_lowercase()), "{name}");
            assert!(name.ends_with(|c: char| c.is_ascii_alphanumeric()), "{name}");
            assert!(name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-')), "{name}");
        }
        assert!(label_value(&long).len() <= LABEL_MAX);
        assert_eq!(label_value(&"a".repeat(LABEL_MAX)).len(), LABEL_MAX);
    }
}
