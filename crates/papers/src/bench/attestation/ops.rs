//! `bench attest-ops`: the cost of one operation and of one UPDATE, and the HORS trees of figure 4.

use serde_json::json;
use wayleave_attestation::SuiteId;
use wayleave_attestation::suite::of_key_file;
use wayleave_crypto::secret::Secret;

use super::hors::{self, Cost, MEAN_PATH};
use super::memory::signature_bytes;
use super::neighbours;
use super::workload::{Route, routes};
use super::{
    BURST, Operations, Options, Part, ReceivedUpdate, SEED, SuiteFailure, SuiteVariant, failed, generate, note_missing,
    operations, receive_all, seed,
};
use crate::kc_x::hors::{KC_MT, SPV, Shape};
use crate::kc_x::origin::OriginStatement;
use crate::kc_x::raw::Exponent;
use crate::report::Report;
use crate::scheme::Scheme;

/// ASes of each kind: origins, edge, core.
const FEW_ASES: u32 = 4;

/// Suites whose times are compared.
const PAIRS: [(SuiteId, SuiteId); 4] = [
    (SuiteId::KcMtPaper, SuiteId::SBgp),
    (SuiteId::KcMtPaper, SuiteId::Spv),
    (SuiteId::KcEd25519, SuiteId::Bgpsec),
    (SuiteId::KcHbs, SuiteId::KcEd25519),
];

/// A suite in one of its variants, and its times.
struct VariantTimes {
    variant: SuiteVariant,
    scheme: Box<dyn Scheme>,
    /// The UPDATEs that it verifies.
    received: Vec<ReceivedUpdate>,
    operations: Operations,
}

impl VariantTimes {
    fn hops(&self) -> usize {
        self.received.iter().map(|one| one.announcement.path.len()).sum()
    }

    /// The paper's table III: one verification, without the origin's RSA signature.
    fn verification(&self) -> Vec<f64> {
        let own: usize = self.received.iter().map(|one| self.variant.own_signatures(one.announcement.path.len())).sum();
        let ratio = self.hops() as f64 / own as f64;
        self.operations.verify.iter().map(|each| each * ratio).collect()
    }

    /// Equation (1): Length(ASPATH) * Time(verify) + Time(sign).
    fn equation_1(&self) -> Vec<f64> {
        self.verification().iter().zip(&self.operations.sign).map(|(verify, sign)| MEAN_PATH * verify + sign).collect()
    }

    /// Measures all operations once more. The first of two rounds is not counted: it fills the caches with this suite's own
    /// data.
    fn round(&mut self, mut clock: fn() -> u64) {
        let Self { scheme, received, .. } = self;
        operations(scheme.as_mut(), received, BURST, 1, &mut clock);
        let Operations { sign, verify, verify_burst, update_alone, update } =
            operations(scheme.as_mut(), received, BURST, 1, &mut clock);
        let all = &mut self.operations;
        all.sign.extend(sign);
        all.verify.extend(verify);
        all.verify_burst.extend(verify_burst);
        all.update_alone.extend(update_alone);
        all.update.extend(update);
    }
}

/// `bench attest-ops`.
///
/// # Errors
/// If a scheme cannot sign the UPDATEs.
pub fn run(options: &Options) -> Result<Report, SuiteFailure> {
    let count = if options.short { 120 } else { 240 };
    let repetitions = options.repetitions.unwrap_or(if options.short { 5 } else { 15 }).max(1);
    let routes = routes(count, FEW_ASES, SEED);
    let params = json!({
        "updates": count, "mean_path": MEAN_PATH, "burst": BURST, "origin_statements": "remembered",
        "clock": "processor time",
    });
    let mut report = Report::new("attest-ops", params);
    if options.part == Part::Trees {
        add_figure_4(&mut report, options, repetitions);
        return Ok(report);
    }
    let (mut missing, mut measured) = (Vec::new(), Vec::new());
    for variant in options.variants() {
        match prepare(variant, &routes, options.part)? {
            Some(ways) => measured.extend(ways),
            None => missing.push(variant.name()),
        }
    }
    // Suite by suite within each round, so that a machine that becomes slower does so for all of them.
    for _ in 0..repetitions {
        measured.iter_mut().for_each(|one| one.round(options.clock));
        // For who stops it: the final summaries take this one's place.
        let mut so_far = report.clone();
        measured.iter().for_each(|one| add_operations(&mut so_far, one));
    }
    if options.part == Part::Operations {
        measured.iter().for_each(|one| add_operations(&mut report, one));
        note_missing(&mut report, &missing);
        return Ok(report);
    }
    for one in &mut measured {
        add(&mut report, one, options)?;
    }
    add_ratios(&mut report, &measured);
    add_figure_4(&mut report, options, repetitions);
    add_objects(&mut report, options, repetitions);
    neighbours::add(&mut report, options, repetitions);
    note_missing(&mut report, &missing);
    Ok(report)
}

/// The suite in each of its variants: KC-MT and SPV with each handling of the origin's statement, S-BGP with and without
/// tables of public keys.
fn prepare(variant: SuiteVariant, routes: &[Route], part: Part) -> Result<Option<Vec<VariantTimes>>, SuiteFailure> {
    let mut ways = vec![variant];
    match variant.suite {
        SuiteId::KcMtPaper | SuiteId::Spv if part == Part::Operations => {
            ways.push(SuiteVariant { statement: OriginStatement::AllRemembered, ..variant });
        }
        _ if part == Part::Operations => {}
        SuiteId::KcMtPaper | SuiteId::Spv => ways.extend([
            SuiteVariant { statement: OriginStatement::AllRemembered, ..variant },
            SuiteVariant { statement: OriginStatement::EachTime, ..variant },
            SuiteVariant { statement: OriginStatement::EachTime, exponent: Exponent::Three, ..variant },
        ]),
        SuiteId::SBgp => ways.push(SuiteVariant { tables: false, ..variant }),
        _ => {}
    }
    let measured = |variant: SuiteVariant| {
        let Some(mut scheme) = variant.scheme(&seed()) else { return Ok(None) };
        let received = receive_all(scheme.as_mut(), routes).map_err(failed(variant))?;
        Ok(Some(VariantTimes { variant, scheme, received, operations: Operations::default() }))
    };
    ways.into_iter().map(measured).collect()
}

/// The variant's part of the results' names.
fn way(variant: SuiteVariant) -> &'static str {
    match (variant.statement, variant.exponent) {
        (OriginStatement::Remembered, _) => "",
        (OriginStatement::AllRemembered, _) => "_all_statements_known",
        (OriginStatement::EachTime, Exponent::F4) => "_each_statement",
        (OriginStatement::EachTime, Exponent::Three) => "_each_statement_e3",
    }
}

fn in_seconds(nanoseconds: &[f64]) -> Vec<f64> {
    nanoseconds.iter().map(|each| each / 1e9).collect()
}

/// The times of all rounds.
fn add_times(report: &mut Report, one: &VariantTimes) {
    let (variant, name) = (one.variant, one.variant.name());
    let mut add = |what: &str, samples: &[f64]| report.add(format!("{what}.{name}"), "s", &in_seconds(samples));
    let Operations { sign, verify, verify_burst, update_alone, update } = &one.operations;
    match variant.statement {
        OriginStatement::Remembered => {
            add("sign", sign);
            add("verify", verify);
            add("verify_burst", verify_burst);
            add("update", update);
            add("update_alone", update_alone);
        }
        OriginStatement::AllRemembered => {}
        OriginStatement::EachTime => add(&format!("update{}", way(variant)), update),
    }
}

/// The times of all rounds, and what tables I and III have of them.
fn add_operations(report: &mut Report, one: &VariantTimes) {
    add_times(report, one);
    if counts_as_the_paper(one.variant) {
        let name = one.variant.name();
        report.add(format!("verification.{name}"), "s", &in_seconds(&one.verification()));
        report.add(format!("equation_1.{name}"), "s", &in_seconds(&one.equation_1()));
    }
}

fn add(report: &mut Report, one: &mut VariantTimes, options: &Options) -> Result<(), SuiteFailure> {
    let (variant, name) = (one.variant, one.variant.name());
    add_operations(report, one);
    if variant.statement == OriginStatement::Remembered {
        report.add(format!("generate.{name}"), "s", &in_seconds(&generation(variant.suite, options)));
    }
    if variant.statement != OriginStatement::Remembered || !variant.tables {
        return Ok(());
    }
    let hops = one.hops();
    let VariantTimes { scheme, received, .. } = one;
    let bytes: usize = received.iter().map(|one| scheme.signature_bytes(&one.attestation)).sum();
    report.exact(format!("bytes_per_hop.{name}"), "bytes", bytes as f64 / hops as f64);
    // The bytes of one more hop.
    let mut of = |hops| signature_bytes(scheme.as_mut(), hops, 200).map_err(failed(variant));
    let (shorter, longer) = (of(3)?, of(4)?);
    report.exact(format!("bytes_next_hop.{name}"), "bytes", longer - shorter);
    Ok(())
}

/// Whether equation (1) is computed from this variant: the one without the origin's RSA signature, where there is one.
fn counts_as_the_paper(variant: SuiteVariant) -> bool {
    match variant.suite {
        SuiteId::KcMtPaper | SuiteId::Spv => variant.statement == OriginStatement::AllRemembered,
        _ => true,
    }
}

/// Ratios of the times of an UPDATE, one for each round.
fn add_ratios(report: &mut Report, measured: &[VariantTimes]) {
    let of = |suite: SuiteId, is: &dyn Fn(SuiteVariant) -> bool| {
        measured.iter().find(|one| one.variant.suite == suite && one.variant.tables && is(one.variant))
    };
    let mut add = |what: &str, (one, other): (SuiteId, SuiteId), samples: Option<(Vec<f64>, Vec<f64>)>| {
        let Some((mine, theirs)) = samples else { return };
        let ratios: Vec<f64> = mine.iter().zip(theirs).map(|(mine, theirs)| theirs / mine).collect();
        report.add(format!("{what}.{one}.than.{other}"), "ratio", &ratios);
    };
    for pair @ (one, other) in PAIRS {
        let updates = |is: &dyn Fn(SuiteVariant) -> bool| {
            let both = of(one, is).zip(of(other, is).or_else(|| of(other, &|_| true)));
            both.map(|(one, other)| (one.operations.update.clone(), other.operations.update.clone()))
        };
        let remembered = updates(&|variant| variant.statement == OriginStatement::Remembered);
        if one != SuiteId::KcMtPaper {
            add("faster", pair, remembered);
            continue;
        }
        let both = of(one, &counts_as_the_paper).zip(of(other, &counts_as_the_paper));
        add("faster", pair, both.map(|(one, other)| (one.equation_1(), other.equation_1())));
        add("faster_update", pair, remembered);
        for exponent in [Exponent::F4, Exponent::Three] {
            let each = SuiteVariant { statement: OriginStatement::EachTime, exponent, ..SuiteVariant::new(one) };
            let same = |variant: SuiteVariant| (variant.statement, variant.exponent) == (each.statement, exponent);
            add(&format!("faster{}", way(each)), pair, updates(&same));
        }
    }
}

/// Nanoseconds of each of some key generations.
fn generation(suite: SuiteId, options: &Options) -> Vec<f64> {
    let one = |number: u8| {
        let start = (options.clock)();
        generate(suite, &Secret::new([number; 32]));
        ((options.clock)() - start) as f64
    };
    (0..if options.short { 3 } else { 9 }).map(one).collect()
}

/// Whether the suite signs objects of the PKI and no hop.
fn signs_objects(suite: SuiteId) -> bool {
    SuiteId::OF_OBJECTS.contains(&suite)
}

/// Octets of what is signed: those of a profile with two keys.
const OBJECT: [u8; 140] = [7; 140];

/// Signatures of the PKI's objects: each of the two that an object has.
fn add_objects(report: &mut Report, options: &Options, repetitions: usize) {
    if !options.suites.is_empty() && !options.suites.iter().any(|suite| signs_objects(*suite)) {
        return;
    }
    for id in [SuiteId::KcEd25519, SuiteId::SlhDsa128s] {
        let Some(suite) = of_key_file(id) else { continue };
        let (mut generated, mut signed, mut verified) = (Vec::new(), Vec::new(), Vec::new());
        let mut octets = 0;
        for _ in 0..repetitions {
            let start = (options.clock)();
            let mut key = suite.generate(&seed());
            generated.push(((options.clock)() - start) as f64);
            let start = (options.clock)();
            let signature = key.sign(&OBJECT).unwrap_or_default();
            signed.push(((options.clock)() - start) as f64);
            let start = (options.clock)();
            let is_right = suite.verify(key.public(), &OBJECT, &signature);
            verified.push(((options.clock)() - start) as f64);
            octets = if is_right { signature.len() } else { 0 };
        }
        let mut add =
            |what: &str, samples: &[f64]| report.add(format!("object_{what}.{id}"), "s", &in_seconds(samples));
        add("generate", &generated);
        add("sign", &signed);
        add("verify", &verified);
        report.exact(format!("object_signature.{id}"), "bytes", octets as f64);
    }
}

/// Numbers of signatures after which the probability of a forgery is computed and tried.
pub const AFTER: [u32; 9] = [10, 15, 20, 25, 30, 35, 40, 50, 60];

fn add_figure_4(report: &mut Report, options: &Options, repetitions: usize) {
    if !options.suites.is_empty() && !options.suites.contains(&SuiteId::KcMtPaper) {
        return;
    }
    let mut clock = options.clock;
    let trees = if options.short { 8 } else { 32 };
    for shape in hors::shapes() {
        let costs: Vec<Cost> = (0..repetitions).map(|_| hors::cost(shape, trees, &mut clock)).collect();
        let name = shape_name(shape);
        let mut add = |what: &str, of: fn(&Cost) -> f64| {
            let samples: Vec<f64> = costs.iter().map(of).collect();
            report.add(format!("hors_{what}.{name}"), "s", &in_seconds(&samples));
        };
        add("sign_first", |cost| cost.first);
        add("sign_next", |cost| cost.next);
        add("verify", |cost| cost.verify);
        add("update", Cost::update);
        report.exact(format!("hors_sigma.{name}"), "signatures", f64::from(costs[0].sigma));
        report.exact(format!("hors_bytes.{name}"), "bytes", costs[0].bytes);
    }
    let tries = if options.short { 200 } else { 20_000 };
    for shape in [KC_MT, SPV] {
        for signatures in AFTER {
            let name = format!("{}.{signatures}", shape_name(shape));
            let (computed, tried) =
                (hors::forgery_probability(shape, signatures), hors::forgeries(shape, signatures, 200, tries));
            report.exact(format!("hors_forgery_computed.{name}"), "ratio", computed);
            report.counted(format!("hors_forgery_tried.{name}"), "ratio", tried, 200 * tries as usize);
        }
    }
}

/// The name in the results: leaves and disclosed leaves.
pub fn shape_name(shape: Shape) -> String {
    format!("{}-{}", shape.leaves(), shape.m)
}
