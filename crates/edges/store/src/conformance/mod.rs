//! What every store has to do, as functions that any implementation can be run against.
//!
//! `tidegate_store::store_conformance!(bench)` makes one test of each. A [`Bench`] opens stores: the same name twice
//! gives two handles on one store, as two processes have them; a new name gives an empty one. A suite reports what is
//! wrong by a failed assertion, and what the store could not do by its error.

mod keys;
mod ledger;
mod lifecycle;
mod make;
mod routes;
mod usage;

use std::future::Future;

use crate::store::{Store, StoreError};

pub use keys::*;
pub use ledger::*;
pub use lifecycle::*;
pub use make::{entry, record, reservation};
pub use routes::*;
pub use usage::*;

/// Where a suite gets its stores from.
pub trait Bench: Sync {
    /// Opens the store of this name.
    fn open(&self, name: &str) -> impl Future<Output = Result<Store, StoreError>> + Send;
}

/// Makes a test of every conformance function, for a [`Bench`].
#[macro_export]
macro_rules! store_conformance {
    ($bench:expr) => {
        $crate::store_conformance! { $bench =>
            an_entry_delivered_twice_counts_once
            permutations_with_duplicates_give_the_same_ledger
            a_second_final_entry_of_an_id_changes_nothing
            two_handles_that_append_the_same_entries_count_them_once
            an_entry_is_read_back_as_it_was_written
            hostile_texts_are_kept_as_they_are
            an_entry_of_any_instant_is_kept
            impossible_token_counts_are_bounded_and_sums_never_overflow
            pages_of_entries_miss_none_and_repeat_none
            every_grouping_adds_up_to_the_same_sums
            a_filter_and_the_rest_are_the_whole
            hours_days_and_months_follow_the_zone
            edges_within_a_quarter_of_an_hour_are_exact
            a_query_over_too_many_periods_is_refused
            quota_sums_book_on_the_alias_that_served
            quota_sums_count_from_the_instant_exactly
            a_key_is_read_back_as_it_was_written
            a_key_id_is_given_once
            a_rotation_keeps_the_old_secret_for_the_time_of_grace
            a_rotation_grants_neither_more_time_nor_another_kind
            a_change_from_an_old_version_is_refused
            a_revoked_key_stays_revoked
            a_snapshot_of_the_keys_carries_the_generation_of_its_rows
            the_last_use_never_moves_backwards
            every_change_of_a_key_leaves_an_audit_row
            a_change_by_another_handle_is_felt
            the_shift_counts_its_changes
            generations_are_given_out_once_whoever_asks
            a_store_that_is_older_than_a_node_gives_higher_generations
            a_write_of_an_earlier_generation_changes_nothing
            a_generation_that_was_never_given_out_is_refused
            a_route_is_read_back_as_it_was_written
            a_route_that_leads_to_the_same_place_tells_nobody
            a_change_of_a_route_is_felt_by_another_handle
            routes_are_bounded
            what_was_said_is_kept_until_it_is_taken_back
            a_pause_holds_until_it_is_lifted
            every_verb_leaves_an_audit_row
            a_switch_is_read_back_as_it_was_written
            a_switch_taken_over_stays_one_switch
            only_the_last_switches_are_kept_with_their_steps
            plans_records_and_steps_are_bounded
            a_step_noted_twice_is_one_step
            a_step_is_answered_once
            measurements_of_the_last_revisions_are_kept
        }
    };
    ($bench:expr => $($name:ident)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                $crate::conformance::$name(&$bench).await.expect("the store works");
            }
        )*
    };
}
