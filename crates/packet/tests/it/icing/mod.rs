//! ICING against its published vectors.

mod vectors;
