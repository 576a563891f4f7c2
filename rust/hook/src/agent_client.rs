//! Requests to the agent over a socket that only root can open, for tasks that only the agent can do.
//!
//! A request is one line of JSON. The reply is one line too, in which `result` is true on success:
//! `{"claim":...,"key":...,"cgroup":...}` limits the memory of a container,
//! `{"claim":...,"key":...,"task":"interface","pid":...}` moves an interface into the network namespace of a container.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::oci;
use crate::options::AgentRequest;

/// Timeouts of the hook. Runtimes do not set a timeout for hooks by default.
#[derive(Debug, Clone, Copy)]
struct Timeouts {
    /// For one exchange, from connect to the complete reply.
    exchange: Duration,
    /// For retries of a failed exchange while the agent restarts. After that, the hook fails and the kubelet starts the
    /// container again.
    restart: Duration,
}

/// At most 25 s in total: an exchange that starts at the end of `restart` (docs/how-to/devices/shares.md).
const TIMEOUTS: Timeouts = Timeouts {
    exchange: Duration::from_secs(20),
    restart: Duration::from_secs(5),
};
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
const MAX_REPLY_BYTES: u64 = 1 << 16;

pub(crate) fn limit_memory(request: &AgentRequest, cgroup: &str) -> Result<(), String> {
    let mut line = encode_request(request);
    line.push_str(",\"cgroup\":");
    oci::write_string(&mut line, cgroup);
    send_request(&request.socket, line, TIMEOUTS)
}

pub(crate) fn move_interface(request: &AgentRequest, pid: u32) -> Result<(), String> {
    let mut line = encode_request(request);
    line.push_str(&format!(",\"task\":\"interface\",\"pid\":{pid}"));
    send_request(&request.socket, line, TIMEOUTS)
}

fn encode_request(request: &AgentRequest) -> String {
    let mut line = String::from("{\"claim\":");
    oci::write_string(&mut line, &request.claim);
    line.push_str(",\"key\":");
    oci::write_string(&mut line, &request.key);
    line
}

/// Sends the request until there is a reply or the time is up: all requests are idempotent.
fn send_request(socket: &Path, mut line: String, timeouts: Timeouts) -> Result<(), String> {
    line.push_str("}\n");
    let deadline = Instant::now() + timeouts.restart;
    loop {
        match bounded_exchange(socket, &line, timeouts.exchange) {
            Ok(reply) => return parse_reply(&reply),
            Err(error) if Instant::now() >= deadline => {
                return Err(format!(
                    "the agent at {} {error}; is it running?",
                    socket.display()
                ));
            }
            Err(_) => thread::sleep(RETRY_INTERVAL),
        }
    }
}

/// Runs one exchange in its own thread. connect(2) of a Unix socket blocks indefinitely while the listener's backlog is
/// full, and the standard library has no timeout for it. A blocked thread ends with the process.
fn bounded_exchange(socket: &Path, line: &str, timeout: Duration) -> Result<String, String> {
    let (sender, receiver) = mpsc::channel();
    let (path, request) = (socket.to_owned(), line.to_owned());
    thread::Builder::new()
        .name("exchange".to_owned())
        .spawn(move || {
            // The receiver no longer exists if the time is up.
            let _ = sender.send(exchange(&path, &request));
        })
        .map_err(|error| format!("cannot be reached ({error})"))?;
    receiver
        .recv_timeout(timeout)
        .unwrap_or_else(|error| match error {
            RecvTimeoutError::Timeout => {
                Err(format!("did not reply within {} s", timeout.as_secs_f64()))
            }
            RecvTimeoutError::Disconnected => Err("cannot be reached (thread ended)".to_owned()),
        })
}

fn exchange(socket: &Path, line: &str) -> Result<String, String> {
    let unreachable = |error: std::io::Error| format!("cannot be reached ({error})");
    let stream = UnixStream::connect(socket).map_err(unreachable)?;
    (&stream).write_all(line.as_bytes()).map_err(unreachable)?;
    let mut reply = String::new();
    BufReader::new(stream.take(MAX_REPLY_BYTES))
        .read_line(&mut reply)
        .map_err(|error| format!("did not reply ({error})"))?;
    if reply.is_empty() {
        return Err("closed the connection without a reply".to_owned());
    }
    Ok(reply)
}

fn parse_reply(reply: &str) -> Result<(), String> {
    if oci::is_true(reply, "result") {
        return Ok(());
    }
    let failure = |name| oci::nested_string(reply, "failure", name);
    let Some(message) = failure("what") else {
        return Err(format!(
            "the agent sent an unexpected reply: {:?}",
            reply.trim_end()
        ));
    };
    let location = failure("where").map(|location| format!("{location}: "));
    let hint = failure("todo").map(|hint| format!("; {hint}"));
    Err(format!(
        "{}{message}{}",
        location.unwrap_or_default(),
        hint.unwrap_or_default()
    ))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::sync::{Arc, mpsc};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::{Timeouts, parse_reply, send_request};

    const SHORT: Timeouts = Timeouts {
        exchange: Duration::from_millis(300),
        restart: Duration::from_millis(200),
    };

    struct SocketDir(PathBuf);

    impl SocketDir {
        fn new() -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let name = format!(
                "dra-agent-hook-{}-{}",
                std::process::id(),
                NEXT.fetch_add(1, Ordering::Relaxed)
            );
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn socket(&self) -> PathBuf {
            self.0.join("hooks.sock")
        }
    }

    impl Drop for SocketDir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn waiting_for_an_agent_that_does_not_accept_connections_is_limited() {
        let dir = SocketDir::new();
        let socket = dir.socket();
        let _listener = UnixListener::bind(&socket).unwrap();
        // Opens connections that are never accepted, until connect(2) blocks.
        let (sender, receiver) = mpsc::channel();
        let (path, stopped) = (socket.clone(), Arc::new(AtomicBool::new(false)));
        let stop = Arc::clone(&stopped);
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let Ok(stream) = UnixStream::connect(&path) else {
                    return;
                };
                if sender.send(stream).is_err() {
                    return;
                }
            }
        });
        let mut waiting = Vec::new();
        while let Ok(stream) = receiver.recv_timeout(Duration::from_secs(1)) {
            waiting.push(stream);
        }
        let (done, result) = mpsc::channel();
        let path = socket.clone();
        thread::spawn(move || done.send(send_request(&path, String::from("{"), SHORT)));
        let failure = result
            .recv_timeout(Duration::from_secs(30))
            .expect("still in connect(2)")
            .unwrap_err();
        stopped.store(true, Ordering::Relaxed);
        assert!(failure.contains("did not reply within 0.3 s"), "{failure}");
        assert!(failure.contains(&socket.display().to_string()), "{failure}");
    }

    #[test]
    fn the_timeout_covers_a_reply_that_arrives_byte_by_byte() {
        let dir = SocketDir::new();
        let socket = dir.socket();
        let listener = UnixListener::bind(&socket).unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            while stream.write_all(b" ").is_ok() {
                thread::sleep(Duration::from_millis(50));
            }
        });
        let start = Instant::now();
        let failure = send_request(&socket, String::from("{"), SHORT).unwrap_err();
        assert!(failure.contains("did not reply within"), "{failure}");
        assert!(start.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_request_is_sent_again_while_the_agent_restarts() {
        let dir = SocketDir::new();
        let socket = dir.socket();
        let path = socket.clone();
        let (sender, request) = mpsc::channel();
        thread::spawn(move || {
            // Refused at first, as by the socket of an agent that has ended.
            drop(UnixListener::bind(&path).unwrap());
            thread::sleep(Duration::from_millis(150));
            std::fs::remove_file(&path).unwrap();
            let listener = UnixListener::bind(&path).unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            sender.send(line).unwrap();
            stream.write_all(b"{\"result\":true}\n").unwrap();
        });
        let long = Timeouts {
            exchange: Duration::from_secs(30),
            restart: Duration::from_secs(30),
        };
        assert_eq!(
            send_request(&socket, String::from("{\"a\":1"), long),
            Ok(())
        );
        assert_eq!(request.try_recv().as_deref(), Ok("{\"a\":1}\n"));
    }

    #[test]
    fn the_error_contains_all_fields_of_the_failure() {
        assert_eq!(parse_reply("{\"result\":true}\n"), Ok(()));
        let failure = r#"{"failure":{"what":"is away","where":"device nic-0","todo":"look"}}"#;
        assert_eq!(
            parse_reply(failure),
            Err("device nic-0: is away; look".to_owned())
        );
        let bare = r#"{"failure":{"what":"no"}}"#;
        assert_eq!(parse_reply(bare), Err("no".to_owned()));
        assert!(parse_reply("nonsense").is_err());
    }
}
