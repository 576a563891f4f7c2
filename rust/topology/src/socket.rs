//! The netlink socket on which the kernel announces devices.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recvfrom, socket_with};

use crate::uevent::Uevent;

/// A non-blocking socket that any event loop can watch; events of other network namespaces than the
/// host's do not reach it.
#[derive(Debug)]
pub struct UeventSocket {
    fd: OwnedFd,
    buffer: Vec<u8>,
}

/// What waits on the socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    Event(Uevent),
    /// The kernel dropped events because nobody fetched them in time: only a rescan knows what they were.
    Lost,
    /// Nothing for now.
    Nothing,
}

/// Group 1 is the kernel's own; udev answers on group 2.
const KERNEL: u32 = 1;
/// A host that resets eight GPUs and their NICs sends some thousand events of 200 to 500 bytes.
const QUEUE: usize = 8 << 20;
/// The kernel's messages are at most 2 KiB of fields and a path (UEVENT_BUFFER_SIZE).
const MESSAGE: usize = 8 << 10;

impl UeventSocket {
    /// # Errors
    /// Where the kernel or a sandbox refuses netlink sockets.
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            flags,
            Some(KOBJECT_UEVENT),
        )?;
        // Without CAP_NET_ADMIN the default size must do; what overflows is healed by a rescan.
        let _ = set_socket_recv_buffer_size_force(&fd, QUEUE);
        bind(&fd, &SocketAddrNetlink::new(0, KERNEL))?;
        Ok(Self {
            fd,
            buffer: vec![0; MESSAGE],
        })
    }

    /// The next event; messages that are not the kernel's are passed over.
    ///
    /// # Errors
    /// Where the socket itself fails.
    pub fn receive(&mut self) -> io::Result<Received> {
        loop {
            match recvfrom(&self.fd, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Ok((length, _, sender)) => {
                    // Any process may send to a netlink socket that it knows; the kernel's port is 0.
                    let from_kernel = sender
                        .and_then(|sender| SocketAddrNetlink::try_from(sender).ok())
                        .is_some_and(|sender| sender.pid() == 0);
                    if let (true, Ok(event)) = (from_kernel, Uevent::parse(&self.buffer[..length]))
                    {
                        return Ok(Received::Event(event));
                    }
                }
                Err(Errno::NOBUFS) => return Ok(Received::Lost),
                Err(Errno::AGAIN) => return Ok(Received::Nothing),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl AsFd for UeventSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
