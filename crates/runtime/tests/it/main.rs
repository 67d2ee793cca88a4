//! Tests of the drivers over loopback sockets, files and this process's own memory.

mod deaf_peer;
mod huge_pages;
mod kill;
mod links;
mod protected_sessions;
mod router_certificates;
mod rtr;
