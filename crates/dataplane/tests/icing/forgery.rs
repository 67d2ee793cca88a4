//! forgery
