//! Runs the hook as a container runtime does: with a state on standard input, a cgroup tree and an agent behind a
//! socket.

#![allow(clippy::unwrap_used)]

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

const REGION: &str = "drm/0000:03:00.0/vram0";
const STATE: &str =
    r#"{"ociVersion":"1.2.0","id":"c","status":"created","pid":4711,"bundle":"/b"}"#;
/// Far above the duration of a hook on a slow machine.
const DEADLINE: Duration = Duration::from_secs(30);

#[test]
fn version_is_printed_without_a_container() {
    let done = Command::new(env!("CARGO_BIN_EXE_dra-agent-hook"))
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(done.status.success());
    let expected = concat!("dra-agent-hook ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!(String::from_utf8(done.stdout).unwrap(), expected);
}

#[test]
fn an_argument_that_is_not_utf_8_is_one_message() {
    let invalid = OsStr::from_bytes(b"\xff");
    for arguments in [
        &[invalid][..],
        &["--region".as_ref(), invalid],
        &["--claim".as_ref(), "u".as_ref(), invalid],
    ] {
        let done = Command::new(env!("CARGO_BIN_EXE_dra-agent-hook"))
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(done.status.code(), Some(1));
        assert_eq!(
            String::from_utf8(done.stderr).unwrap(),
            "dra-agent-hook: argument \"\\xFF\" is not UTF-8\n"
        );
    }
}

/// A host with one container. The ID of its first process is 4711.
struct Host(tempfile::TempDir);

struct Ended {
    succeeded: bool,
    errors: String,
}

impl Host {
    fn new() -> Self {
        let host = Self(tempfile::tempdir().unwrap());
        fs::create_dir_all(host.path("proc/4711")).unwrap();
        host.write("proc/4711/cgroup", "0::/pods.slice/cri-1.scope\n");
        fs::create_dir_all(host.path("cgroup/pods.slice/cri-1.scope")).unwrap();
        host.write("cgroup/cgroup.subtree_control", "");
        host.write("cgroup/pods.slice/cgroup.subtree_control", "");
        host.write("cgroup/pods.slice/cri-1.scope/dmem.max", "");
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    fn limit(&self) -> PathBuf {
        self.path("cgroup/pods.slice/cri-1.scope/dmem.max")
    }

    fn run(&self, state: &str, arguments: &[&str]) -> Ended {
        let mut hook = Command::new(env!("CARGO_BIN_EXE_dra-agent-hook"))
            .arg("--cgroups")
            .arg(self.path("cgroup"))
            .arg("--proc")
            .arg(self.path("proc"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The hook may end without reading its state.
        let _ = hook.stdin.take().unwrap().write_all(state.as_bytes());
        let deadline = Instant::now() + DEADLINE;
        while hook.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                hook.kill().unwrap();
                panic!("the hook still runs after {DEADLINE:?}: {arguments:?}");
            }
            thread::sleep(Duration::from_millis(2));
        }
        let ended = hook.wait_with_output().unwrap();
        Ended {
            succeeded: ended.status.success(),
            errors: String::from_utf8(ended.stderr).unwrap(),
        }
    }

    fn limit_by_kernel(&self) -> Ended {
        self.run(STATE, &["--region", REGION, "--bytes", "4096"])
    }

    /// Runs the hook with an agent that sends one reply. The returned channel already contains the request.
    fn run_with_agent(&self, reply: &'static str, task: &[&str]) -> (Ended, Receiver<String>) {
        let socket = self.path("hooks.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let (sender, request) = mpsc::channel();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            sender.send(line).unwrap();
            stream.write_all(reply.as_bytes()).unwrap();
        });
        let socket = socket.to_str().unwrap();
        let arguments = ["--socket", socket, "--claim", "uid-1", "--key", "gpu/s"];
        (self.run(STATE, &[&arguments[..], task].concat()), request)
    }
}

fn assert_refused(ended: &Ended, why: &str) {
    assert!(!ended.succeeded, "the container starts; expected: {why}");
    assert_eq!(ended.errors.lines().count(), 1, "{:?}", ended.errors);
    assert!(ended.errors.starts_with("dra-agent-hook: "));
    assert!(
        ended.errors.contains(why),
        "{:?} in {:?}",
        why,
        ended.errors
    );
}

#[test]
fn the_kernel_limits_the_containers_cgroup_and_no_other() {
    let host = Host::new();
    host.write("cgroup/cgroup.subtree_control", "cpu\n");
    host.write("cgroup/pods.slice/cgroup.subtree_control", "cpu dmem io\n");
    let ended = host.limit_by_kernel();
    assert_eq!((ended.succeeded, ended.errors.as_str()), (true, ""));
    assert_eq!(
        host.read("cgroup/pods.slice/cri-1.scope/dmem.max"),
        format!("{REGION} 4096\n")
    );
    assert_eq!(host.read("cgroup/cgroup.subtree_control"), "+dmem\n");
    assert_eq!(
        host.read("cgroup/pods.slice/cgroup.subtree_control"),
        "cpu dmem io\n",
        "an enabled controller is not enabled again"
    );
}

#[test]
fn a_limit_that_the_kernel_does_not_keep_stops_the_container() {
    let host = Host::new();
    fs::remove_file(host.limit()).unwrap();
    std::os::unix::fs::symlink("/dev/null", host.limit()).unwrap();
    assert_refused(&host.limit_by_kernel(), &format!("{REGION} is not limited"));
    fs::remove_file(host.limit()).unwrap();
    assert_refused(&host.limit_by_kernel(), "dmem.max: No such file");
    assert!(!host.limit().exists());
}

/// The kernel may round a limit: the value that it reports applies.
#[test]
fn a_container_never_gets_more_than_its_share_by_rounding() {
    for (kept, why) in [
        ("4000", None),
        ("8192", Some("is limited to 8192 bytes, not 4096")),
        ("max", Some("is not limited")),
    ] {
        let host = Host::new();
        fs::remove_file(host.limit()).unwrap();
        let made = Command::new("mkfifo").arg(host.limit()).status().unwrap();
        assert!(made.success());
        let (kernel, answer) = (host.limit(), format!("{REGION} {kept}\n"));
        thread::spawn(move || {
            assert_eq!(
                fs::read_to_string(&kernel).unwrap(),
                format!("{REGION} 4096\n")
            );
            fs::write(&kernel, answer).unwrap();
        });
        let ended = host.limit_by_kernel();
        match why {
            None => assert!(ended.succeeded, "{kept}: {}", ended.errors),
            Some(why) => assert_refused(&ended, why),
        }
    }
}

#[test]
fn the_agent_is_requested_to_limit_the_containers_cgroup() {
    let host = Host::new();
    let (ended, request) = host.run_with_agent("{\"result\":true}\n", &[]);
    assert!(ended.succeeded, "{}", ended.errors);
    assert_eq!(
        request.try_recv().as_deref(),
        Ok("{\"claim\":\"uid-1\",\"key\":\"gpu/s\",\"cgroup\":\"pods.slice/cri-1.scope\"}\n")
    );
    let host = Host::new();
    let (ended, _) = host.run_with_agent("{\"failure\":{\"what\":\"no\"}}\n", &[]);
    assert_refused(
        &ended,
        "the container's share of a GPU cannot be limited: no",
    );
}

#[test]
fn the_agent_is_requested_to_move_an_interface_to_the_containers_process() {
    let host = Host::new();
    let task = ["--task", "interface"];
    let (ended, request) = host.run_with_agent("{\"result\":true}\n", &task);
    assert!(ended.succeeded, "{}", ended.errors);
    assert_eq!(
        request.try_recv().as_deref(),
        Ok("{\"claim\":\"uid-1\",\"key\":\"gpu/s\",\"task\":\"interface\",\"pid\":4711}\n")
    );
    let host = Host::new();
    let (ended, _) = host.run_with_agent("{\"failure\":{\"what\":\"no\"}}\n", &task);
    assert_refused(
        &ended,
        "the claim's network interface cannot be moved to the container: no",
    );
}

#[test]
fn a_container_that_cannot_be_found_does_not_start() {
    let host = Host::new();
    let arguments = ["--region", REGION, "--bytes", "4096"];
    assert_refused(&host.run("{}", &arguments), "it has no pid");
    assert_refused(&host.run(r#"{"pid":1}"#, &arguments), "proc/1/cgroup: ");
    host.write("proc/4711/cgroup", "0::/\n");
    assert_refused(
        &host.run(STATE, &arguments),
        "the container has no separate cgroup",
    );
    assert_eq!(host.read("cgroup/pods.slice/cri-1.scope/dmem.max"), "");
}

#[test]
fn an_argument_that_is_not_known_stops_the_container() {
    let host = Host::new();
    let ended = host.run(STATE, &["--region", REGION, "--soft", "1"]);
    assert_refused(&ended, "argument --soft is not known");
}
