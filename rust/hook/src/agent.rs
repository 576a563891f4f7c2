//! The agent's end of the matter, over a socket that only root can open: what only it can do, or knows.
//!
//! One line of JSON there, and one back, in which `result` is true:
//! `{"claim":...,"key":...,"cgroup":...}` has a container's memory limited,
//! `{"claim":...,"key":...,"task":"interface","pid":...}` an interface moved into a container's network.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::oci;
use crate::options::Asked;

/// For each of connecting, asking and the answer. Runtimes give a hook no deadline of their own.
const PATIENCE: Duration = Duration::from_secs(20);
/// For an agent that is just being started again; the kubelet starts the container again after that.
const RESTART: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_ANSWER: u64 = 1 << 16;

pub(crate) fn limit(asked: &Asked, cgroup: &str) -> Result<(), String> {
    let mut line = question(asked);
    line.push_str(",\"cgroup\":");
    oci::write_string(&mut line, cgroup);
    ask(&asked.socket, line)
}

pub(crate) fn move_interface(asked: &Asked, pid: u32) -> Result<(), String> {
    let mut line = question(asked);
    line.push_str(&format!(",\"task\":\"interface\",\"pid\":{pid}"));
    ask(&asked.socket, line)
}

fn question(asked: &Asked) -> String {
    let mut line = String::from("{\"claim\":");
    oci::write_string(&mut line, &asked.claim);
    line.push_str(",\"key\":");
    oci::write_string(&mut line, &asked.key);
    line
}

/// Asks until there is an answer: every request can be repeated.
fn ask(socket: &Path, mut line: String) -> Result<(), String> {
    line.push_str("}\n");
    let until = Instant::now() + RESTART;
    loop {
        match exchange(socket, &line) {
            Ok(answer) => return judge(&answer),
            Err(why) if Instant::now() >= until => {
                return Err(format!(
                    "the agent at {} {why}; is it running?",
                    socket.display()
                ));
            }
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

fn exchange(socket: &Path, line: &str) -> Result<String, String> {
    let unasked = |error: std::io::Error| format!("cannot be asked ({error})");
    let stream = UnixStream::connect(socket).map_err(unasked)?;
    stream
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
        .and_then(|()| (&stream).write_all(line.as_bytes()))
        .map_err(unasked)?;
    let mut answer = String::new();
    BufReader::new(stream.take(LONGEST_ANSWER))
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
    use super::judge;

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
