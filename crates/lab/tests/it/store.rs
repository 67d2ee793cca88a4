//! The provider's store in PostgreSQL, by the suite that runs in SQLite too.

use wayleave_lab::postgres::Postgres;
use wayleave_store::Location;

#[path = "../../../store/tests/it/suite.rs"]
mod suite;
#[path = "../../../store/tests/it/usage_suite.rs"]
mod usage_suite;

macro_rules! in_postgres {
    ($suite:ident: $($test:ident),* $(,)?) => {
        $(
            #[tokio::test]
            async fn $test() {
                let Some(postgres) = Postgres::start_for_test() else { return };
                $suite::$test(&Location::parse(&postgres.url()).expect("a place")).await;
            }
        )*
    };
}

in_postgres!(suite:
    what_is_written_is_what_another_loads_after_every_change,
    terms_of_sale_are_kept_as_what_is_granted_is,
    of_two_that_change_at_once_one_follows_and_nothing_is_lost,
    a_row_that_was_changed_is_refused_by_name,
    rows_that_are_taken_away_or_brought_back_are_noticed,
    who_starts_late_forgets_the_same,
    a_row_that_is_brought_back_before_it_is_made_anew_is_refused,
    a_change_that_was_seen_is_no_proof_of_another_history,
    a_database_that_was_set_back_is_refused_until_it_is_adopted,
    revocations_that_have_expired_leave_the_database,
    another_providers_key_opens_nothing,
);

in_postgres!(usage_suite:
    the_database_takes_sums_and_closes_as_the_ledger_does,
    a_complete_statement_never_changes_and_what_comes_late_is_on_the_next,
    a_statement_has_the_price_tags_that_were_in_force_and_keeps_them,
    months_have_what_was_reported_of_their_key_epochs,
    months_of_delegations_are_kept_while_they_are_limited,
    a_statement_has_the_percentiles_of_the_months_that_ended_in_its_time,
    a_statement_is_completed_in_parts_whoever_is_killed_between_them,
    a_statement_that_somebody_changed_is_refused_by_name_and_never_authenticated_anew,
    the_sums_of_old_statements_leave_and_later_ones_are_what_they_were,
    two_key_servers_at_once_lose_nothing_and_take_nothing_twice,
    who_has_no_room_holds_nobody_else_up,
    pages_are_within_their_bounds,
    usage_of_a_file_is_brought_over_once_and_what_was_closed_is_on_no_statement_again,
    a_count_that_no_column_holds_is_the_greatest_that_one_does,
    what_ended_long_ago_is_closed_by_itself_and_by_no_clock_alone,
    one_process_at_a_time_holds_the_row_of_the_lessor,
);

#[tokio::test]
#[ignore = "takes minutes: measures"]
async fn many_totals_are_closed_and_read() {
    let Some(postgres) = Postgres::start_for_test() else { return };
    usage_suite::many_totals_are_closed_and_read(&Location::parse(&postgres.url()).expect("a place")).await;
}
