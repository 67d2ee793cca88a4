//! Two-party computation over XOR shares: oblivious transfer, correlations, circuits and the GMW evaluator.
//!
//! Bit-sliced over lanes, in symmetric rounds that never block. A peer that deviates learns nothing of lanes whose results it does not
//! get, and can make results wrong (`docs/exchange-security.md`). When the link comes up, each party
//! makes one [`Setup`] and one [`Pool`]; setup fills the pool ahead of need, and each [`Evaluation`] of a [`Program`] takes
//! [`Demand::of`] from it. The length of every message follows from the public shape alone
//! ([`Counts::online`], [`Counts::setup`]). See [`BitRows`] for the layout of inputs and outputs, and
//! [`circuits::SelectBest`] for the rows of Select-Best.
//!
//! ```
//! use wayleave_mpc::{circuit::Kind, circuits::SelectBest, *};
//!
//! // Known to both parties: the circuit, and one lane for each member.
//! let program = Program::new(SelectBest::standard(3).circuit()?)?;
//! let target = Demand::of(&program, 2);
//! // A member's routes: all valid, classes 1, 7 and 7; the exchange recommends the last one.
//! let mut secret = BitRows::zero(program.input_rows(), 2);
//! for (route, class, recommendation) in [(0, 1, 0), (1, 7, 0), (2, 7, 9)] {
//!     for (kind, value) in [(Kind::Valid, 1), (Kind::Class, class), (Kind::Recommendation, recommendation)] {
//!         let input = program.input(kind, route).expect("the circuit has three routes");
//!         secret.set_number(input.first, input.bits, 1, value);
//!     }
//! }
//! let mask = BitRows::zero(program.input_rows(), 2); // in production: fresh random bits
//! let (one, two) = split(&secret, mask).expect("one shape");
//! // Both parties; in production each has its own link and calls `round` with the received message.
//! let (id, plan) = (SessionId(*b"agreed by both.."), target.chunks(DEFAULT_CHUNK));
//! let (mut left, mut right) = (Setup::new(Role::Party1, id, [1; 32]), Setup::new(Role::Party2, id, [2; 32]));
//! let (mut pool1, mut pool2) = (Pool::new(1 << 20), Pool::new(1 << 20));
//! for chunk in plan {
//!     (left.request(chunk)?, right.request(chunk)?);
//!     let (correlations1, correlations2) = lockstep(&mut left, &mut right)?;
//!     (pool1.add(correlations1)?, pool2.add(correlations2)?);
//! }
//! let mut first = Evaluation::new(&program, one.rows(), &mut pool1)?;
//! let mut second = Evaluation::new(&program, two.rows(), &mut pool2)?;
//! let (out1, out2) = lockstep(&mut first, &mut second)?;
//! let out = reveal(&Share::new(out1), &Share::new(out2)).expect("one shape");
//! assert_eq!((out.number(0, 2, 1), out.bit(2, 1)), (2, true)); // route 2 wins in lane 1
//! assert_eq!((out.number(0, 2, 0), out.bit(2, 0)), (0, false)); // nothing valid in lane 0
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod circuit;
pub mod circuits;

mod base_ot;
mod batch;
mod builder;
mod counts;
mod demand;
mod error;
mod evaluation;
mod ot_extension;
mod party;
mod pool;
mod rounds;
mod rows;
mod setup;

pub use batch::EvaluationBatch;
pub use builder::Builder;
pub use counts::Counts;
pub use demand::{Chunk, DEFAULT_CHUNK, Demand, Width};
pub use error::{Error, Fault, Misuse, PointFault, StartError};
pub use evaluation::{Evaluation, Program};
pub use ot_extension::GroupBits;
pub use party::{Party, Party1, Party2, Role, Share, reveal, split};
pub use pool::{CorrelationRange, Correlations, Pool};
pub use rounds::{DriveError, Link, LockstepError, Rounds, Step, drive, lockstep};
pub use rows::BitRows;
pub use setup::{SessionId, SessionTag, Setup};
