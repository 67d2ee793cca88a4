//! A step on its way from the operator that proposes it to the one that countersigns.

use wayleave_core::wire::{Malformed, Reader, Writer};
use wayleave_crypto::sign::{Signature, SigningKey};

use super::{ChainError, Change, Directory, MAX_ENCODED, SignedStep, Step};

/// Version of the encoding.
const VERSION: u8 = 2;

/// A step with one operator's signature.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proposal {
    pub step: Step,
    /// The party whose operator signed, 1 or 2.
    pub party: u8,
    pub signature: Signature,
}

/// Why a proposal is not taken.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProposalError {
    #[error(transparent)]
    Chain(#[from] ChainError),
    #[error(
        "not an operator key of this exchange: expected the key file of one of its two operators, which is no party's and no member's key"
    )]
    NoOperator,
    #[error("the operator of party {0} proposed it; the other operator countersigns")]
    OwnProposal(u8),
    #[error("it is not signed by the operator of party {0}")]
    NotSigned(u8),
    /// Whoever takes the other operator's key signs for both.
    #[error("it replaces the key of party {0}'s operator, which only that operator proposes")]
    OthersKey(u8),
}

/// Whether the step replaces no other operator's key than that of `party`.
fn check_operators(step: &Step, party: u8) -> Result<(), ProposalError> {
    let replaced = |change: &Change| match change {
        Change::Operator { party, .. } => Some(*party),
        _ => None,
    };
    match step.changes.iter().filter_map(replaced).find(|of| *of != party) {
        Some(other) => Err(ProposalError::OthersKey(other)),
        None => Ok(()),
    }
}

impl Proposal {
    /// Proposes a step, as the operator with `key`.
    pub fn sign(directory: &Directory, step: Step, key: &SigningKey) -> Result<Self, ProposalError> {
        directory.check_step(&step)?;
        let party = directory.party_of(&key.verifying_key().to_bytes()).ok_or(ProposalError::NoOperator)?;
        check_operators(&step, party)?;
        Ok(Self { party, signature: step.sign(key), step })
    }

    /// Whether it may follow what is in force in `directory`, and the operator that it names signed it.
    pub fn check(&self, directory: &Directory) -> Result<(), ProposalError> {
        check_operators(&self.step, self.party)?;
        directory.check_step(&self.step)?;
        let operator = directory.operators()[usize::from(self.party == 2)];
        let is_signed = self.step.is_signed(&operator, &self.signature);
        if is_signed { Ok(()) } else { Err(ProposalError::NotSigned(self.party)) }
    }

    /// The directory with the step, as the other operator, with `key`.
    pub fn countersign(self, directory: &Directory, key: &SigningKey) -> Result<Directory, ProposalError> {
        self.check(directory)?;
        let party = directory.party_of(&key.verifying_key().to_bytes()).ok_or(ProposalError::NoOperator)?;
        if party == self.party {
            return Err(ProposalError::OwnProposal(party));
        }
        let second = self.step.sign(key);
        let signatures = if party == 2 { [self.signature, second] } else { [second, self.signature] };
        Ok(directory.with(SignedStep { step: self.step, signatures })?)
    }

    /// The encoding: version 8, party 8, signature 512, step.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.u8(VERSION).u8(self.party).bytes(&self.signature);
        self.step.write(&mut out);
        out.finish()
    }

    /// Reads what [`Proposal::encode`] wrote, all of it; nothing is checked.
    pub fn decode(bytes: &[u8]) -> Result<Self, ChainError> {
        if bytes.len() > MAX_ENCODED {
            return Err(ChainError::Full);
        }
        let mut reader = Reader::new(bytes);
        match reader.u8()? {
            VERSION => {}
            version => return Err(ChainError::Version(version)),
        }
        let party = match reader.u8()? {
            party @ 1..=2 => party,
            _ => return Err(Malformed::Value("the number of a party").into()),
        };
        let signature = reader.array()?;
        let step = Step::read(&mut reader)?;
        reader.end()?;
        Ok(Self { step, party, signature })
    }
}
