//! What can be wrong with a database, or with the way to it.

/// What PostgreSQL does not let a key server do, until somebody mends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Barred {
    /// It does not take the user or the password (SQLSTATE class 28).
    User,
    /// It has no such database (class 3D).
    Database,
    /// A table is missing, or the right to use it (of class 42).
    Tables,
}

impl Barred {
    /// By the SQLSTATE (<https://www.postgresql.org/docs/current/errcodes-appendix.html>). Of class 42 it is `undefined_table` and
    /// `insufficient_privilege`: the others are about one statement.
    fn of(code: &str) -> Option<Self> {
        match (code.get(..2).filter(|_| code.len() == 5)?, code) {
            ("28", _) => Some(Self::User),
            ("3D", _) => Some(Self::Database),
            (_, "42P01" | "42501") => Some(Self::Tables),
            _ => None,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::User => "PostgreSQL does not take the user or the password that `database` names",
            Self::Database => "PostgreSQL has no database of the name that `database` gives",
            Self::Tables => "a table of the store is missing in PostgreSQL, or the right to use it",
        }
    }
}

/// Why the store did not do what it was asked for.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    /// It may work later: nobody answers, the disk is full, somebody else holds it.
    #[error("the database cannot be used now: {0}")]
    Unavailable(String),
    /// PostgreSQL answers, and does not let the key server in or at its tables: waiting alone does not help.
    #[error("{}: {said}", .barred.words())]
    Barred { barred: Barred, said: String },
    /// There is no file.
    #[error("there is no file")]
    Missing,
    /// There are changes in a database that is to have none.
    #[error("it has changes already")]
    Imported,
    /// There is a statement of usage that was closed here.
    #[error("it has statements of usage already")]
    Stated,
    /// There is usage already.
    #[error("it has usage already")]
    Used,
    /// It has no tables of a store, or those of a later version.
    #[error("the database is no store of this version: {0}")]
    Schema(String),
    /// A row that the key servers did not write, or that is not as they wrote it.
    #[error("{row} is not as a key server wrote it: {what}")]
    Row { row: String, what: &'static str },
    /// Rows are missing, or came back.
    #[error(
        "the database has rows that were taken away, or lacks some that were written: it does not have what change {0} left"
    )]
    Rows(u64),
    /// The rows make no state.
    #[error("the database has no sound state: {0}")]
    State(String),
    /// It was set back: to an old backup, or to a standby that lacked the last changes.
    #[error(
        "the database ends with change {got}, and change {held} was seen: it is an old copy, or lost its last changes"
    )]
    Behind { held: u64, got: u64 },
    /// The same number was used twice.
    #[error(
        "change {0} of the database is not the one that was seen: the database was set back and went on from there, or is another's"
    )]
    Fork(u64),
    /// The file of a SQLite database was removed or replaced while it was in use.
    #[error("{0} is gone, or another file is in its place: nothing is written to it")]
    Gone(String),
    /// The sums of a statement were taken away after they had been exported.
    #[error("the sums of statement {0} were exported and taken away")]
    Removed(u64),
}

impl StoreError {
    /// Whether the same may succeed later without anybody's help.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }

    /// Whether the database as a whole cannot be used: what it has may be sound, and a server that runs goes on from what it knows, and
    /// tries again.
    #[must_use]
    pub fn is_outage(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Barred { .. })
    }
}

/// SQLite's result codes (<https://www.sqlite.org/rescode.html>) of a file that is none of its own, or damaged.
const SQLITE_CORRUPT: u32 = 11;
const SQLITE_NOT_A_DATABASE: u32 = 26;

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::Database(of) => {
                let code = of.code().unwrap_or_default();
                let primary = code.parse::<u32>().ok().map(|code| code & 0xff);
                match primary.filter(|_| code.len() < 5) {
                    Some(SQLITE_CORRUPT | SQLITE_NOT_A_DATABASE) => Self::Schema(of.message().to_owned()),
                    _ => match Barred::of(&code) {
                        Some(barred) => Self::Barred { barred, said: of.message().to_owned() },
                        None => Self::Unavailable(of.message().to_owned()),
                    },
                }
            }
            // A column that is not there, or of another type.
            sqlx::Error::ColumnNotFound(_) | sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => {
                Self::Schema(error.to_string())
            }
            sqlx::Error::PoolTimedOut => Self::Unavailable("it does not answer".to_owned()),
            _ => Self::Unavailable(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waiting_does_not_mend_is_told_from_a_database_that_starts() {
        for (code, barred) in [
            ("28P01", Some(Barred::User)),
            ("28000", Some(Barred::User)),
            ("3D000", Some(Barred::Database)),
            ("42501", Some(Barred::Tables)),
            ("42P01", Some(Barred::Tables)),
            // It starts, stops, has too many connections, has no room, does not know a statement; and codes of SQLite.
            ("57P03", None),
            ("42P05", None),
            ("57P01", None),
            ("53300", None),
            ("53100", None),
            ("28", None),
            ("4235", None),
        ] {
            assert_eq!(Barred::of(code), barred, "{code}");
        }
        let barred = StoreError::Barred { barred: Barred::User, said: "no".to_owned() };
        // A server that runs goes on all the same.
        assert!(!barred.is_passing() && barred.is_outage());
        let down = StoreError::Unavailable("no".to_owned());
        assert!(down.is_passing() && down.is_outage());
    }
}
