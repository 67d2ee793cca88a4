//! The two-party engine on the link between the parties: one piece of work at a time, one message each in turn.

use std::collections::{BTreeMap, VecDeque};

use wayleave_crypto::hash::hash;
use wayleave_mpc::circuits::{SelectBest, export_all, select_best};
use wayleave_mpc::{BitRows, Chunk, Demand, Evaluation, Pool, Program, Role, Rounds, SessionId, Setup, Step, Width};

use super::PartyNumber;

/// Bytes of correlations kept ahead of need: our own limit.
const POOL_LIMIT: usize = 256 << 20;
/// Correlations of one setup message.
pub(super) const CHUNK: usize = 1 << 14;
/// Correlations that are kept ahead at most: our own limit.
pub(super) const MAX_TARGET: usize = 8 << 20;
/// Messages that may wait: the peer is at most one ahead.
const MAX_WAITING: usize = 4;

/// What the engine does.
enum EngineTask {
    Idle,
    Fill,
    Evaluate(Box<Evaluation>),
}

/// What the engine has done.
pub(super) enum Finished {
    Filled,
    Evaluated(BitRows),
}

/// One session of the engine, from link-up to link-down.
pub(super) struct Engine {
    setup: Setup,
    pool: Pool,
    programs: BTreeMap<usize, Program>,
    export: Option<Program>,
    task: EngineTask,
    awaiting: bool,
    waiting: VecDeque<Vec<u8>>,
    sent: u64,
    received: u64,
    /// What the pool should hold while nothing is to do.
    pub(super) target: Demand,
    /// The most routes of one prefix so far, padded to a power of two.
    pub(super) widest: usize,
}

impl Engine {
    /// A session bound to both parties' nonces; `seed` is fresh.
    pub(super) fn new(number: PartyNumber, one: [u8; 16], two: [u8; 16], seed: [u8; 32]) -> Self {
        let id = hash("wayleave/route-server/engine/v1", &[&one, &two]);
        let id = SessionId(*id.first_chunk().expect("16 of 32 bytes"));
        let role = match number {
            PartyNumber::One => Role::Party1,
            PartyNumber::Two => Role::Party2,
        };
        Self {
            setup: Setup::new(role, id, seed),
            pool: Pool::new(POOL_LIMIT),
            programs: BTreeMap::new(),
            export: None,
            task: EngineTask::Idle,
            awaiting: false,
            waiting: VecDeque::new(),
            sent: 0,
            received: 0,
            target: Demand::default(),
            widest: 0,
        }
    }

    /// The program that chooses among `routes`.
    pub(super) fn program(&mut self, routes: usize) -> Program {
        self.programs
            .entry(routes)
            .or_insert_with(|| {
                let circuit = select_best(SelectBest::standard(routes)).expect("routes is at most MAX_CANDIDATES");
                Program::new(circuit).expect("our own circuits are valid")
            })
            .clone()
    }

    /// The program of Export-All.
    pub(super) fn export_program(&mut self) -> Program {
        let program = || Program::new(export_all()).expect("our own circuits are valid");
        self.export.get_or_insert_with(program).clone()
    }

    /// What the pool lacks of `demand`.
    pub(super) fn short_of(&self, demand: &Demand) -> Demand {
        self.pool.missing_for(demand)
    }

    /// From now on the pool should hold `demand` at least.
    pub(super) fn keep(&mut self, demand: &Demand) {
        let raised = self.target + demand.beyond(&self.target);
        if raised.total() <= MAX_TARGET {
            self.target = raised;
        } else if (self.target.total()..=MAX_TARGET).contains(&demand.total()) {
            self.target = *demand;
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self.task, EngineTask::Idle)
    }

    /// Begins to make these chunks.
    pub(super) fn fill(&mut self, chunks: &[Chunk]) -> Result<(), String> {
        for chunk in chunks {
            self.setup.request(*chunk).map_err(|error| error.to_string())?;
        }
        self.task = EngineTask::Fill;
        self.awaiting = false;
        Ok(())
    }

    /// Begins an evaluation; the pool holds what it needs.
    pub(super) fn evaluate(&mut self, program: &Program, inputs: &BitRows) -> Result<(), String> {
        let evaluation = Evaluation::new(program, inputs, &mut self.pool).map_err(|error| error.to_string())?;
        self.task = EngineTask::Evaluate(Box::new(evaluation));
        self.awaiting = false;
        Ok(())
    }

    /// Takes a message in; its number must be the next.
    pub(super) fn receive(&mut self, step: u64, bytes: Vec<u8>) -> Result<(), String> {
        if step != self.received {
            return Err(format!("engine message {step} where {} is next", self.received));
        }
        if self.waiting.len() >= MAX_WAITING {
            return Err("engine messages out of turn".to_owned());
        }
        self.received += 1;
        self.waiting.push_back(bytes);
        Ok(())
    }

    /// Goes on as far as it can: messages to send with their numbers, and what is done.
    #[expect(clippy::type_complexity, reason = "messages and, at the end, the result")]
    pub(super) fn pump(&mut self) -> Result<(Vec<(u64, Vec<u8>)>, Option<Finished>), String> {
        let mut out = Vec::new();
        loop {
            let received = if self.awaiting {
                match self.waiting.pop_front() {
                    Some(message) => Some(message),
                    None => return Ok((out, None)),
                }
            } else {
                None
            };
            let sent = match &mut self.task {
                EngineTask::Idle => return Ok((out, None)),
                EngineTask::Fill => match self.setup.round(received.as_deref()).map_err(|e| e.to_string())? {
                    Step::Send(bytes) => Some(bytes),
                    Step::Done(stock) => {
                        self.pool.add(stock).map_err(|e| e.to_string())?;
                        self.awaiting = false;
                        if self.setup.pending() == 0 {
                            self.task = EngineTask::Idle;
                            return Ok((out, Some(Finished::Filled)));
                        }
                        None
                    }
                },
                EngineTask::Evaluate(evaluation) => {
                    match evaluation.round(received.as_deref()).map_err(|e| e.to_string())? {
                        Step::Send(bytes) => Some(bytes),
                        Step::Done(outputs) => {
                            self.task = EngineTask::Idle;
                            self.awaiting = false;
                            return Ok((out, Some(Finished::Evaluated(outputs))));
                        }
                    }
                }
            };
            if let Some(bytes) = sent {
                out.push((self.sent, bytes));
                self.sent += 1;
                self.awaiting = true;
            }
        }
    }
}

/// Chunks of one refill while nothing is to do: few, so that a batch never waits long.
pub(super) fn refill_chunks(short: &Demand) -> Vec<Chunk> {
    short.chunks(CHUNK).into_iter().take(1).collect()
}

/// The frame's form of chunks.
pub(super) fn to_frame(chunks: &[Chunk]) -> Vec<(u32, u64)> {
    let bits = |chunk: &Chunk| u32::try_from(chunk.width.bits()).expect("at most 128");
    chunks.iter().map(|chunk| (bits(chunk), chunk.count as u64)).collect()
}

/// Chunks from a frame.
pub(super) fn from_frame(demand: &[(u32, u64)]) -> Result<Vec<Chunk>, &'static str> {
    demand
        .iter()
        .map(|(bits, count)| {
            let width = Width::ALL.into_iter().find(|w| w.bits() == *bits as usize).ok_or("no such width")?;
            let count = usize::try_from(*count).map_err(|_| "too many correlations")?;
            if count > CHUNK { Err("too many correlations") } else { Ok(Chunk { width, count }) }
        })
        .collect()
}
