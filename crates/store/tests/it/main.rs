//! The provider's store in SQLite. The laboratory's tests run the same suite in PostgreSQL.

mod suite;

use std::path::PathBuf;

use wayleave_store::Place;

/// A folder for a database, which is gone when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("wayleave-store-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("made");
        Self(folder)
    }

    fn place(&self) -> Place {
        Place::File(self.0.join("store.db"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

macro_rules! in_sqlite {
    ($($test:ident),* $(,)?) => {
        $(
            #[tokio::test]
            async fn $test() {
                let folder = Folder::new(stringify!($test));
                suite::$test(&folder.place()).await;
            }
        )*
    };
}

in_sqlite!(
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
