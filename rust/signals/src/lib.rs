//! Signals of a service, received below its language runtime.
//!
//! Python runs signal handlers between two bytecodes of its main thread. A signal that arrives just before a system call
//! that blocks (open(2) of a FIFO, read(2) of a dead network disk) is noted and never acted on. The default action does
//! not have this window, but the kernel ignores it for the first process of a PID namespace (`pid_namespaces(7)`), which
//! a containerized service is. Here a thread of its own receives the signals and can end the process by itself.

use std::io::{self, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use signal_hook::iterator::Signals;
use signal_hook::low_level;

/// How long the last message may take to reach standard error, which may be a pipe that no process reads.
const MESSAGE_TIMEOUT: Duration = Duration::from_millis(200);

/// How long a stop signal leaves the service to end by itself; `None`: without a limit.
type Grace = Arc<Mutex<Option<Duration>>>;

/// Receives the signals of this process from its creation to the end of the process.
#[derive(Debug)]
pub struct Listener {
    grace: Grace,
    reader: UnixStream,
}

impl Listener {
    /// Handle `stop` and `other` signals. Until `set_grace`, a stop signal ends the process at once, with status 0.
    ///
    /// # Errors
    /// What sigaction(2), socketpair(2) and clone(2) return, and signals that cannot be handled.
    pub fn start(stop: &[i32], other: &[i32]) -> io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        writer.set_nonblocking(true)?;
        let grace: Grace = Arc::new(Mutex::new(Some(Duration::ZERO)));
        let signals = Signals::new(stop.iter().chain(other))?;
        let received = Received {
            stop: stop.to_vec(),
            grace: Arc::clone(&grace),
            writer,
        };
        thread::Builder::new()
            .name("signals".into())
            .spawn(move || received.follow(signals))?;
        Ok(Self { grace, reader })
    }

    /// Leave the service this long to end after a stop signal. `None` lifts the limit, also for a signal that came before.
    pub fn set_grace(&self, grace: Option<Duration>) {
        *self.grace.lock().unwrap_or_else(PoisonError::into_inner) = grace;
    }

    /// A non-blocking socket from which each signal is read as one byte, its number.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.reader.as_raw_fd()
    }
}

struct Received {
    stop: Vec<i32>,
    grace: Grace,
    writer: UnixStream,
}

impl Received {
    fn follow(mut self, mut signals: Signals) {
        for signal in signals.forever() {
            if self.stop.contains(&signal) {
                self.limit(signal);
            }
            // A full socket holds hundreds of unread signals: one more says nothing new.
            let _ = self.writer.write(&[u8::try_from(signal).unwrap_or(0)]);
        }
    }

    fn limit(&self, signal: i32) {
        match limit_of(&self.grace) {
            None => {}
            Some(Duration::ZERO) => low_level::exit(0),
            Some(grace) => {
                let limit = Arc::clone(&self.grace);
                let wait = move || {
                    thread::sleep(grace);
                    if limit_of(&limit).is_some() {
                        end(signal, grace);
                    }
                };
                if thread::Builder::new().spawn(wait).is_err() {
                    low_level::exit(0);
                }
            }
        }
    }
}

fn limit_of(grace: &Grace) -> Option<Duration> {
    *grace.lock().unwrap_or_else(PoisonError::into_inner)
}

fn end(signal: i32, grace: Duration) -> ! {
    let name = low_level::signal_name(signal).unwrap_or("a signal");
    let message = format!(
        "dra-agent: not stopped within {} s of {name}: the process ends without cleaning up\n",
        grace.as_secs_f64()
    );
    thread::spawn(move || io::stderr().write_all(message.as_bytes()));
    thread::sleep(MESSAGE_TIMEOUT);
    low_level::exit(0)
}
