//! IP addresses and networks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Signature, global, member};
use crate::fault::Fault;
use crate::value::Value;

#[rustfmt::skip]
pub(super) const TABLE: &[Signature] = &[
    global("string_to_ip", "ip", "string", "ip", |args, _| read_ip(&args[0]).map(Value::Ip)),
    member("ip_family", "family", "ip", "int", |args, _| Ok(Value::Int(if ip(&args[0])?.is_ipv4() { 4 } else { 6 }))),
    global(
        "ip_is_canonical",
        "ip.isCanonical",
        "string",
        "bool",
        |args, _| {
            Ok(Value::Bool(
                read_ip(&args[0])?.to_string() == **args[0].as_str()?,
            ))
        },
    ),
    member("ip_is_unspecified", "isUnspecified", "ip", "bool", |args, _| Ok(Value::Bool(ip(&args[0])?.is_unspecified()))),
    member("ip_is_loopback", "isLoopback", "ip", "bool", |args, _| Ok(Value::Bool(ip(&args[0])?.is_loopback()))),
    member(
        "ip_is_link_local_multicast",
        "isLinkLocalMulticast",
        "ip",
        "bool",
        |args, _| {
            Ok(Value::Bool(match ip(&args[0])? {
                IpAddr::V4(ip) => ip.octets()[..3] == [224, 0, 0],
                IpAddr::V6(ip) => ip.segments()[0] & 0xff0f == 0xff02,
            }))
        },
    ),
    member("ip_is_link_local_unicast", "isLinkLocalUnicast", "ip", "bool", |args, _| Ok(Value::Bool(is_link_local(ip(&args[0])?)))),
    member(
        "ip_is_global_unicast",
        "isGlobalUnicast",
        "ip",
        "bool",
        |args, _| {
            let ip = ip(&args[0])?;
            let broadcast = ip == IpAddr::V4(Ipv4Addr::BROADCAST);
            let special =
                ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || is_link_local(ip);
            Ok(Value::Bool(!broadcast && !special))
        },
    ),
    global("is_ip", "isIP", "string", "bool", |args, _| Ok(Value::Bool(parse_ip(args[0].as_str()?).is_some()))),
    global("ip_to_string", "string", "ip", "string", |args, budget| budget.string(&ip(&args[0])?.to_string())),
    global("string_to_cidr", "cidr", "string", "cidr", |args, _| read_cidr(&args[0]).map(|(ip, bits)| Value::Cidr(ip, bits))),
    member(
        "cidr_contains_ip_string",
        "containsIP",
        "cidr; string",
        "bool",
        |args, _| {
            let inner = read_ip(&args[1])?;
            Ok(Value::Bool(contains(cidr(&args[0])?, inner)))
        },
    ),
    member("cidr_contains_ip_ip", "containsIP", "cidr; ip", "bool", |args, _| Ok(Value::Bool(contains(cidr(&args[0])?, ip(&args[1])?)))),
    member(
        "cidr_contains_cidr_string",
        "containsCIDR",
        "cidr; string",
        "bool",
        |args, _| {
            let inner = read_cidr(&args[1])?;
            Ok(Value::Bool(contains_all(cidr(&args[0])?, inner)))
        },
    ),
    member(
        "cidr_contains_cidr",
        "containsCIDR",
        "cidr; cidr",
        "bool",
        |args, _| Ok(Value::Bool(contains_all(cidr(&args[0])?, cidr(&args[1])?))),
    ),
    member("cidr_ip", "ip", "cidr", "ip", |args, _| Ok(Value::Ip(cidr(&args[0])?.0))),
    member("cidr_prefix_length", "prefixLength", "cidr", "int", |args, _| Ok(Value::Int(i64::from(cidr(&args[0])?.1)))),
    member("cidr_masked", "masked", "cidr", "cidr", |args, _| { let (ip, bits) = cidr(&args[0])?; Ok(Value::Cidr(masked(ip, bits), bits)) }),
    global("is_cidr", "isCIDR", "string", "bool", |args, _| Ok(Value::Bool(parse_cidr(args[0].as_str()?).is_some()))),
    global("cidr_to_string", "string", "cidr", "string", |args, budget| {
        let (ip, bits) = cidr(&args[0])?;
        budget.string(&format!("{ip}/{bits}"))
    }),
];

fn ip(value: &Value) -> Result<IpAddr, Fault> {
    match value {
        Value::Ip(ip) => Ok(*ip),
        other => Err(Fault::no_overload_for(other)),
    }
}

fn cidr(value: &Value) -> Result<(IpAddr, u8), Fault> {
    match value {
        Value::Cidr(ip, bits) => Ok((*ip, *bits)),
        other => Err(Fault::no_overload_for(other)),
    }
}

fn read_ip(value: &Value) -> Result<IpAddr, Fault> {
    let text = value.as_str()?;
    parse_ip(text).ok_or_else(|| Fault::invalid(text, "is not an IP address"))
}

fn read_cidr(value: &Value) -> Result<(IpAddr, u8), Fault> {
    let text = value.as_str()?;
    parse_cidr(text)
        .ok_or_else(|| Fault::invalid(text, "is not a network such as \"192.0.2.0/24\""))
}

/// An address in any notation.
pub(super) fn parse_address(text: &str) -> Option<IpAddr> {
    text.parse().ok()
}

/// An address without a zone. IPv4-mapped IPv6 notation is invalid.
fn parse_ip(text: &str) -> Option<IpAddr> {
    parse_address(text).filter(|ip| !matches!(ip, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some()))
}

fn parse_cidr(text: &str) -> Option<(IpAddr, u8)> {
    let (address, digits) = text.rsplit_once('/')?;
    let ip = parse_ip(address)?;
    let plain = digits.bytes().all(|b| b.is_ascii_digit())
        && (digits.len() == 1 || !digits.starts_with('0'));
    let bits: u8 = digits.parse().ok().filter(|_| plain)?;
    (bits <= if ip.is_ipv4() { 32 } else { 128 }).then_some((ip, bits))
}

fn masked(ip: IpAddr, bits: u8) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from(u32::from(ip) & mask))
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from(u128::from(ip) & mask))
        }
    }
}

fn contains((network, bits): (IpAddr, u8), ip: IpAddr) -> bool {
    network.is_ipv4() == ip.is_ipv4() && masked(network, bits) == masked(ip, bits)
}

fn contains_all(outer: (IpAddr, u8), inner: (IpAddr, u8)) -> bool {
    outer.1 <= inner.1 && contains(outer, inner.0)
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.segments()[0] & 0xffc0 == 0xfe80,
    }
}
