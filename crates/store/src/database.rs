//! Where a database is, and how connections to it are made.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::any::{AnyPoolOptions, install_default_drivers};
use sqlx::pool::PoolConnection;
use sqlx::{Any, AnyConnection, AnyPool, Executor};

use crate::error::StoreError;

/// Connections of a process: one writes, others read.
const CONNECTIONS: u32 = 4;
/// How long a connection may take.
const CONNECTING: Duration = Duration::from_secs(3);
/// How SQLite is used. It waits for another process that writes, for so many milliseconds.
const SETTINGS: &str = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA busy_timeout = 5000;";

/// How PostgreSQL is used: a key server that stops in the middle of a change holds nobody else up, and a commit is on the disk.
const POSTGRES_SETTINGS: &str = "SET lock_timeout = '5s'; SET idle_in_transaction_session_timeout = '10s'; \
                                 SET synchronous_commit = 'on';";

/// Where the database is.
#[derive(Clone, PartialEq, Eq)]
pub enum Location {
    /// A SQLite file.
    File(PathBuf),
    /// PostgreSQL, by its connection URI (its manual, section 34.1.1.2).
    Postgres(String),
}

/// What names no database, or has a password: a configuration and messages about it are read by others.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "expected the path of a SQLite file, or a URI such as \"postgresql://user@host/database\" without a password, which belongs into \
     `~/.pgpass` or the variable PGPASSWORD"
)]
pub struct BadLocation;

impl Location {
    /// From a configuration: a path, or a URI of PostgreSQL.
    ///
    /// # Errors
    /// If it is a URI of something else, or has a password.
    pub fn parse(text: &str) -> Result<Self, BadLocation> {
        if let Some(rest) = text.strip_prefix("postgresql://").or_else(|| text.strip_prefix("postgres://")) {
            let authority = rest.split(['/', '?']).next().unwrap_or_default();
            let has_password = rest.contains("password=")
                || match authority.rsplit_once('@') {
                    Some((user, _)) => user.contains(':'),
                    // A port, or the beginning of a password with a slash or a question mark.
                    None => authority.rsplit_once(':').is_some_and(|(_, port)| {
                        !port.ends_with(']') && !port.is_empty() && port.parse::<u16>().is_err()
                    }),
                };
            return if has_password { Err(BadLocation) } else { Ok(Self::Postgres(text.to_owned())) };
        }
        if text.is_empty() || text.contains("://") { Err(BadLocation) } else { Ok(Self::File(PathBuf::from(text))) }
    }
}

/// Without what is behind the name of the database.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Postgres(uri) => f.write_str(uri.split_once('?').map_or(uri, |(shown, _)| shown)),
        }
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A pool of connections, and of SQLite which file they are to.
#[derive(Clone, Debug)]
pub(crate) struct Database {
    pub pool: AnyPool,
    file: Option<(PathBuf, (u64, u64))>,
}

/// A connection with a transaction that is open. Unless that was ended in order, the connection is closed: SQLite ends a transaction by itself
/// where the disk is full, and what counts nested ones would take the next for a part of it, which nobody makes durable.
pub(crate) struct Transaction {
    connection: PoolConnection<Any>,
    is_over: bool,
}

impl Transaction {
    pub(crate) async fn commit(mut self) -> Result<(), StoreError> {
        self.connection.execute("COMMIT").await?;
        self.is_over = true;
        Ok(())
    }

    pub(crate) async fn roll_back(mut self) -> Result<(), StoreError> {
        self.connection.execute("ROLLBACK").await?;
        self.is_over = true;
        Ok(())
    }
}

impl Deref for Transaction {
    type Target = AnyConnection;

    fn deref(&self) -> &AnyConnection {
        &self.connection
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut AnyConnection {
        &mut self.connection
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if !self.is_over {
            self.connection.close_on_drop();
        }
    }
}

impl Database {
    /// Begins to write.
    pub(crate) async fn begin(&self) -> Result<Transaction, StoreError> {
        let begin = if self.is_postgres() { "BEGIN" } else { "BEGIN IMMEDIATE" };
        let mut new = Transaction { connection: self.pool.acquire().await?, is_over: false };
        new.connection.execute(begin).await?;
        Ok(new)
    }

    /// Begins to read what there is at one moment. It is rolled back.
    pub(crate) async fn begin_to_read(&self) -> Result<Transaction, StoreError> {
        let begin = if self.is_postgres() { "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" } else { "BEGIN" };
        let mut new = Transaction { connection: self.pool.acquire().await?, is_over: false };
        new.connection.execute(begin).await?;
        Ok(new)
    }

    /// Connects. `creates`: a SQLite file that is not there is made.
    pub(crate) async fn connect(place: &Location, creates: bool) -> Result<Self, StoreError> {
        install_default_drivers();
        let mut options = AnyPoolOptions::new().max_connections(CONNECTIONS).acquire_timeout(CONNECTING);
        let (uri, file) = match place {
            Location::Postgres(uri) => {
                options = options.after_connect(|connection, _| {
                    Box::pin(async move { connection.execute(POSTGRES_SETTINGS).await.map(drop) })
                });
                (uri.clone(), None)
            }
            Location::File(path) => {
                if creates {
                    // SQLite's other files get the same mode and owner.
                    make(path).map_err(|error| StoreError::Unavailable(format!("{}: {error}", path.display())))?;
                }
                options = options.after_connect(|connection, _| {
                    Box::pin(async move {
                        // Each commit is on the disk before it is acknowledged, and nobody who reads waits for who writes.
                        connection.execute(SETTINGS).await.map(drop)
                    })
                });
                (format!("sqlite://{}?mode=rw", encoded(path)), Some((path.clone(), inode(path)?)))
            }
        };
        let pool = options.connect(&uri).await?;
        Ok(Self { pool, file })
    }

    /// Whether the file is still the one that the connections are to: nothing that is written to one which is gone lasts.
    pub(crate) fn check_in_place(&self) -> Result<(), StoreError> {
        match &self.file {
            Some((path, held)) if inode(path).ok() != Some(*held) => Err(StoreError::Gone(path.display().to_string())),
            _ => Ok(()),
        }
    }

    pub(crate) fn is_postgres(&self) -> bool {
        self.file.is_none()
    }
}

/// Makes a file that nobody else reads, if there is none. Root leaves it to whose the folder is: the key server has to go on with it.
fn make(path: &Path) -> io::Result<()> {
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file = match made {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(()),
        made => made?,
    };
    give_to_owner(&file, path)
}

/// Leaves a file to whose its folder is.
pub(crate) fn give_to_owner(file: &File, path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let owner = std::fs::metadata(folder)?;
    let _ = fchown(file, Some(owner.uid()), Some(owner.gid())); // fails if this is not root, and then it is its own
    Ok(())
}

fn inode(path: &Path) -> Result<(u64, u64), StoreError> {
    let metadata = std::fs::metadata(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => StoreError::Missing,
        _ => StoreError::Unavailable(format!("{}: {error}", path.display())),
    })?;
    Ok((metadata.dev(), metadata.ino()))
}

/// A path in a URI (RFC 3986 section 2.1).
fn encoded(path: &Path) -> String {
    let octets = path.as_os_str().as_encoded_bytes();
    let is_plain = |octet: u8| octet.is_ascii_alphanumeric() || b"/-._~".contains(&octet);
    let each = octets.iter().map(|octet| match octet {
        octet if is_plain(*octet) => char::from(*octet).to_string(),
        octet => format!("%{octet:02X}"),
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_path_or_a_uri_of_postgresql_without_a_password() {
        assert_eq!(Location::parse("store.db"), Ok(Location::File("store.db".into())));
        let uri = "postgresql://key@db.example.net:5433/wayleave?sslmode=verify-full";
        assert_eq!(Location::parse(uri).expect("a place").to_string(), "postgresql://key@db.example.net:5433/wayleave");
        assert_eq!(Location::parse("postgres://db/wayleave").expect("a place").to_string(), "postgres://db/wayleave");
        for good in
            ["postgresql://db:5433/w?user=a@b", "postgresql://[2001:db8::1]/w", "postgresql://a@[2001:db8::1]:5433/w"]
        {
            assert!(Location::parse(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "mysql://db/wayleave",
            "sqlite://store.db",
            "postgresql://key:secret@db/wayleave",
            "postgresql://key:sec?ret@db/wayleave",
            "postgresql://key@db/wayleave?password=secret",
        ] {
            assert_eq!(Location::parse(bad), Err(BadLocation), "{bad}");
        }
    }

    #[test]
    fn a_path_is_encoded_for_its_uri() {
        assert_eq!(encoded(Path::new("/a b/ü?.db")), "/a%20b/%C3%BC%3F.db");
    }
}
