//! Questions by TCP (RFC 7766), for every role that answers DNS: each message behind its length, one after the other.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use wayleave_runtime::connection_slots::SlotHandle;

/// Questions on a connection, and how long one may be silent.
const QUESTIONS: usize = 1_000;
const TIMEOUT: Duration = Duration::from_secs(10);

/// Answers the questions of one connection, of at most `longest` octets, until `answer` gives none. An error without a failure is
/// the client's.
pub async fn answer_stream<F, E>(
    (mut stream, from): (TcpStream, SocketAddr),
    slot: &SlotHandle,
    longest: usize,
    answer: impl Fn(Vec<u8>, SocketAddr) -> F,
) -> Result<(), Option<E>>
where
    F: Future<Output = Result<Option<Vec<u8>>, E>>,
{
    for _ in 0..QUESTIONS {
        let question = timeout(TIMEOUT, async {
            let length = usize::from(stream.read_u16().await.ok()?);
            let mut question = vec![0; Some(length).filter(|length| *length <= longest)?];
            stream.read_exact(&mut question).await.ok()?;
            Some(question)
        });
        let question = question.await.ok().flatten().ok_or(None)?;
        slot.begin_request();
        let Some(answer) = answer(question, from).await.map_err(Some)? else { return Ok(()) };
        slot.end_request(); // while the answer is written the connection waits for its client
        let mut whole = (answer.len() as u16).to_be_bytes().to_vec(); // at most 65,535
        whole.extend_from_slice(&answer);
        let written = timeout(TIMEOUT, stream.write_all(&whole)).await;
        written.map_err(|_| None)?.map_err(|_| None)?;
    }
    Ok(())
}
