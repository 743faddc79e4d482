//! The documents as operators write them, checked through the public interface.
#![expect(clippy::unwrap_used, reason = "tests")]

mod any_text;
mod bounds;
mod design;
mod generated;
mod goldens;
mod model_cache;
mod model_store;
mod quantities;
mod refused;
mod site_of;
mod wrong;
