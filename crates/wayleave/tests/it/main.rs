//! The program as its users meet it: commands, and roles as processes with real sockets.
#![allow(clippy::disallowed_methods, reason = "a test starts the program")]

mod attest;
mod attest_drill;
mod attest_objects;
mod attest_routers;
mod attest_rpki;
mod backup;
mod cli;
mod common;
mod ends;
mod full_disk;
mod gateway;
mod guide;
mod hostile;
mod install;
mod key;
mod key_api;
mod key_database;
mod kill_nine;
mod lab;
mod lab_capabilities;
mod lab_ping;
mod lab_routers;
mod member_attest;
mod member_rpki;
mod members;
mod mistakes;
mod overlay;
mod protected_sessions;
mod router;
mod run;
mod stamping;
mod trial;
mod trouble;
mod why;
