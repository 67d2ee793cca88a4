//! Secrets, hashes, encryption and signatures: one place for every primitive.
