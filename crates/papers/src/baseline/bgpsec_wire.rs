//! BGPsec's path attribute and the octets that its signatures cover (RFC 8205 sections 3 and 4.2).

use wayleave_core::{Asn, Prefix};

/// ECDSA over P-256 with SHA-256 (RFC 8608 section 2.1).
pub const SUITE_ECDSA_P256: u8 = 1;
/// Octets of a subject key identifier.
pub const SKI_LEN: usize = 20;

/// Octets of a Secure_Path Segment.
const SEGMENT_LEN: usize = 6;
/// Unicast.
const SAFI: u8 = 1;

/// The SHA-1 hash of a router's public key, as its certificate has it (RFC 8209, RFC 6487 section 4.8.2).
pub type Ski = [u8; SKI_LEN];

/// One AS of the path (RFC 8205 figure 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecurePathSegment {
    /// pCount: repetitions of the AS, 0 for a transparent route server.
    pub p_count: u8,
    /// Bit 0x80: the segment is of a confederation. The others are signed and otherwise ignored.
    pub flags: u8,
    /// The AS.
    pub asn: Asn,
}

/// One signature (RFC 8205 figure 7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignatureSegment {
    /// Identifier of the key that signed.
    pub ski: Ski,
    /// The signature as its suite encodes it (DER for ECDSA).
    pub signature: Vec<u8>,
}

/// The signatures of one algorithm suite (RFC 8205 figure 6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignatureBlock {
    /// The suite's number.
    pub suite: u8,
    /// As many as the path has segments, the most recent first.
    pub signatures: Vec<SignatureSegment>,
}

/// A well-formed value of the attribute; its signatures are not verified.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct BgpsecPath {
    /// The most recent AS first.
    pub segments: Vec<SecurePathSegment>,
    /// One, or two during a change of suites.
    pub blocks: Vec<SignatureBlock>,
}

/// Why an attribute is malformed (RFC 8205 section 5.2: treat as withdraw).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BgpsecError {
    #[error("the attribute is truncated")]
    Truncated,
    #[error("a length of {0} octets is not a whole number of entries")]
    Length(u16),
    #[error("the path has no segment")]
    NoSegment,
    #[error("{0} signature blocks instead of one or two")]
    Blocks(usize),
    #[error("two signature blocks of suite {0}")]
    RepeatedSuite(u8),
    #[error("a block of {signatures} signatures for {segments} segments")]
    Signatures { signatures: usize, segments: usize },
}

impl BgpsecPath {
    /// Decodes the attribute's value.
    pub fn decode(value: &[u8]) -> Result<Self, BgpsecError> {
        let (path, mut rest) = counted(value)?;
        if path.is_empty() {
            return Err(BgpsecError::NoSegment);
        }
        let (segments, left) = path.as_chunks::<SEGMENT_LEN>();
        if !left.is_empty() {
            return Err(BgpsecError::Length(as_u16(path.len() + 2)));
        }
        let segments: Vec<_> = segments.iter().map(SecurePathSegment::decode).collect();
        let mut blocks: Vec<SignatureBlock> = Vec::new();
        while !rest.is_empty() {
            let (body, after) = counted(rest)?;
            let block = SignatureBlock::decode(body, segments.len())?;
            if blocks.iter().any(|other| other.suite == block.suite) {
                return Err(BgpsecError::RepeatedSuite(block.suite));
            }
            blocks.push(block);
            if blocks.len() > 2 {
                return Err(BgpsecError::Blocks(blocks.len()));
            }
            rest = after;
        }
        if blocks.is_empty() {
            return Err(BgpsecError::Blocks(0));
        }
        Ok(Self { segments, blocks })
    }

    /// The attribute's value; `None` if a length does not fit its two octets.
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        put_counted(&mut out, self.segments.iter().flat_map(SecurePathSegment::encode).collect())?;
        for block in &self.blocks {
            let mut body = vec![block.suite];
            for segment in &block.signatures {
                segment.encode(&mut body)?;
            }
            put_counted(&mut out, body)?;
        }
        Some(out)
    }

    /// The ASes in the order of travel, the origin first, each once, without route servers (pCount 0).
    pub fn ases(&self) -> impl Iterator<Item = Asn> {
        self.segments.iter().rev().filter(|segment| segment.p_count > 0).map(|segment| segment.asn)
    }

    /// What the signer of segment `index` (0 is the most recent) signed in `block` (RFC 8205 figure 8): the AS that it
    /// sent to, then every older signature and segment, then the suite and the prefix.
    ///
    /// # Panics
    /// If `index` is not below the number of segments, or the block has fewer signatures than the path has segments.
    #[must_use]
    pub fn signed_octets(&self, block: &SignatureBlock, index: usize, target: Asn, prefix: &Prefix) -> Vec<u8> {
        let mut out = Vec::with_capacity(32 + (self.segments.len() - index) * 100);
        out.extend_from_slice(&target.0.to_be_bytes());
        for older in index..self.segments.len() {
            // The previous AS's signature, then this one's segment; the origin has no previous signature.
            if let Some(signature) = block.signatures.get(older + 1) {
                signature.encode(&mut out).expect("it was decoded from, or made for, two octets of length");
            }
            out.extend_from_slice(&self.segments[older].encode());
        }
        out.push(block.suite);
        out.extend_from_slice(&prefix.afi().code().to_be_bytes());
        out.push(SAFI);
        out.push(prefix.len());
        out.extend_from_slice(&prefix.octets()[..usize::from(prefix.len()).div_ceil(8)]);
        out
    }
}

impl SecurePathSegment {
    fn decode(octets: &[u8; SEGMENT_LEN]) -> Self {
        let [p_count, flags, asn @ ..] = *octets;
        Self { p_count, flags, asn: Asn(u32::from_be_bytes(asn)) }
    }

    fn encode(&self) -> [u8; SEGMENT_LEN] {
        let [a, b, c, d] = self.asn.0.to_be_bytes();
        [self.p_count, self.flags, a, b, c, d]
    }
}

impl SignatureSegment {
    fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), BgpsecError> {
        let (&ski, rest) = bytes.split_first_chunk().ok_or(BgpsecError::Truncated)?;
        let (&len, rest) = rest.split_first_chunk().ok_or(BgpsecError::Truncated)?;
        let len = usize::from(u16::from_be_bytes(len));
        let (signature, rest) = rest.split_at_checked(len).ok_or(BgpsecError::Truncated)?;
        Ok((Self { ski, signature: signature.to_vec() }, rest))
    }

    fn encode(&self, out: &mut Vec<u8>) -> Option<()> {
        let len = u16::try_from(self.signature.len()).ok()?;
        out.extend_from_slice(&self.ski);
        out.extend_from_slice(&len.to_be_bytes());
        out.extend_from_slice(&self.signature);
        Some(())
    }
}

impl SignatureBlock {
    fn decode(body: &[u8], segments: usize) -> Result<Self, BgpsecError> {
        let (&suite, mut rest) = body.split_first().ok_or(BgpsecError::Truncated)?;
        let mut signatures = Vec::new();
        while !rest.is_empty() {
            let (signature, after) = SignatureSegment::decode(rest)?;
            signatures.push(signature);
            rest = after;
        }
        if signatures.len() != segments {
            return Err(BgpsecError::Signatures { signatures: signatures.len(), segments });
        }
        Ok(Self { suite, signatures })
    }
}

/// The contents after a length of two octets, which counts itself, and the rest.
fn counted(bytes: &[u8]) -> Result<(&[u8], &[u8]), BgpsecError> {
    let len = u16::from_be_bytes(*bytes.first_chunk().ok_or(BgpsecError::Truncated)?);
    let (counted, rest) = bytes.split_at_checked(usize::from(len)).ok_or(BgpsecError::Truncated)?;
    Ok((counted.get(2..).ok_or(BgpsecError::Length(len))?, rest))
}

fn put_counted(out: &mut Vec<u8>, body: Vec<u8>) -> Option<()> {
    out.extend_from_slice(&u16::try_from(body.len() + 2).ok()?.to_be_bytes());
    out.extend(body);
    Some(())
}

fn as_u16(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}
