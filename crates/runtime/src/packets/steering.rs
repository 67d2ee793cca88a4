//! Which socket of a group receives a packet: a program of classic BPF that the kernel runs on each UDP payload.

/// How packets of a group are told apart. Control traffic has a socket of its own, so that a flood of data does not delay
/// it; what one flow sends stays on one socket, and so in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Steering {
    /// IP packets: ICMP and ICMPv6 are control traffic; a flow is what has the same addresses.
    Ip,
    /// Packets with a fixed header.
    Header {
        /// A packet is control traffic if the octet at one of these offsets has this value.
        control: &'static [(u32, u8)],
        /// A flow is what has equal bits, under this mask, in the word at this offset.
        flow: (u32, u32),
    },
    /// Packets of neighbours that have one address each: a packet is control traffic if its first octet has one of these bits, and a flow
    /// is what comes from one address and port. What is merged into one large packet has one of each, so that it is whole at one socket.
    Source { control: u8 },
    /// Packets of which the first octet has one of the bits of `control` are control traffic; a flow is what has an equal word at this offset.
    Word { control: u8, at: u32 },
}

const fn instruction(code: u32, yes: u32, no: u32) -> u32 {
    code << 16 | yes << 8 | no
}
const LOAD_WORD: u32 = instruction(0x20, 0, 0);
const LOAD_HALF: u32 = instruction(0x28, 0, 0);
const LOAD_OCTET: u32 = instruction(0x30, 0, 0);
const LOAD_NUMBER: u32 = instruction(0x00, 0, 0);
const SKIP: u32 = instruction(0x05, 0, 0);
const AND: u32 = instruction(0x54, 0, 0);
const MODULO: u32 = instruction(0x94, 0, 0);
const EXCLUSIVE_OR: u32 = instruction(0xac, 0, 0);
const TO_X: u32 = instruction(0x07, 0, 0);
const RETURN: u32 = instruction(0x06, 0, 0);
const RETURN_A: u32 = instruction(0x16, 0, 0);

/// Four times the low half of an octet, as an IPv4 header says its length.
const LENGTH_TO_X: u32 = instruction(0xb1, 0, 0);
const LOAD_HALF_BEHIND_X: u32 = instruction(0x48, 0, 0);

/// A program that lets a raw socket receive UDP to this port alone.
pub(super) fn only_port(port: u16) -> [[u32; 2]; 5] {
    [[LENGTH_TO_X, 0], [LOAD_HALF_BEHIND_X, 2], [skip_if_equal(1), port.into()], NOTHING[0], [RETURN, u32::MAX]]
}

/// The same for a raw socket of IPv6, which receives what is behind the header: UDP directly behind it, to this port alone.
pub(super) fn only_port_v6(port: u16) -> [[u32; 2]; 7] {
    let [next_header, is_udp, nothing, whole] = only_protocol(17);
    [next_header, is_udp, nothing, [LOAD_HALF, 2], [skip_if_equal(1), port.into()], nothing, whole]
}

/// A program that lets a raw socket of IPv6 receive this protocol directly behind the header alone, without extension headers, which the
/// socket would not show.
pub(super) fn only_protocol(protocol: u8) -> [[u32; 2]; 4] {
    [[LOAD_OCTET, OF_IP + 6], [skip_if_equal(1), protocol.into()], NOTHING[0], [RETURN, u32::MAX]]
}

/// A program that lets a socket receive nothing.
pub(super) const NOTHING: [[u32; 2]; 1] = [[RETURN, 0]];

/// Added to an offset that counts from the IP header, and not from the payload (`SKF_NET_OFF`).
const OF_IP: u32 = 0xfff0_0000;

/// Skips so many instructions if A is the immediate value.
const fn skip_if_equal(count: u32) -> u32 {
    instruction(0x15, count, 0)
}

/// Skips so many instructions if A has a bit of the immediate value.
const fn skip_if_any(count: u32) -> u32 {
    instruction(0x45, count, 0)
}

impl Steering {
    /// A program that returns a socket's index in the order of binding; `threads` is the one for control traffic. All sockets are of
    /// one family.
    pub(super) fn program(self, threads: u32, is_v6: bool) -> Vec<[u32; 2]> {
        match self {
            Self::Ip => ip(threads),
            Self::Header { control, flow } => header(control, flow, threads),
            Self::Source { control } => source(control.into(), threads, is_v6),
            Self::Word { control, at } => word(control.into(), at, threads),
        }
    }
}

/// Where the port lies is certain only behind an IP header without options: what has some goes by its address alone, or a neighbour could
/// choose a thread for each packet.
fn source(control: u32, threads: u32, is_v6: bool) -> Vec<[u32; 2]> {
    // Where addresses and port lie; an octet that is so without options: version and length, or UDP as what comes next.
    let (words, port, plain): (&[u32], u32, [u32; 2]) =
        if is_v6 { (&[8, 12, 16, 20], 40, [6, 17]) } else { (&[12], 20, [0, 0x45]) };
    // Behind the first comparison, up to the last instruction: five, three for each word, two.
    let mut program = vec![
        [LOAD_OCTET, 0],
        [skip_if_any(3 * words.len() as u32 + 7), control],
        [LOAD_OCTET, OF_IP + plain[0]],
        [skip_if_equal(2), plain[1]],
        [LOAD_NUMBER, 0],
        [SKIP, 1],
        [LOAD_HALF, OF_IP + port],
    ];
    program.extend(words.iter().flat_map(|word| [[TO_X, 0], [LOAD_WORD, OF_IP + word], [EXCLUSIVE_OR, 0]]));
    program.extend([[MODULO, threads], [RETURN_A, 0], [RETURN, threads]]);
    program
}

/// A packet that ends before the word goes to the first thread: the system takes what a program cannot read for zero.
fn word(control: u32, at: u32, threads: u32) -> Vec<[u32; 2]> {
    vec![
        [LOAD_OCTET, 0],
        [skip_if_any(3), control],
        [LOAD_WORD, at],
        [MODULO, threads],
        [RETURN_A, 0],
        [RETURN, threads],
    ]
}

fn header(control: &[(u32, u8)], (offset, mask): (u32, u32), threads: u32) -> Vec<[u32; 2]> {
    let mut program = Vec::new();
    for (index, (offset, value)) in control.iter().enumerate() {
        // Behind this comparison: those of the octets that follow, two instructions each, then four for the flow.
        let left = (control.len() - index - 1) as u32;
        program.extend([[LOAD_OCTET, *offset], [skip_if_equal(2 * left + 4), (*value).into()]]);
    }
    program.extend([[LOAD_WORD, offset], [AND, mask], [MODULO, threads], [RETURN_A, 0], [RETURN, threads]]);
    program
}

/// IPv4 comes first, IPv6 from the twelfth instruction on. Flows are told by the exclusive or of all address words.
fn ip(threads: u32) -> Vec<[u32; 2]> {
    let mut program = vec![
        [LOAD_OCTET, 0],
        [AND, 0xf0],
        [skip_if_equal(8), 0x60],
        [LOAD_OCTET, 9],
        [skip_if_equal(32), 1],
        [LOAD_WORD, 12],
        [TO_X, 0],
        [LOAD_WORD, 16],
        [EXCLUSIVE_OR, 0],
        [MODULO, threads],
        [RETURN_A, 0],
        [LOAD_OCTET, 6],
        [skip_if_equal(24), 58],
        [LOAD_WORD, 8],
    ];
    program.extend((12..40).step_by(4).flat_map(|word| [[TO_X, 0], [LOAD_WORD, word], [EXCLUSIVE_OR, 0]]));
    program.extend([[MODULO, threads], [RETURN_A, 0], [RETURN, threads]]);
    program
}
