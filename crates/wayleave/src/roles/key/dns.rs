//! Questions by UDP and by TCP (RFC 1035 section 4.2, RFC 7766).

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};
use wayleave_control::capability::{Client, PendingOrder, PendingStatus, Transport};
use wayleave_core::Now;
use wayleave_runtime::connection_slots::{ConnectionSlots, SlotHandle, SlotLimits};
use wayleave_runtime::packets::requests::RequestBatch;
use wayleave_runtime::packets::udp::Udp;
use wayleave_runtime::packets::{Port, wait};
use wayleave_runtime::{Clock, faults};
use wayleave_store::Store;

use super::core::{Core, Response, carry_out, lock};
use super::holder_usage;
use super::listing::ListHandle;
use super::parts::{start_thread, stopped};
use crate::failure::Failure;
use crate::roles::dns_tcp;

/// Octets of a question.
const LONGEST: usize = 4_096;
/// How often the thread that answers datagrams looks whether it should end.
const LOOK: Duration = Duration::from_millis(100);
/// Orders that wait for the database at a time, of those that come by UDP and of those that come by TCP: each takes a thread meanwhile, and
/// whoever follows the database needs one too.
const ORDERS: usize = 16;
/// Connections at a time. Everybody may ask: no client is known.
const SLOTS: SlotLimits = SlotLimits { connections: 512, of_source: 64, of_client: 0 };

/// The thread that answers datagrams; it ends when this is dropped.
pub struct Datagrams {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic was reported where it happened
        }
    }
}

/// Answers datagrams in a thread of its own.
pub fn answer_datagrams(
    socket: UdpSocket,
    (core, store): (Arc<Mutex<Core>>, Option<Store>),
    clock: Clock,
    failed: mpsc::Sender<Failure>,
) -> std::io::Result<Datagrams> {
    let acknowledging = Acknowledging {
        store,
        socket: Arc::new(socket.try_clone()?),
        list: lock(&core).list(),
        runtime: Handle::current(),
        core: Arc::clone(&core),
        waiting: Arc::new(Semaphore::new(ORDERS)),
        clock,
        failed: failed.clone(),
    };
    let mut port = Udp::of(socket)?;
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    let report = failed.clone();
    let answer = move || {
        let mut batch = RequestBatch::default();
        while !over.load(Ordering::Relaxed) {
            faults::point("worker");
            if let Err(error) = wait(std::iter::once(&port as &dyn Port), LOOK) {
                let _ = report.try_send(Failure::system("cannot wait for questions", &error)); // fails if another is reported
                return;
            }
            // An error is that of an answer that could not be delivered.
            if port.receive(&mut batch.requests).unwrap_or(0) == 0 {
                continue;
            }
            answer_batch(&mut batch, &core, clock.now(), &acknowledging);
            batch.send(&mut port);
        }
    };
    let thread = start_thread("dns", failed, answer)?;
    Ok(Datagrams { is_over, thread: Some(thread) })
}

/// Answers what came together. Orders, and acknowledgements that wait for the list, leave by themselves.
fn answer_batch(batch: &mut RequestBatch, core: &Mutex<Core>, now: Now, acknowledging: &Acknowledging) {
    let mut core = lock(core);
    batch.answer(|octets, from| {
        let client = Client { address: from.ip().to_canonical(), transport: Transport::Udp };
        let octets = &octets[..octets.len().min(LONGEST)];
        match core.answer(octets, client, now) {
            Response::Ready(answer) => Some(answer),
            Response::Nothing => None,
            Response::Listed { octets, change } => {
                acknowledging.send(octets, from, change);
                None
            }
            Response::Order(order) => {
                acknowledging.carry_out(order, octets.to_vec(), from);
                None
            }
            Response::Status(status) => {
                acknowledging.answer_status(status, from);
                None
            }
        }
    });
}

/// Sends acknowledgements of orders once routers can read what was ordered, while other questions are answered.
struct Acknowledging {
    socket: Arc<UdpSocket>,
    list: Option<ListHandle>,
    runtime: Handle,
    /// Where orders are carried out that wait for the database.
    core: Arc<Mutex<Core>>,
    /// Where usage is, if routers report it.
    store: Option<Store>,
    waiting: Arc<Semaphore>,
    clock: Clock,
    failed: mpsc::Sender<Failure>,
}

impl Acknowledging {
    /// Carries out an order in the database. If too many wait, whoever gave it repeats it.
    fn carry_out(&self, order: Box<PendingOrder>, octets: Vec<u8>, to: SocketAddr) {
        let Ok(place) = Arc::clone(&self.waiting).try_acquire_owned() else { return };
        let client = Client { address: to.ip().to_canonical(), transport: Transport::Udp };
        let (core, now, failed) = (Arc::clone(&self.core), self.clock.now(), self.failed.clone());
        let (socket, list) = (Arc::clone(&self.socket), self.list.clone());
        self.runtime.spawn(async move {
            let answer = carry_out_waiting(core, order, octets, (client, now), list).await;
            drop(place);
            match answer {
                Ok(Some(octets)) => drop(socket.send_to(&octets, to)), // who gets none repeats the order
                Ok(None) => {}
                Err(failure) => drop(failed.send(failure).await), // fails if the role has stopped
            }
        });
    }

    /// Answers a holder that asks how its capability stands. If too many wait, it asks again.
    fn answer_status(&self, status: Box<PendingStatus>, to: SocketAddr) {
        let Ok(place) = Arc::clone(&self.waiting).try_acquire_owned() else { return };
        let (core, store, clock) = (Arc::clone(&self.core), self.store.clone(), self.clock);
        let socket = Arc::clone(&self.socket);
        self.runtime.spawn(async move {
            let octets = holder_usage::answer(&core, &status, store.as_ref(), clock).await;
            drop(place);
            let _ = socket.send_to(&octets, to); // who gets none asks again
        });
    }

    fn send(&self, octets: Vec<u8>, to: SocketAddr, change: u64) {
        let (socket, list) = (Arc::clone(&self.socket), self.list.clone());
        self.runtime.spawn(async move {
            if let Some(list) = list {
                list.has(change).await;
            }
            let _ = socket.send_to(&octets, to); // who gets none repeats the order
        });
    }
}

/// Carries out an order in the database, and waits until routers can read what was ordered.
async fn carry_out_waiting(
    core: Arc<Mutex<Core>>,
    order: Box<PendingOrder>,
    octets: Vec<u8>,
    (client, now): (Client, Now),
    list: Option<ListHandle>,
) -> Result<Option<Vec<u8>>, Failure> {
    let done = tokio::task::spawn_blocking(move || carry_out(&core, order, &octets, (client, now))).await;
    match done.unwrap_or_else(|_| Err(stopped("orders")))? {
        Response::Ready(octets) => Ok(Some(octets)),
        Response::Listed { octets, change } => {
            if let Some(list) = list {
                list.has(change).await;
            }
            Ok(Some(octets))
        }
        Response::Nothing | Response::Order(_) | Response::Status(_) => Ok(None),
    }
}

/// The slots for connections by which questions come.
pub fn connection_slots() -> ConnectionSlots {
    ConnectionSlots::new(SLOTS)
}

/// Accepts connections for ever. When all slots are taken, an idle connection is closed for a new one (RFC 7766 section 6.2.3).
pub async fn answer_connections(
    listener: TcpListener,
    slots: ConnectionSlots,
    (core, store): (Arc<Mutex<Core>>, Option<Store>),
    clock: Clock,
    failed: mpsc::Sender<Failure>,
) {
    let orders = Arc::new(Semaphore::new(ORDERS));
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            // Out of descriptors: the oldest connections end within the time for which one may be silent.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Some((slot, eviction)) = slots.take(from.ip().to_canonical()) else { continue };
        let (core, orders, failed) = (Arc::clone(&core), Arc::clone(&orders), failed.clone());
        let store = store.clone();
        tokio::spawn(async move {
            let handle = slot.handle();
            let answered = tokio::select! {
                answered = answer_stream((stream, from), &handle, (&core, &orders, &store), clock) => answered,
                _ = eviction => Ok(()),
            };
            if let Err(Some(failure)) = answered {
                let _ = failed.send(failure).await; // fails if the role has stopped
            }
        });
    }
}

/// Answers the questions of one connection; an error without a failure is the client's.
async fn answer_stream(
    (stream, from): (TcpStream, SocketAddr),
    slot: &SlotHandle,
    (core, orders, store): (&Arc<Mutex<Core>>, &Arc<Semaphore>, &Option<Store>),
    clock: Clock,
) -> Result<(), Option<Failure>> {
    let client = Client { address: from.ip().to_canonical(), transport: Transport::Tcp };
    let answer = |question: Vec<u8>, _| {
        let (core, orders, store) = (Arc::clone(core), Arc::clone(orders), store.clone());
        async move {
            let now = clock.now();
            let (response, list) = {
                let mut core = lock(&core);
                (core.answer(&question, client, now), core.list())
            };
            Ok::<_, Failure>(match response {
                Response::Nothing => None,
                Response::Ready(answer) => Some(answer),
                Response::Listed { octets, change } => {
                    if let Some(list) = list {
                        list.has(change).await;
                    }
                    Some(octets)
                }
                Response::Order(order) => {
                    // Closed for nobody.
                    let _place = orders.acquire_owned().await;
                    carry_out_waiting(core, order, question, (client, now), list).await?
                }
                Response::Status(status) => {
                    let _place = orders.acquire_owned().await;
                    Some(holder_usage::answer(&core, &status, store.as_ref(), clock).await)
                }
            })
        }
    };
    dns_tcp::answer_stream((stream, from), slot, LONGEST, answer).await
}
