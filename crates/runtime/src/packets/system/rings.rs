//! The memory that an AF_XDP socket shares with the kernel: frames, and four rings of descriptors.

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

use super::{checked, options};

/// Octets of a frame.
pub(in super::super) const FRAME: usize = 2048;
/// Frames in all, and slots of each ring; powers of two.
pub(in super::super) const FRAMES: u32 = 4096;
const SLOTS: u32 = 2048;

/// Memory from mmap(2).
struct Mapped {
    at: NonNull<u8>,
    length: usize,
}

// SAFETY: the memory belongs to whoever owns the mapping; nothing is bound to a thread.
unsafe impl Send for Mapped {}

impl Mapped {
    fn new(length: usize, flags: libc::c_int, fd: libc::c_int, offset: libc::off_t) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; no memory of ours is touched.
        let at = unsafe { libc::mmap(null_mut(), length, access, flags | libc::MAP_POPULATE, fd, offset) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { at, length })
    }

    fn within(&self, offset: u64, octets: usize) -> io::Result<*mut u8> {
        let offset = usize::try_from(offset).map_err(io::Error::other)?;
        let end = offset.checked_add(octets).filter(|end| *end <= self.length);
        end.ok_or_else(|| io::Error::other("a ring lies outside its mapping"))?;
        // SAFETY: the offset lies within the mapping, as was just checked.
        Ok(unsafe { self.at.as_ptr().add(offset) })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody holds a reference into it: `Rings` gives out slices for a borrow only.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.length) };
    }
}

/// One ring between us and the kernel.
struct Ring<T> {
    producer: *const AtomicU32,
    consumer: *const AtomicU32,
    flags: *const AtomicU32,
    slots: *mut T,
    /// Our own index; the kernel sees it after `publish` or `release`.
    own: u32,
    _memory: Mapped,
}

// SAFETY: the pointers lead into `_memory`, which moves along.
unsafe impl<T> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    fn new(fd: libc::c_int, page: libc::off_t, offsets: &libc::xdp_ring_offset) -> io::Result<Self> {
        let length = usize::try_from(offsets.desc).map_err(io::Error::other)? + SLOTS as usize * size_of::<T>();
        let memory = Mapped::new(length, libc::MAP_SHARED, fd, page)?;
        Ok(Self {
            producer: memory.within(offsets.producer, 4)?.cast_const().cast(),
            consumer: memory.within(offsets.consumer, 4)?.cast_const().cast(),
            flags: memory.within(offsets.flags, 4)?.cast_const().cast(),
            slots: memory.within(offsets.desc, SLOTS as usize * size_of::<T>())?.cast(),
            own: 0,
            _memory: memory,
        })
    }

    /// Whether the kernel must be woken to go on.
    fn must_wake(&self) -> bool {
        // SAFETY: `flags` points into the mapping, which lives as long as `self`; the kernel writes it atomically.
        unsafe { (*self.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0 }
    }

    /// Appends `item`, if there is room; the kernel sees it after [`Self::publish`].
    fn produce(&mut self, item: T) -> bool {
        // SAFETY: as of `must_wake`. The kernel moves the consumer's index; what it has passed is ours again.
        let taken = unsafe { (*self.consumer).load(Ordering::Acquire) };
        if self.own.wrapping_sub(taken) >= SLOTS {
            return false;
        }
        // SAFETY: the index is below SLOTS, and this slot is between the producer's and the consumer's index: the kernel
        // does not read it before `publish`.
        unsafe { self.slots.add((self.own % SLOTS) as usize).write(item) };
        self.own = self.own.wrapping_add(1);
        true
    }

    fn publish(&mut self) {
        // SAFETY: as of `must_wake`; only we write the producer's index of this ring.
        unsafe { (*self.producer).store(self.own, Ordering::Release) };
    }

    /// The next item of the kernel, which may use the slot again after [`Self::release`].
    fn consume(&mut self) -> Option<T> {
        // SAFETY: as of `must_wake`.
        let there = unsafe { (*self.producer).load(Ordering::Acquire) };
        if there == self.own {
            return None;
        }
        // SAFETY: the slot is before the producer's index, so the kernel has written it and leaves it alone until `release`.
        let item = unsafe { self.slots.add((self.own % SLOTS) as usize).read() };
        self.own = self.own.wrapping_add(1);
        Some(item)
    }

    fn release(&mut self) {
        // SAFETY: as of `must_wake`; only we write the consumer's index of this ring.
        unsafe { (*self.consumer).store(self.own, Ordering::Release) };
    }
}

/// An AF_XDP socket with its memory. Each frame has one owner at a time: the free list, a ring, or the kernel.
pub(in super::super) struct Rings {
    // Dropped first: closing the socket ends the kernel's use of the memory.
    socket: OwnedFd,
    fill: Ring<u64>,
    completion: Ring<u64>,
    receive: Ring<libc::xdp_desc>,
    transmit: Ring<libc::xdp_desc>,
    frames: Mapped,
    free: Vec<u64>,
}

impl Rings {
    /// A socket that is not bound yet; half of its frames are given to the kernel to be filled.
    pub(in super::super) fn new() -> io::Result<Self> {
        // SAFETY: no pointers are passed.
        let socket = checked(unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
        // SAFETY: the kernel has just made this descriptor for us alone.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let frames = Mapped::new(FRAMES as usize * FRAME, anonymous, -1, 0)?;
        // SAFETY: all zeros is a valid `xdp_umem_reg`.
        let mut memory: libc::xdp_umem_reg = unsafe { zeroed() };
        memory.addr = frames.at.as_ptr() as u64;
        memory.len = frames.length as u64;
        memory.chunk_size = FRAME as u32;
        options::set_value(socket.as_fd(), libc::SOL_XDP, libc::XDP_UMEM_REG, &memory)?;
        for ring in [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING] {
            options::set_value(socket.as_fd(), libc::SOL_XDP, ring, &SLOTS)?;
        }
        let offsets = mapping_offsets(socket.as_fd())?;
        let fd = socket.as_raw_fd();
        let mut rings = Self {
            fill: Ring::new(fd, libc::XDP_UMEM_PGOFF_FILL_RING as libc::off_t, &offsets.fr)?,
            completion: Ring::new(fd, libc::XDP_UMEM_PGOFF_COMPLETION_RING as libc::off_t, &offsets.cr)?,
            receive: Ring::new(fd, libc::XDP_PGOFF_RX_RING, &offsets.rx)?,
            transmit: Ring::new(fd, libc::XDP_PGOFF_TX_RING, &offsets.tx)?,
            socket,
            frames,
            free: (0..u64::from(FRAMES)).map(|number| number * FRAME as u64).collect(),
        };
        for _ in 0..FRAMES / 2 {
            let Some(frame) = rings.free.pop() else { break };
            if !rings.fill.produce(frame) {
                rings.free.push(frame);
                break;
            }
        }
        rings.fill.publish();
        Ok(rings)
    }

    /// Binds to a queue of an interface, in copy mode, which every driver has.
    pub(in super::super) fn bind(&self, interface: u32, queue: u32) -> io::Result<()> {
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: libc::XDP_COPY | libc::XDP_USE_NEED_WAKEUP,
            sxdp_ifindex: interface,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: 0,
        };
        let length = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
        // SAFETY: the kernel reads `length` octets of `address`, which lives across the call.
        checked(unsafe { libc::bind(self.socket.as_raw_fd(), (&raw const address).cast(), length) })?;
        Ok(())
    }

    /// Passes the next received frame to `take`, and gives its memory back to be filled. Returns what `take` returned, or
    /// `None` if no frame waits. A frame that is not taken is lost.
    pub(in super::super) fn receive(&mut self, take: impl FnOnce(&[u8]) -> bool) -> Option<bool> {
        let descriptor = self.receive.consume()?;
        // This gives back the descriptor's slot. The frame stays ours until it is in the fill ring, and `take` has read it by then.
        self.receive.release();
        let taken = self.frame(descriptor.addr, descriptor.len as usize).is_some_and(|frame| take(frame));
        // Where in a frame the packet begins does not matter to the kernel when it fills the frame again.
        let frame = descriptor.addr - descriptor.addr % FRAME as u64;
        if !self.fill.produce(frame) {
            self.free.push(frame);
        }
        Some(taken)
    }

    /// Lets the kernel see the frames that were given back.
    pub(in super::super) fn refill(&mut self) {
        self.fill.publish();
        if self.fill.must_wake() {
            let mut poll = libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one `pollfd`, borrowed across the call, which does not wait.
            unsafe { libc::poll(&raw mut poll, 1, 0) };
        }
    }

    /// Lets `write` put a packet into a free frame and return its length. Returns `false` if there is no free frame, the packet
    /// does not fit, or the ring is full.
    pub(in super::super) fn transmit(&mut self, write: impl FnOnce(&mut [u8]) -> Option<usize>) -> bool {
        let Some(frame) = self.free.pop() else { return false };
        let length = self.frame(frame, FRAME).and_then(write);
        let sent = length.is_some_and(|length| {
            let descriptor = libc::xdp_desc { addr: frame, len: length as u32, options: 0 };
            self.transmit.produce(descriptor)
        });
        if !sent {
            self.free.push(frame);
        }
        sent
    }

    /// Lets the kernel send what is in the ring.
    pub(in super::super) fn kick(&mut self) -> io::Result<()> {
        self.transmit.publish();
        if self.transmit.must_wake() {
            let flags = libc::MSG_DONTWAIT;
            // SAFETY: no octets and no address are passed; the call only wakes the kernel.
            let answer = unsafe { libc::sendto(self.socket.as_raw_fd(), null_mut(), 0, flags, null_mut(), 0) };
            if answer < 0 {
                let error = io::Error::last_os_error();
                if !matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS)) {
                    return Err(error);
                }
            }
        }
        self.reap();
        Ok(())
    }

    /// Whether the kernel has yet to send some of the ring.
    pub(in super::super) fn is_sending(&self) -> bool {
        // SAFETY: as of `Ring::must_wake`.
        let taken = unsafe { (*self.transmit.consumer).load(Ordering::Acquire) };
        taken != self.transmit.own
    }

    /// Frees the frames that were sent.
    pub(in super::super) fn reap(&mut self) {
        while let Some(frame) = self.completion.consume() {
            self.free.push(frame);
        }
        self.completion.release();
    }

    /// `length` octets at `at`, if they lie within one frame.
    fn frame(&mut self, at: u64, length: usize) -> Option<&mut [u8]> {
        let at = usize::try_from(at).ok()?;
        let end = at.checked_add(length).filter(|end| *end <= self.frames.length)?;
        if length > 0 && at / FRAME != (end - 1) / FRAME {
            return None;
        }
        // SAFETY: the octets lie within the mapping. The frame is neither with the kernel nor in a ring: callers name the
        // one that they just took from the free list or the receive ring. The borrow of `self` keeps it so.
        Some(unsafe { std::slice::from_raw_parts_mut(self.frames.at.as_ptr().add(at), length) })
    }
}

impl AsFd for Rings {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn mapping_offsets(socket: BorrowedFd<'_>) -> io::Result<libc::xdp_mmap_offsets> {
    // SAFETY: all zeros is a valid `xdp_mmap_offsets`.
    let mut offsets: libc::xdp_mmap_offsets = unsafe { zeroed() };
    let mut length = size_of::<libc::xdp_mmap_offsets>() as libc::socklen_t;
    let (fd, to) = (socket.as_raw_fd(), (&raw mut offsets).cast());
    // SAFETY: the kernel writes at most `length` octets to `offsets`, which is as long.
    checked(unsafe { libc::getsockopt(fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, to, &raw mut length) })?;
    if (length as usize) < size_of::<libc::xdp_mmap_offsets>() {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "a kernel before Linux 5.4"));
    }
    Ok(offsets)
}
