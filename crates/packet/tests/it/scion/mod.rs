//! SCION against captured packets and its published vectors.

mod captured;
mod vectors;
