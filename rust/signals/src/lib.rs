//! Receives the signals of a service below its language runtime.
//!
//! Python runs signal handlers between two bytecodes of its main thread. A signal that arrives just before a system
//! call that blocks (open(2) of a FIFO, read(2) of a disconnected network disk) is recorded and never handled. The
//! default action does not have this window, but the kernel ignores it for the first process of a PID namespace
//! (`pid_namespaces(7)`), which a containerized service is. Here a separate thread receives the signals and can end the
//! process.

use std::io::{self, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use signal_hook::iterator::Signals;
use signal_hook::low_level;

/// The timeout of the last message to standard error, which may be a pipe that no process reads.
const MESSAGE_TIMEOUT: Duration = Duration::from_millis(200);

/// The time that the service has to end after a stop signal; `None`: without a limit.
type Grace = Arc<Mutex<Option<Duration>>>;

/// Receives the signals of this process from its creation to the end of the process.
#[derive(Debug)]
pub struct Listener {
    grace: Grace,
    reader: UnixStream,
}

impl Listener {
    /// Handles `stop` and `other` signals. Until `set_grace`, a stop signal ends the process at once, with status 0.
    ///
    /// # Errors
    /// The errors of sigaction(2), socketpair(2) and clone(2), and signals that cannot be handled.
    pub fn start(stop: &[i32], other: &[i32]) -> io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        writer.set_nonblocking(true)?;
        let grace: Grace = Arc::new(Mutex::new(Some(Duration::ZERO)));
        let signals = Signals::new(stop.iter().chain(other))?;
        let thread = SignalThread {
            stop: stop.to_vec(),
            grace: Arc::clone(&grace),
            writer,
        };
        thread::Builder::new()
            .name("signals".into())
            .spawn(move || thread.run(signals))?;
        Ok(Self { grace, reader })
    }

    /// Sets the time that the service has to end after a stop signal. `None` lifts the limit, also for an earlier
    /// signal.
    pub fn set_grace(&self, grace: Option<Duration>) {
        *self.grace.lock().unwrap_or_else(PoisonError::into_inner) = grace;
    }

    /// Returns a non-blocking socket from which each signal is read as one byte, its number.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.reader.as_raw_fd()
    }
}

struct SignalThread {
    stop: Vec<i32>,
    grace: Grace,
    writer: UnixStream,
}

impl SignalThread {
    fn run(mut self, mut signals: Signals) {
        for signal in signals.forever() {
            if self.stop.contains(&signal) {
                self.enforce_grace(signal);
            }
            // A full socket contains hundreds of unread signals, so one more can be dropped.
            let _ = self.writer.write(&[u8::try_from(signal).unwrap_or(0)]);
        }
    }

    fn enforce_grace(&self, signal: i32) {
        match current_grace(&self.grace) {
            None => {}
            Some(Duration::ZERO) => low_level::exit(0),
            Some(grace) => {
                let current = Arc::clone(&self.grace);
                let wait = move || {
                    thread::sleep(grace);
                    if current_grace(&current).is_some() {
                        exit_after_grace(signal, grace);
                    }
                };
                if thread::Builder::new().spawn(wait).is_err() {
                    low_level::exit(0);
                }
            }
        }
    }
}

fn current_grace(grace: &Grace) -> Option<Duration> {
    *grace.lock().unwrap_or_else(PoisonError::into_inner)
}

fn exit_after_grace(signal: i32, grace: Duration) -> ! {
    let name = low_level::signal_name(signal).unwrap_or("a signal");
    let message = format!(
        "dra-agent: not stopped within {} s of {name}: the process ends without cleaning up\n",
        grace.as_secs_f64()
    );
    thread::spawn(move || io::stderr().write_all(message.as_bytes()));
    thread::sleep(MESSAGE_TIMEOUT);
    low_level::exit(0)
}
