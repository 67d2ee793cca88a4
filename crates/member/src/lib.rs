//! A member's proxy as one machine: the route server's member, and beside it the signing and validation of paths.
