//! The HTTPS API of a key server, and invitations, as processes.

mod description;
mod full_disk;
mod hostile;
mod invitations;
mod kills;
mod listing;
mod operators;
mod remote;
mod sale;
mod schema;
mod statement;
mod world;
