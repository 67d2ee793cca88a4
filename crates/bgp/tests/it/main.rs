//! Tests of the codec, the session state machine, the RIBs and the recorded corpora.

mod aspa;
mod codec_corpora;
mod codec_messages;
mod codec_properties;
mod codec_rfc7606;
mod codec_update;
mod common;
mod origins;
mod peer;
mod rib_decision;
mod rib_in;
mod rib_out;
mod session_bad_peers;
mod session_fsm;
mod session_pair;
