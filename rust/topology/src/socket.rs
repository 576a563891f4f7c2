//! The netlink socket on which the kernel sends uevents.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recvfrom, socket_with};

use crate::uevent::Uevent;

/// A non-blocking socket for uevents. It receives them only in the network namespace of the host.
#[derive(Debug)]
pub struct UeventSocket {
    fd: OwnedFd,
    buffer: Vec<u8>,
}

/// The result of one read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    Event(Uevent),
    /// The kernel dropped events because the receive buffer was full. Only a rescan detects their changes.
    Lost,
    /// No event is pending.
    Empty,
}

/// The multicast group of the kernel; udev sends to group 2.
const KERNEL_GROUP: u32 = 1;
/// A host that resets eight GPUs and their NICs sends some thousand events of 200 to 500 bytes.
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;
/// The kernel's messages have at most 2 KiB of fields (UEVENT_BUFFER_SIZE) and a path.
const BUFFER_BYTES: usize = 8 << 10;

impl UeventSocket {
    /// # Errors
    /// The kernel or a sandbox refuses netlink sockets.
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            flags,
            Some(KOBJECT_UEVENT),
        )?;
        // Needs CAP_NET_ADMIN. With the default size, more events are dropped, and a rescan follows.
        let _ = set_socket_recv_buffer_size_force(&fd, RECEIVE_BUFFER_BYTES);
        bind(&fd, &SocketAddrNetlink::new(0, KERNEL_GROUP))?;
        Ok(Self {
            fd,
            buffer: vec![0; BUFFER_BYTES],
        })
    }

    /// Returns the next event of the kernel and skips messages of other senders.
    ///
    /// # Errors
    /// The socket fails.
    pub fn receive(&mut self) -> io::Result<Received> {
        loop {
            match recvfrom(&self.fd, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Ok((length, _, sender)) => {
                    // Any process may send to a netlink socket. The port of the kernel is 0.
                    let from_kernel = sender
                        .and_then(|sender| SocketAddrNetlink::try_from(sender).ok())
                        .is_some_and(|sender| sender.pid() == 0);
                    if let (true, Ok(event)) = (from_kernel, Uevent::parse(&self.buffer[..length]))
                    {
                        return Ok(Received::Event(event));
                    }
                }
                Err(Errno::NOBUFS) => return Ok(Received::Lost),
                Err(Errno::AGAIN) => return Ok(Received::Empty),
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
