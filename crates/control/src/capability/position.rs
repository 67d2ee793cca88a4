//! Where the changes of a database end.

wayleave_core::wire! {
    /// The last change that was seen of a database. What continues it has this very change, or a later timeline that an operator began
    /// above it.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Position {
        /// How often an operator adopted a database that was behind.
        pub timeline: u64,
        /// Zero before the first change.
        pub number: u64,
        pub digest: [u8; 32],
    }
}

impl Position {
    /// What is greater is later.
    #[must_use]
    pub fn order(&self) -> (u64, u64) {
        (self.timeline, self.number)
    }
}
