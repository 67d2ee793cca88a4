//! The two-party engine on the link between the parties. Two streams of messages, each with one message of each party in turn:
//! evaluations, one at a time, and setup ([`super::supply`]), which goes on beside them.

use std::collections::{BTreeMap, VecDeque};

use wayleave_core::{Instant, wire};
use wayleave_crypto::hash::hash;
use wayleave_mpc::circuits::{SelectBest, export_all, select_best};
use wayleave_mpc::{BitRows, Chunk, Demand, Evaluation, Pool, Program, Role, Rounds, SessionId, Setup, Step, Width};

use super::supply::{MAX_CHUNK, SetupDone, SetupJob, Supply};
use super::{LinkId, PartyNumber};
use crate::versions::Versions;

/// Bytes of correlations kept ahead of need: our own limit.
const POOL_LIMIT: usize = 256 << 20;
/// Bytes that the pool may hold beyond that: what an evaluation waits for, and what the slower party has not used yet.
const POOL_SLACK: usize = 64 << 20;
/// Correlations that are kept ahead at most: our own limit.
pub(super) const MAX_TARGET: usize = 8 << 20;
/// Messages that may wait: the peer is at most one ahead.
const MAX_WAITING: usize = 4;

/// One session of the engine, from link-up to link-down.
pub(super) struct Engine {
    supply: Supply,
    pool: Pool,
    programs: BTreeMap<usize, Program>,
    export: Option<Program>,
    evaluation: Option<Box<Evaluation>>,
    /// What the next evaluation takes, while the pool has too little for it.
    waits_for: Option<Demand>,
    awaiting: bool,
    waiting: VecDeque<Vec<u8>>,
    sent: u64,
    received: u64,
    /// What the pool should hold for what may come at any moment.
    target: Demand,
    /// What it should hold beyond that, for work that can wait.
    backlog: Demand,
    /// Whether it has held all that it should for live work since the link came up.
    was_full: bool,
    /// The most routes of one prefix so far, padded to a power of two.
    pub(super) widest: usize,
}

impl Engine {
    /// A session on `link`, bound to both parties' nonces and to the versions that each says it speaks; `seed` is fresh.
    pub(super) fn new(
        number: PartyNumber,
        link: LinkId,
        [one, two]: [[u8; 16]; 2],
        versions: [Versions; 2],
        seed: [u8; 32],
    ) -> Self {
        let [of_one, of_two] = versions.map(|versions| wire::encode(&versions));
        let id = hash("wayleave/route-server/engine/v2", &[&one, &two, &of_one, &of_two]);
        let id = SessionId(*id.first_chunk().expect("16 of 32 bytes"));
        let role = match number {
            PartyNumber::One => Role::Party1,
            PartyNumber::Two => Role::Party2,
        };
        Self {
            supply: Supply::new(link, Setup::new(role, id, seed)),
            pool: Pool::new(POOL_LIMIT + POOL_SLACK),
            programs: BTreeMap::new(),
            export: None,
            evaluation: None,
            waits_for: None,
            awaiting: false,
            waiting: VecDeque::new(),
            sent: 0,
            received: 0,
            target: Demand::default(),
            backlog: Demand::default(),
            was_full: false,
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

    /// From now on the pool should hold `demand` at least.
    pub(super) fn keep(&mut self, demand: &Demand) {
        let raised = self.target + demand.beyond(&self.target);
        if raised.total() <= MAX_TARGET {
            self.target = raised;
        } else if (self.target.total()..=MAX_TARGET).contains(&demand.total()) {
            self.target = *demand;
        }
    }

    /// Whether the pool holds `demand` beyond what it keeps for live work: then work that can wait may take as much. Until it has
    /// been full for the first time since the link came up, nothing is kept.
    pub(super) fn is_spare(&mut self, demand: &Demand) -> bool {
        let available = self.pool.available();
        self.was_full |= self.target.total() > 0 && self.target.beyond(&available).total() == 0;
        !self.was_full || (self.target + *demand).beyond(&available).total() == 0
    }

    /// From now on the pool should hold `demand` beyond what it keeps for live work; none by default. At party 1, which orders.
    /// `false` if that would be more than the limit: nothing is kept, and the caller needs smaller pieces.
    pub(super) fn keep_spare(&mut self, demand: &Demand) -> bool {
        let fits = self.target.total().saturating_add(demand.total()) <= MAX_TARGET;
        self.backlog = if fits { *demand } else { Demand::default() };
        fits
    }

    /// What the pool lacks of what it should hold while nothing waits for it, and is not ordered yet.
    pub(super) fn short(&self) -> Demand {
        self.not_ordered(&(self.target + self.backlog))
    }

    fn not_ordered(&self, wanted: &Demand) -> Demand {
        let missing = self.pool.missing_for(wanted);
        if missing.total() == 0 { missing } else { missing.beyond(&self.supply.ordered()) }
    }

    /// The chunk that party 1 orders next for an evaluation that waits for it; otherwise, with `ahead`, to have the pool hold what
    /// it should.
    pub(super) fn next_chunk(&self, ahead: bool) -> Option<Chunk> {
        if !self.supply.may_order() {
            return None;
        }
        let size = self.supply.chunk_size();
        let first = |wanted: Demand| {
            let width = Width::ALL.into_iter().rev().find(|width| wanted.count(*width) > 0)?;
            Some(Chunk { width, count: wanted.count(width).min(size).next_multiple_of(128) })
        };
        let awaited = self.waits_for.and_then(|demand| first(self.not_ordered(&demand)));
        awaited.or_else(|| first(self.short()).filter(|chunk| ahead && self.fits(*chunk, POOL_LIMIT)))
    }

    /// Whether party 1 would order `chunk`s ahead of need as soon as it may.
    pub(super) fn orders_ahead(&self) -> bool {
        self.next_chunk(true).is_some()
    }

    fn fits(&self, chunk: Chunk, limit: usize) -> bool {
        let ordered = self.supply.ordered() + Demand::just(chunk.width, chunk.count);
        self.pool.bytes() + ordered.bytes() <= limit
    }

    /// Orders a chunk, behind those that were ordered before.
    pub(super) fn order(&mut self, chunk: Chunk) -> Result<(), &'static str> {
        if !self.fits(chunk, POOL_LIMIT + POOL_SLACK) {
            return Err("more correlations ordered than the pool holds");
        }
        self.supply.order(chunk)
    }

    /// Whether correlations are being made.
    pub(super) fn is_supplying(&self) -> bool {
        self.supply.is_at_work()
    }

    /// Since when the peer owes a message of setup, if it does.
    pub(super) fn awaits_setup_since(&self) -> Option<Instant> {
        self.supply.awaits_peer_since()
    }

    /// The next job of setup, if there is one.
    pub(super) fn setup_job(&mut self) -> Result<Option<SetupJob>, String> {
        self.supply.job()
    }

    /// Takes a job of setup back: what it made is in the pool. Returns the message to send, and whether something was made.
    #[expect(clippy::type_complexity, reason = "the message with its number, and whether the pool has more")]
    pub(super) fn setup_done(
        &mut self,
        done: SetupDone,
        now: Instant,
    ) -> Result<(Option<(u64, Vec<u8>)>, bool), String> {
        let (correlations, message) = self.supply.done(done, now)?;
        let made = !correlations.is_empty();
        for correlations in correlations {
            self.pool.add(correlations).map_err(|error| error.to_string())?;
        }
        Ok((message, made))
    }

    /// Whether no evaluation runs.
    pub(super) fn is_idle(&self) -> bool {
        self.evaluation.is_none()
    }

    /// Whether the pool holds `demand`, which the next evaluation takes. If not, that is supplied first.
    pub(super) fn has(&mut self, demand: &Demand) -> bool {
        let has = self.pool.missing_for(demand).total() == 0;
        self.waits_for = (!has).then_some(*demand);
        has
    }

    /// Begins an evaluation; the pool holds what it needs.
    pub(super) fn evaluate(&mut self, program: &Program, inputs: &BitRows) -> Result<(), String> {
        let evaluation = Evaluation::new(program, inputs, &mut self.pool).map_err(|error| error.to_string())?;
        self.evaluation = Some(Box::new(evaluation));
        self.awaiting = false;
        Ok(())
    }

    /// Takes a message of an evaluation in; its number must be the next.
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

    /// Takes a message of setup in; its number must be the next.
    pub(super) fn receive_setup(&mut self, step: u64, bytes: Vec<u8>) -> Result<(), String> {
        self.supply.receive(step, bytes)
    }

    /// Takes the evaluation as far as it can go: messages to send with their numbers, and the result at the end.
    #[expect(clippy::type_complexity, reason = "messages and, at the end, the result")]
    pub(super) fn pump(&mut self) -> Result<(Vec<(u64, Vec<u8>)>, Option<BitRows>), String> {
        let mut out = Vec::new();
        while let Some(evaluation) = &mut self.evaluation {
            let received = if self.awaiting { self.waiting.pop_front() } else { None };
            if self.awaiting && received.is_none() {
                break;
            }
            match evaluation.round(received.as_deref()).map_err(|error| error.to_string())? {
                Step::Send(bytes) => {
                    out.push((self.sent, bytes));
                    self.sent += 1;
                    self.awaiting = true;
                }
                Step::Done(outputs) => {
                    self.evaluation = None;
                    self.awaiting = false;
                    return Ok((out, Some(outputs)));
                }
            }
        }
        Ok((out, None))
    }
}

/// The frame's form of a chunk.
pub(super) fn to_frame(chunk: Chunk) -> (u32, u64) {
    (u32::try_from(chunk.width.bits()).expect("at most 128"), chunk.count as u64)
}

/// A chunk from a frame.
pub(super) fn from_frame((bits, count): (u32, u64)) -> Result<Chunk, &'static str> {
    let width = Width::ALL.into_iter().find(|w| w.bits() == bits as usize).ok_or("no such width of correlations")?;
    let count =
        usize::try_from(count).ok().filter(|count| *count <= MAX_CHUNK).ok_or("too many correlations at once")?;
    if count == 0 || !count.is_multiple_of(128) {
        return Err("a number of correlations that cannot be made");
    }
    Ok(Chunk { width, count })
}

#[cfg(test)]
mod tests {
    //! SIX, setup: correlations that come at any time, work that can wait: evaluations are right, and only what is
    //! beyond the reserve is taken.

    use super::*;

    /// Both ends, and what is on its way to each: messages of setup and of evaluations, and jobs that are out.
    struct Pair {
        engines: [Engine; 2],
        setup: [VecDeque<(u64, Vec<u8>)>; 2],
        evaluations: [VecDeque<(u64, Vec<u8>)>; 2],
        orders: VecDeque<Chunk>,
        jobs: [Option<SetupJob>; 2],
        seed: u64,
    }

    impl Pair {
        fn new(seed: u64) -> Self {
            let nonces = [[1; 16], [2; 16]];
            let engine = |number, own| Engine::new(number, 7, nonces, [crate::versions::VERSIONS; 2], [own; 32]);
            Self {
                engines: [engine(PartyNumber::One, 3), engine(PartyNumber::Two, 4)],
                setup: Default::default(),
                evaluations: Default::default(),
                orders: VecDeque::new(),
                jobs: [None, None],
                seed,
            }
        }

        fn below(&mut self, bound: u64) -> u64 {
            self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.seed >> 33) % bound
        }

        /// One thing that can happen at one end, or nothing.
        fn step(&mut self) {
            let end = usize::from(self.below(2) == 1);
            let now = Instant(1);
            match self.below(4) {
                0 if end == 0 => {
                    if let Some(chunk) = self.engines[0].next_chunk(true) {
                        self.engines[0].order(chunk).expect("party 1 orders what fits");
                        self.orders.push_back(chunk);
                    }
                }
                0 => {
                    if let Some(chunk) = self.orders.pop_front() {
                        self.engines[1].order(chunk).expect("party 1 orders what may wait");
                    }
                }
                // What was ordered is known before messages about it arrive, as on one link.
                1 if end == 0 || self.orders.is_empty() => {
                    if let Some((step, bytes)) = self.setup[end].pop_front() {
                        self.engines[end].receive_setup(step, bytes).expect("messages in turn");
                    }
                }
                2 => match self.jobs[end].take() {
                    None => self.jobs[end] = self.engines[end].setup_job().expect("chunks that can be made"),
                    Some(job) => {
                        let (message, _) = self.engines[end].setup_done(job.run(), now).expect("an honest peer");
                        self.setup[1 - end].extend(message);
                    }
                },
                _ => {
                    if let Some((step, bytes)) = self.evaluations[end].pop_front() {
                        self.engines[end].receive(step, bytes).expect("messages in turn");
                    }
                }
            }
        }
    }

    #[test]
    fn evaluations_are_right_whenever_correlations_come_and_whoever_is_ahead() {
        for seed in 0..12 {
            let mut pair = Pair::new(seed);
            let program = pair.engines[0].program(3);
            let lanes = [5, 700, 1, 130, 64].map(|lanes| (lanes, Demand::of(&program, lanes)));
            pair.engines[0].keep(&Demand::of(&program, 200));
            let (mut next, mut results) = ([0, 0], [Vec::new(), Vec::new()]);
            let mut steps = 0;
            while results.iter().any(|results| results.len() < lanes.len()) {
                steps += 1;
                assert!(steps < 2_000_000, "it does not come to an end");
                pair.step();
                for end in [0, 1] {
                    if let Some((lanes, demand)) = lanes.get(next[end])
                        && pair.engines[end].is_idle()
                        && pair.engines[end].has(demand)
                    {
                        let inputs = BitRows::zero(program.input_rows(), *lanes);
                        pair.engines[end].evaluate(&program, &inputs).expect("the pool holds enough");
                        next[end] += 1;
                    }
                    // Both ends' tags of an evaluation name the correlations that it takes: others are refused.
                    let (messages, done) = pair.engines[end].pump().expect("the same correlations at both ends");
                    pair.evaluations[1 - end].extend(messages);
                    results[end].extend(done);
                }
            }
            for (one, two) in results[0].iter().zip(&results[1]) {
                let revealed = one.xor(two).expect("one shape");
                assert!((0..revealed.rows()).all(|row| (0..revealed.lanes()).all(|lane| !revealed.bit(row, lane))));
            }
        }
    }

    /// Runs both ends until party 1 has orders, party 2's messages of setup up to number `step` and nothing more of them.
    fn until_message(pair: &mut Pair, step: u64) -> (u64, Vec<u8>) {
        let program = pair.engines[0].program(3);
        pair.engines[0].keep(&Demand::of(&program, 2000));
        loop {
            let newest = pair.setup[0].back().map(|(step, _)| *step);
            if newest == Some(step) {
                while pair.setup[0].len() > 1 {
                    pair.step();
                }
                return pair.setup[0].pop_front().expect("one message is left");
            }
            pair.step();
        }
    }

    #[test]
    fn after_a_failed_check_nothing_of_the_link_is_used_and_the_next_one_begins_anew() {
        // The parties' messages of setup: greeting, answers, trees, and then a chunk each.
        for (seed, step, what) in
            [(1, 2, "the seeds of its correlations"), (2, 3, "its correlations"), (3, 6, "its correlations")]
        {
            let mut pair = Pair::new(seed);
            let (step, mut bytes) = until_message(&mut pair, step);
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            let one = &mut pair.engines[0];
            one.receive_setup(step, bytes).expect("a message in turn");
            let before = one.pool.available();
            let failed = loop {
                let job = match pair.jobs[0].take() {
                    Some(job) => job,
                    None => one.setup_job().expect("chunks that can be made").expect("a message to take up"),
                };
                if let Err(failed) = one.setup_done(job.run(), Instant(2)) {
                    break failed;
                }
            };
            let expected = format!("party 2: {what} failed their check, which nobody fails who follows the protocol");
            assert_eq!(failed, expected);
            assert_eq!(one.pool.available(), before, "nothing of the chunk is counted");
            assert!(one.setup_job().expect("no chunk is refused").is_none(), "setup is gone, with its secrets");
            // The party's end of this session is dropped with its pool (`Rounds::end_session`); the next one has another seed and other nonces.
            let tag = |engine: &Engine| engine.pool.origin().map(|(_, tag)| tag);
            let old = tag(one);
            let mut next = Pair::new(seed + 100);
            next.engines = [(PartyNumber::One, 5), (PartyNumber::Two, 6)].map(|(number, own)| {
                Engine::new(number, 8, [[3; 16], [4; 16]], [crate::versions::VERSIONS; 2], [own; 32])
            });
            assert_eq!(next.engines[0].pool.available().total(), 0);
            until_message(&mut next, 5);
            assert!(tag(&next.engines[0]).is_some() && tag(&next.engines[0]) != old);
        }
    }

    #[test]
    fn work_that_can_wait_takes_only_what_is_beyond_the_reserve() {
        let mut pair = Pair::new(1);
        let program = pair.engines[0].program(2);
        let (live, later) = (Demand::of(&program, 256), Demand::of(&program, 128));
        pair.engines[0].keep(&live);
        let fill = |pair: &mut Pair| {
            while pair.engines[0].orders_ahead() || pair.engines.iter().any(Engine::is_supplying) {
                pair.step();
            }
        };
        fill(&mut pair);
        assert!(pair.engines[0].has(&live));
        assert!(!pair.engines[0].is_spare(&later), "the reserve is for live work");
        assert!(pair.engines[0].keep_spare(&later));
        fill(&mut pair);
        assert!(pair.engines[0].is_spare(&later));
        assert!(!pair.engines[0].is_spare(&live));
        // A backlog that would not fit is none.
        assert!(!pair.engines[0].keep_spare(&(later * MAX_TARGET)));
        assert_eq!(pair.engines[0].short().total(), 0);
    }
}
