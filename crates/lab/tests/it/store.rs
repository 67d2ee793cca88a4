//! The provider's store in PostgreSQL, by the suite that runs in SQLite too.

use wayleave_lab::postgres::Postgres;
use wayleave_store::Place;

#[path = "../../../store/tests/it/suite.rs"]
mod suite;

macro_rules! in_postgres {
    ($($test:ident),* $(,)?) => {
        $(
            #[tokio::test]
            async fn $test() {
                let Some(postgres) = Postgres::start_for_test() else { return };
                suite::$test(&Place::parse(&postgres.url()).expect("a place")).await;
            }
        )*
    };
}

in_postgres!(
    what_is_written_is_what_another_loads_after_every_change,
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
