//! The HTTPS API of a key server, and invitations, as processes.

mod description;
mod hostile;
mod invitations;
mod operators;
mod remote;
mod replica;
mod schema;
mod world;
