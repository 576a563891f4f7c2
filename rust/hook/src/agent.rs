//! The agent's end of the matter: it limits what only the driver can, over a socket that only root can open.
//!
//! One line of JSON there, `{"claim":...,"key":...,"cgroup":...}`, and one back, in which `result` is true.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::oci;

/// For each of connecting, asking and the answer. Runtimes give a hook no deadline of their own.
const PATIENCE: Duration = Duration::from_secs(20);
const LONGEST_ANSWER: u64 = 1 << 16;

pub(crate) fn limit(socket: &Path, claim: &str, key: &str, cgroup: &str) -> Result<(), String> {
    let failed = |what: &str, error: std::io::Error| {
        format!(
            "the agent at {} {what} ({error}); is it running?",
            socket.display()
        )
    };
    let stream = UnixStream::connect(socket).map_err(|error| failed("cannot be asked", error))?;
    stream
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
        .map_err(|error| failed("cannot be asked", error))?;
    let mut line = String::from("{");
    for (name, value) in [("claim", claim), ("key", key), ("cgroup", cgroup)] {
        if line.len() > 1 {
            line.push(',');
        }
        oci::write_string(&mut line, name);
        line.push(':');
        oci::write_string(&mut line, value);
    }
    line.push_str("}\n");
    (&stream)
        .write_all(line.as_bytes())
        .map_err(|error| failed("cannot be asked", error))?;
    let mut answer = String::new();
    BufReader::new(stream.take(LONGEST_ANSWER))
        .read_line(&mut answer)
        .map_err(|error| failed("does not answer", error))?;
    if oci::is_true(&answer, "result") {
        return Ok(());
    }
    Err(oci::text_within(&answer, "failure", "what")
        .unwrap_or_else(|| format!("the agent answers {:?}", answer.trim_end())))
}
