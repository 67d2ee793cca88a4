//! Frames on a byte stream: a length of four octets (big-endian) and that many octets.
//!
//! An empty frame is a keepalive. The first frame from the listening side has eight octets, its wall clock in seconds since
//! 1970: it tells the connecting side that its certificate was accepted, which TLS 1.3 itself does not, and whether their
//! clocks agree.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// No link carries a longer frame, in octets.
pub const MAX_FRAME: u32 = 16 << 20;
/// Octets that a frame's announced length reserves before its content has arrived.
const FIRST_RESERVE: usize = 64 * 1024;
/// Octets of a frame whose writing shows that the peer reads.
const PIECE: usize = 16 * 1024;

/// Why no frame could be read.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The peer announced a longer frame than the link allows.
    #[error("the peer announced a frame of {length} octets, above the limit of {most}")]
    TooLong { length: u32, most: u32 },
    /// The stream ended between two frames.
    #[error("the peer closed the connection")]
    Closed,
    /// The stream ended within a frame.
    #[error("the connection ended in the middle of a frame")]
    Truncated,
    /// The peer sent nothing for too long, in a frame or between two.
    #[error("the peer sent nothing for {} seconds", .0.as_secs())]
    Silent(Duration),
    /// The system or TLS failed.
    #[error(transparent)]
    Io(io::Error),
}

/// Reads the next frame; `most` bounds its length in octets. Memory grows with what arrived, not with what was announced.
pub async fn read_frame<R: AsyncRead + Unpin>(stream: &mut R, most: u32) -> Result<Vec<u8>, FrameError> {
    read_frame_moving(stream, most, Duration::MAX).await
}

/// The same from a peer that must send something within `idle`, and within each `idle` after that: a long frame may take longer
/// on a slow link.
pub async fn read_frame_moving<R: AsyncRead + Unpin>(
    stream: &mut R,
    most: u32,
    idle: Duration,
) -> Result<Vec<u8>, FrameError> {
    let silent = |_| FrameError::Silent(idle);
    let mut header = [0u8; 4];
    let mut have = 0;
    while have < header.len() {
        match timeout(idle, stream.read(&mut header[have..])).await.map_err(silent)?.map_err(from_io)? {
            0 if have == 0 => return Err(FrameError::Closed),
            0 => return Err(FrameError::Truncated),
            n => have += n,
        }
    }
    let length = u32::from_be_bytes(header);
    let most = most.min(MAX_FRAME);
    if length > most {
        return Err(FrameError::TooLong { length, most });
    }
    let mut frame = Vec::with_capacity((length as usize).min(FIRST_RESERVE));
    let mut rest = stream.take(u64::from(length));
    while (frame.len() as u64) < u64::from(length) {
        if timeout(idle, rest.read_buf(&mut frame)).await.map_err(silent)?.map_err(from_io)? == 0 {
            return Err(FrameError::Truncated);
        }
    }
    Ok(frame)
}

/// A peer that ends the connection without TLS's close_notify has closed it; that is no failure of ours.
pub(crate) fn from_io(error: io::Error) -> FrameError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => FrameError::Closed,
        _ => FrameError::Io(error),
    }
}

/// Writes one frame without flushing; a frame above [`MAX_FRAME`] is the caller's error.
pub async fn write_frame<W: AsyncWrite + Unpin>(stream: &mut W, frame: &[u8]) -> io::Result<()> {
    let length = u32::try_from(frame.len()).ok().filter(|length| *length <= MAX_FRAME);
    let length = length.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a frame above 16 MiB"))?;
    stream.write_all(&length.to_be_bytes()).await?;
    stream.write_all(frame).await
}

/// The same to a peer that must read something within `idle`, and within each `idle` after that.
pub async fn write_frame_moving<W: AsyncWrite + Unpin>(stream: &mut W, frame: &[u8], idle: Duration) -> io::Result<()> {
    let length = u32::try_from(frame.len()).ok().filter(|length| *length <= MAX_FRAME);
    let length = length.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a frame above 16 MiB"))?;
    let length = length.to_be_bytes();
    for piece in std::iter::once(&length[..]).chain(frame.chunks(PIECE)) {
        timeout(idle, stream.write_all(piece)).await??;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(bytes: &[u8], most: u32) -> Result<Vec<u8>, FrameError> {
        read_frame(&mut &bytes[..], most).await
    }

    #[tokio::test]
    async fn frames_come_back_as_they_were_written() {
        let mut wire = Vec::new();
        for frame in [&b"one"[..], b"", &[7; 100_000]] {
            write_frame(&mut wire, frame).await.expect("written");
        }
        let mut stream = &wire[..];
        assert_eq!(read_frame(&mut stream, MAX_FRAME).await.expect("one"), b"one");
        assert_eq!(read_frame(&mut stream, MAX_FRAME).await.expect("empty"), b"");
        assert_eq!(read_frame(&mut stream, MAX_FRAME).await.expect("long"), [7; 100_000]);
        assert!(matches!(read_frame(&mut stream, MAX_FRAME).await, Err(FrameError::Closed)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_frame_may_take_its_time_as_long_as_it_moves() {
        let idle = Duration::from_secs(20);
        let (mut far, near) = tokio::io::duplex(1000);
        let frame = vec![7; 200_000];
        let sent = frame.clone();
        let writer = tokio::spawn(async move {
            let mut near = near;
            write_frame_moving(&mut near, &sent, idle).await.map(|()| near)
        });
        // A thousand octets a second, which takes ten times as long as the peer may be silent.
        let slow = async {
            let (mut slow, mut to) = tokio::io::duplex(1 << 20);
            let relay = async {
                let mut octets = [0; 1000];
                loop {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    let count = far.read(&mut octets).await.unwrap_or(0);
                    if count == 0 || to.write_all(&octets[..count]).await.is_err() {
                        break;
                    }
                }
            };
            tokio::select! {
                frame = read_frame_moving(&mut slow, MAX_FRAME, idle) => frame,
                () = relay => Err(FrameError::Closed),
            }
        };
        assert_eq!(slow.await.expect("it came"), frame);
        let mut near = writer.await.expect("no panic").expect("written");
        // Nothing is read any more.
        let stuck = write_frame_moving(&mut near, &frame, idle).await;
        assert_eq!(stuck.expect_err("stuck").kind(), io::ErrorKind::TimedOut);
        let (_open, mut silent) = tokio::io::duplex(10);
        assert!(matches!(read_frame_moving(&mut silent, 9, idle).await, Err(FrameError::Silent(_))));
    }

    #[tokio::test]
    async fn an_oversized_frame_is_refused_before_it_is_read() {
        assert!(matches!(read(&[0, 0, 1, 1], 256).await, Err(FrameError::TooLong { length: 257, most: 256 })));
        assert!(matches!(read(&[255; 8], u32::MAX).await, Err(FrameError::TooLong { most: MAX_FRAME, .. })));
    }

    #[tokio::test]
    async fn a_truncated_frame_is_an_error_at_every_length() {
        let wire = [0, 0, 0, 4, 1, 2, 3, 4];
        assert!(matches!(read(&wire[..0], 64).await, Err(FrameError::Closed)));
        for end in 1..wire.len() {
            assert!(matches!(read(&wire[..end], 64).await, Err(FrameError::Truncated)), "{end}");
        }
    }
}
