//! The agent's end of the matter, over a socket that only root can open: what only it can do, or knows.
//!
//! One line of JSON there, and one back, in which `result` is true:
//! `{"claim":...,"key":...,"cgroup":...}` has a container's memory limited,
//! `{"claim":...,"key":...,"task":"interface","pid":...}` an interface moved into a container's network.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::oci;
use crate::options::Asked;

/// How long the hook waits. Runtimes give a hook no deadline of their own.
#[derive(Debug, Clone, Copy)]
struct Timeouts {
    /// From the first byte sent to the whole answer, connecting included.
    exchange: Duration,
    /// Within which a failed exchange is repeated, for an agent that is being restarted. The kubelet starts the
    /// container again after that.
    restart: Duration,
}

/// 25 s in all at most: one exchange that begins at the end of `restart` (docs/shares.md).
const TIMEOUTS: Timeouts = Timeouts {
    exchange: Duration::from_secs(20),
    restart: Duration::from_secs(5),
};
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
const MAX_ANSWER_BYTES: u64 = 1 << 16;

pub(crate) fn limit(asked: &Asked, cgroup: &str) -> Result<(), String> {
    let mut line = question(asked);
    line.push_str(",\"cgroup\":");
    oci::write_string(&mut line, cgroup);
    ask(&asked.socket, line, TIMEOUTS)
}

pub(crate) fn move_interface(asked: &Asked, pid: u32) -> Result<(), String> {
    let mut line = question(asked);
    line.push_str(&format!(",\"task\":\"interface\",\"pid\":{pid}"));
    ask(&asked.socket, line, TIMEOUTS)
}

fn question(asked: &Asked) -> String {
    let mut line = String::from("{\"claim\":");
    oci::write_string(&mut line, &asked.claim);
    line.push_str(",\"key\":");
    oci::write_string(&mut line, &asked.key);
    line
}

/// Asks until there is an answer or the time is up: every request can be repeated.
fn ask(socket: &Path, mut line: String, timeouts: Timeouts) -> Result<(), String> {
    line.push_str("}\n");
    let until = Instant::now() + timeouts.restart;
    loop {
        match bounded_exchange(socket, &line, timeouts.exchange) {
            Ok(answer) => return judge(&answer),
            Err(why) if Instant::now() >= until => {
                return Err(format!(
                    "the agent at {} {why}; is it running?",
                    socket.display()
                ));
            }
            Err(_) => thread::sleep(RETRY_INTERVAL),
        }
    }
}

/// One exchange in a thread of its own. connect(2) of a unix socket waits without a limit while the listener's backlog
/// is full, and the standard library cannot give it a timeout. A thread that is left in it ends with the process.
fn bounded_exchange(socket: &Path, line: &str, timeout: Duration) -> Result<String, String> {
    let (sender, receiver) = mpsc::channel();
    let (path, request) = (socket.to_owned(), line.to_owned());
    thread::Builder::new()
        .name("exchange".to_owned())
        .spawn(move || {
            // The receiver is gone where the time was up first.
            let _ = sender.send(exchange(&path, &request));
        })
        .map_err(|error| format!("cannot be asked ({error})"))?;
    receiver
        .recv_timeout(timeout)
        .unwrap_or_else(|error| match error {
            RecvTimeoutError::Timeout => {
                Err(format!("did not answer within {} s", timeout.as_secs_f64()))
            }
            RecvTimeoutError::Disconnected => Err("cannot be asked (thread ended)".to_owned()),
        })
}

fn exchange(socket: &Path, line: &str) -> Result<String, String> {
    let unasked = |error: std::io::Error| format!("cannot be asked ({error})");
    let stream = UnixStream::connect(socket).map_err(unasked)?;
    (&stream).write_all(line.as_bytes()).map_err(unasked)?;
    let mut answer = String::new();
    BufReader::new(stream.take(MAX_ANSWER_BYTES))
        .read_line(&mut answer)
        .map_err(|error| format!("does not answer ({error})"))?;
    if answer.is_empty() {
        return Err("went away before it answered".to_owned());
    }
    Ok(answer)
}

fn judge(answer: &str) -> Result<(), String> {
    if oci::is_true(answer, "result") {
        return Ok(());
    }
    let said = |name| oci::text_within(answer, "failure", name);
    let Some(what) = said("what") else {
        return Err(format!("the agent answers {:?}", answer.trim_end()));
    };
    let place = said("where").map(|place| format!("{place}: "));
    let todo = said("todo").map(|todo| format!("; {todo}"));
    Err(format!(
        "{}{what}{}",
        place.unwrap_or_default(),
        todo.unwrap_or_default()
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

    use super::{Timeouts, ask, judge};

    const SHORT: Timeouts = Timeouts {
        exchange: Duration::from_millis(300),
        restart: Duration::from_millis(200),
    };

    struct Place(PathBuf);

    impl Place {
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

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn an_agent_that_does_not_accept_connections_is_not_waited_for_without_end() {
        let place = Place::new();
        let socket = place.socket();
        let _listener = UnixListener::bind(&socket).unwrap();
        // Connections that are never accepted, until connect(2) itself waits.
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
        let (done, answer) = mpsc::channel();
        let path = socket.clone();
        thread::spawn(move || done.send(ask(&path, String::from("{"), SHORT)));
        let failure = answer
            .recv_timeout(Duration::from_secs(30))
            .expect("still in connect(2)")
            .unwrap_err();
        stopped.store(true, Ordering::Relaxed);
        assert!(failure.contains("did not answer within 0.3 s"), "{failure}");
        assert!(failure.contains(&socket.display().to_string()), "{failure}");
    }

    #[test]
    fn an_answer_that_comes_byte_by_byte_is_bounded_as_a_whole() {
        let place = Place::new();
        let socket = place.socket();
        let listener = UnixListener::bind(&socket).unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            while stream.write_all(b" ").is_ok() {
                thread::sleep(Duration::from_millis(50));
            }
        });
        let begun = Instant::now();
        let failure = ask(&socket, String::from("{"), SHORT).unwrap_err();
        assert!(failure.contains("did not answer within"), "{failure}");
        assert!(begun.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn an_agent_that_is_restarted_is_asked_again() {
        let place = Place::new();
        let socket = place.socket();
        let path = socket.clone();
        let (sender, question) = mpsc::channel();
        thread::spawn(move || {
            // Refused at first: a socket that has been left behind.
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
        let patient = Timeouts {
            exchange: Duration::from_secs(30),
            restart: Duration::from_secs(30),
        };
        assert_eq!(ask(&socket, String::from("{\"a\":1"), patient), Ok(()));
        assert_eq!(question.try_recv().as_deref(), Ok("{\"a\":1}\n"));
    }

    #[test]
    fn all_that_the_agent_says_is_passed_on() {
        assert_eq!(judge("{\"result\":true}\n"), Ok(()));
        let failure = r#"{"failure":{"what":"is away","where":"device nic-0","todo":"look"}}"#;
        assert_eq!(
            judge(failure),
            Err("device nic-0: is away; look".to_owned())
        );
        let bare = r#"{"failure":{"what":"no"}}"#;
        assert_eq!(judge(bare), Err("no".to_owned()));
        assert!(judge("nonsense").is_err());
    }
}
