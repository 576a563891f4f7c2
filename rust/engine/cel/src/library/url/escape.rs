//! Percent-encoding, which differs between the parts of a URL.

use super::Read;

/// A part of a URL. Each has its own set of characters that need no escape.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Part {
    Path,
    Query,
    User,
    Host,
    Zone,
    Fragment,
}

impl Part {
    /// Whether a byte needs no escape.
    fn allows(self, byte: u8) -> bool {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            return true;
        }
        match self {
            Self::Path => b"$&+,/:;=@".contains(&byte),
            Self::Query => false,
            Self::User => b"$&+,;=".contains(&byte),
            Self::Host | Self::Zone => b"!$&'()*+,;=:[]<>\"".contains(&byte),
            Self::Fragment => b"$&+,/:;=?@!()*".contains(&byte),
        }
    }
}

pub(super) fn unescape(text: &str, part: Part) -> Read<Vec<u8>> {
    let bad = "a % is not followed by two hexadecimal digits";
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        match first {
            b'%' => {
                let digit = |at: usize| tail.get(at).and_then(|b| char::from(*b).to_digit(16));
                let (Some(high), Some(low)) = (digit(0), digit(1)) else {
                    return Err(bad);
                };
                let byte = (high * 16 + low) as u8;
                let plain = match part {
                    Part::Host => high >= 8 || byte == b'%',
                    Part::Zone => byte == b'%' || byte == b' ' || Part::Host.allows(byte),
                    _ => true,
                };
                if !plain {
                    return Err("a host must not escape this character");
                }
                bytes.push(byte);
                rest = &tail[2..];
            }
            b'+' if part == Part::Query => bytes.push(b' '),
            byte if matches!(part, Part::Host | Part::Zone)
                && byte.is_ascii()
                && !part.allows(*byte) =>
            {
                return Err("the host has a character that is not allowed");
            }
            byte => bytes.push(*byte),
        }
    }
    Ok(bytes)
}

pub(super) fn escape(bytes: &[u8], part: Part) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        if part.allows(*byte) {
            text.push(char::from(*byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// The text if it is a valid encoding of the bytes, otherwise the default encoding.
pub(super) fn escaped(text: &str, bytes: &[u8], part: Part) -> String {
    if text == "*"
        || text
            .bytes()
            .all(|b| b"!$&'()*+,;=:@[]%".contains(&b) || part.allows(b))
    {
        return text.to_owned();
    }
    escape(bytes, part)
}
