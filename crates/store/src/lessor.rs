//! The row of who leases rates ([`wayleave_control::tenure`]).
//!
//! A key server on PostgreSQL renews it every second. All those on a SQLite file are on one machine: there the lessor holds a lock on a
//! file beside it, which ends with its process, and nobody takes the row without. It is written only when that changes hands, and a
//! full disk keeps nobody from it.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use sqlx::{Row as _, query};
use wayleave_control::tenure::{Holder, LessorRow};

use crate::database::{Location, give_to_owner};
use crate::error::StoreError;
use crate::store::Store;
use crate::table::signed;

/// A symbolic link is not followed (`O_NOFOLLOW`, open(2)).
const NO_FOLLOW: i32 = rustix::fs::OFlags::NOFOLLOW.bits() as i32;

/// What shows that no other process leases: a lock on a file, for as long as this is there.
#[derive(Debug)]
pub struct LessorLock {
    path: PathBuf,
    file: File,
}

impl LessorLock {
    /// Whether the file is still the one that others would lock.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        let of = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
        match (std::fs::metadata(&self.path), self.file.metadata()) {
            (Ok(there), Ok(held)) => of(there) == of(held),
            _ => false,
        }
    }
}

impl Store {
    /// Who leases rates.
    ///
    /// # Errors
    /// If the database cannot be used, or has no sound row.
    pub async fn lessor(&self) -> Result<LessorRow, StoreError> {
        self.database.check_in_place()?;
        let select = query("SELECT epoch, renewed, holder, name, routers FROM lessor WHERE id = 1");
        let row = select.fetch_one(&self.database.pool).await?;
        let refused = |what| StoreError::Row { row: "the row of the lessor".to_owned(), what };
        let number = |at: usize| -> Result<u64, StoreError> {
            // Half of all numbers are left above one that somebody wrote.
            let number = u64::try_from(row.try_get::<i64, _>(at)?).ok().filter(|number| *number <= u64::MAX / 4);
            number.ok_or_else(|| refused("its numbers are none"))
        };
        let (holder, name): (Option<Vec<u8>>, String) = (row.try_get(2)?, row.try_get(3)?);
        let holder = holder.map(|octets| octets.try_into().map(Holder).map_err(|_| refused("its holder is none")));
        let holder = holder.transpose()?;
        let routers: String = row.try_get(4)?;
        let routers: Result<BTreeSet<u16>, _> =
            routers.split(',').filter(|number| !number.is_empty()).map(str::parse).collect();
        let routers = routers.map_err(|_| refused("its routers are no numbers"))?;
        Ok(LessorRow { epoch: number(0)?, renewed: number(1)?, holder, name, routers })
    }

    /// Takes the row, or changes what it says of its holder, if it is still as it was seen. Returns whether it says so now.
    ///
    /// # Errors
    /// If the database cannot be used: it may have been taken nevertheless.
    pub async fn take_lessor(&self, from: &LessorRow, to: &LessorRow) -> Result<bool, StoreError> {
        self.database.check_in_place()?;
        let update = query(
            "UPDATE lessor SET epoch = $1, renewed = $2, holder = $3, name = $4, routers = $5
             WHERE id = 1 AND epoch = $6 AND renewed = $7",
        );
        let routers: Vec<String> = to.routers.iter().map(u16::to_string).collect();
        let update = update.bind(signed(to.epoch)).bind(signed(to.renewed));
        let update = update.bind(to.holder.map(|holder| holder.0.to_vec())).bind(to.name.clone());
        let update = update.bind(routers.join(",")).bind(signed(from.epoch)).bind(signed(from.renewed));
        Ok(update.execute(&self.database.pool).await?.rows_affected() == 1)
    }

    /// Renews the row; with a lock it is enough that this is still the one on that file. Returns whether it is still the holder's.
    ///
    /// # Errors
    /// If the database cannot be used.
    pub async fn renew_lessor(
        &self,
        epoch: u64,
        holder: Holder,
        lock: Option<&LessorLock>,
    ) -> Result<bool, StoreError> {
        self.database.check_in_place()?;
        if let Some(lock) = lock {
            return Ok(lock.is_in_place());
        }
        let update = query("UPDATE lessor SET renewed = renewed + 1 WHERE id = 1 AND epoch = $1 AND holder = $2");
        let update = update.bind(signed(epoch)).bind(holder.0.to_vec());
        Ok(update.execute(&self.database.pool).await?.rows_affected() == 1)
    }

    /// Gives the row up, if it is this holder's: a successor waits for nothing.
    ///
    /// # Errors
    /// If the database cannot be used.
    pub async fn give_up_lessor(&self, holder: Holder) -> Result<(), StoreError> {
        let update =
            query("UPDATE lessor SET holder = NULL, name = '', renewed = renewed + 1 WHERE id = 1 AND holder = $1");
        update.bind(holder.0.to_vec()).execute(&self.database.pool).await?;
        Ok(())
    }

    /// Whether all who may lease are on this machine, where a lock says which of them does.
    #[must_use]
    pub fn is_on_one_machine(&self) -> bool {
        matches!(self.place(), Location::File(_))
    }

    /// The lock of the one process that may lease, on a file beside a SQLite database; `None` if another has it, or in PostgreSQL.
    ///
    /// # Errors
    /// If the file cannot be made.
    pub fn lock_lessor(&self) -> Result<Option<LessorLock>, StoreError> {
        let Location::File(database) = self.place() else { return Ok(None) };
        let mut path = database.clone().into_os_string();
        path.push("-lessor");
        let path = PathBuf::from(path);
        let failed = |error| StoreError::Unavailable(format!("{}: {error}", path.display()));
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let file = match made {
            // What a link leads to is not ours.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                OpenOptions::new().write(true).custom_flags(NO_FOLLOW).open(&path).map_err(failed)?
            }
            made => {
                let file = made.map_err(failed)?;
                give_to_owner(&file, &path).map_err(failed)?;
                file
            }
        };
        match file.try_lock() {
            Ok(()) => Ok(Some(LessorLock { path, file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }
}
