//! URLs, parsed by the rules of Go's `net/url`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::{Signature, global, member};
use crate::budget::Budget;
use crate::fault::Fault;
use crate::map::Entries;
use crate::value::{Map, Value};

#[rustfmt::skip]
pub(super) const TABLE: &[Signature] = &[
    global("string_to_url", "url", "string", "url", |args, budget| {
        let text = args[0].as_str()?;
        budget.charge(text.len().saturating_mul(ESCAPED_COPIES))?;
        budget.charge_shared()?;
        let url = Url::parse(text)
            .map_err(|why| Fault::invalid(text, format_args!("is not a URL: {why}")))?;
        Ok(Value::Url(Arc::new(url)))
    }),
    member("url_get_scheme", "getScheme", "url", "string", |args, budget| part(args, |url| &url.scheme, budget)),
    member("url_get_host", "getHost", "url", "string", |args, budget| part(args, |url| &url.host, budget)),
    member("url_get_hostname", "getHostname", "url", "string", |args, budget| part(args, |url| url.host_and_port().0, budget)),
    member("url_get_port", "getPort", "url", "string", |args, budget| part(args, |url| url.host_and_port().1, budget)),
    member("url_get_escaped_path", "getEscapedPath", "url", "string", |args, budget| part(args, |url| &url.escaped_path, budget)),
    member("url_get_query", "getQuery", "url", "map<string,list<string>>", query),
    global("is_url_string", "isURL", "string", "bool", |args, budget| {
        let text = args[0].as_str()?;
        budget.charge(text.len().saturating_mul(ESCAPED_COPIES))?;
        Ok(Value::Bool(is_absolute(text)))
    }),
];

/// An absolute URL or an absolute path.
#[derive(Debug)]
pub(crate) struct Url {
    scheme: String,
    host: String,
    escaped_path: String,
    query: String,
    text: String,
}

mod escape;

use escape::{Part, escape, escaped, unescape};

type Read<T> = Result<T, &'static str>;

/// Bytes of the parts of a URL for each byte of its text. An escaped byte takes three.
const ESCAPED_COPIES: usize = 10;

fn part(args: &[Value], of: fn(&Url) -> &str, budget: &mut Budget) -> Result<Value, Fault> {
    match &args[0] {
        Value::Url(url) => budget.string(of(url)),
        other => Err(Fault::no_overload_for(other)),
    }
}

fn query(args: &[Value], budget: &mut Budget) -> Result<Value, Fault> {
    let Value::Url(url) = &args[0] else {
        return Err(Fault::no_overload_for(&args[0]));
    };
    let mut values = BTreeMap::<String, Vec<Value>>::new();
    for pair in url
        .query
        .split('&')
        .filter(|pair| !pair.is_empty() && !pair.contains(';'))
    {
        // Invalid UTF-8 becomes up to three times as long.
        budget.charge(pair.len().saturating_mul(8))?;
        budget.charge_values(16)?;
        budget.charge_entry()?;
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if let (Ok(key), Ok(value)) = (unescape(key, Part::Query), unescape(value, Part::Query)) {
            let texts = values
                .entry(String::from_utf8_lossy(&key).into_owned())
                .or_default();
            texts.push(Value::string(&String::from_utf8_lossy(&value)));
        }
    }
    let mut entries = Entries::default();
    for (key, texts) in values {
        entries.push_name(&Arc::from(key), Value::list(texts));
    }
    Ok(Value::Map(Map::fixed(entries)))
}

// === impl Url ===

impl Url {
    fn parse(text: &str) -> Read<Self> {
        // Kubernetes parses a request URI, which must be absolute. The fragment is not part of it.
        Parts::read(text, true)?;
        let (address, fragment) = text.split_once('#').unwrap_or((text, ""));
        let parts = Parts::read(address, false)?;
        let fragment_bytes = unescape(fragment, Part::Fragment)?;
        let escaped_path = escaped(parts.path, &parts.path_bytes, Part::Path);
        let mut url = parts.text(&escaped_path);
        if !fragment.is_empty() {
            url.push('#');
            url.push_str(&escaped(fragment, &fragment_bytes, Part::Fragment));
        }
        Ok(Self {
            scheme: parts.scheme,
            host: parts.host,
            escaped_path,
            query: parts.query.to_owned(),
            text: url,
        })
    }

    /// The normal form, which comparisons use.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    fn host_and_port(&self) -> (&str, &str) {
        let (host, port) = match self.host.rfind(':') {
            Some(colon) if is_port(&self.host[colon..]) => {
                (&self.host[..colon], &self.host[colon + 1..])
            }
            _ => (self.host.as_str(), ""),
        };
        let inner = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        (inner.unwrap_or(host), port)
    }
}

/// Whether a text is an absolute URL or an absolute path.
pub(super) fn is_absolute(text: &str) -> bool {
    Parts::read(text, true).is_ok()
}

struct Parts<'t> {
    scheme: String,
    opaque: Option<&'t str>,
    user: Option<String>,
    host: String,
    without_host: bool,
    path: &'t str,
    path_bytes: Vec<u8>,
    query: &'t str,
    empty_query: bool,
}

impl<'t> Parts<'t> {
    fn read(text: &'t str, absolute: bool) -> Read<Self> {
        if text.bytes().any(|b| b < b' ' || b == 0x7f) {
            return Err("control characters are not allowed");
        }
        if text.is_empty() && absolute {
            return Err("it is empty");
        }
        let mut parts = Self {
            scheme: String::new(),
            opaque: None,
            user: None,
            host: String::new(),
            without_host: false,
            path: "",
            path_bytes: Vec::new(),
            query: "",
            empty_query: false,
        };
        if text == "*" {
            parts.path = text;
            parts.path_bytes = text.into();
            return Ok(parts);
        }
        let (scheme, rest) = split_scheme(text)?;
        parts.scheme = scheme.to_ascii_lowercase();
        let mut rest = match rest.split_once('?') {
            Some((before, "")) => {
                parts.empty_query = true;
                before
            }
            Some((before, query)) => {
                parts.query = query;
                before
            }
            None => rest,
        };
        if !rest.starts_with('/') {
            if !parts.scheme.is_empty() {
                parts.opaque = Some(rest);
                return Ok(parts);
            }
            if absolute {
                return Err("it is not absolute");
            }
            if rest
                .split('/')
                .next()
                .is_some_and(|segment| segment.contains(':'))
            {
                return Err("the first segment of a relative path must not contain a colon");
            }
        }
        let has_authority = !parts.scheme.is_empty() || !absolute && !rest.starts_with("///");
        if let Some(after) = rest.strip_prefix("//").filter(|_| has_authority) {
            let (authority, path) = after.split_at(after.find('/').unwrap_or(after.len()));
            parts.read_authority(authority)?;
            rest = path;
        } else if !parts.scheme.is_empty() {
            parts.without_host = true;
        }
        parts.path = rest;
        parts.path_bytes = unescape(rest, Part::Path)?;
        Ok(parts)
    }

    fn read_authority(&mut self, authority: &str) -> Read<()> {
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        self.host = read_host(&self.scheme, host)?;
        if let Some(user) = user {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
            if !user.chars().all(allowed) {
                return Err("the user information has characters that are not allowed");
            }
            let (name, password) = user
                .split_once(':')
                .map_or((user, None), |(name, word)| (name, Some(word)));
            let mut text = escape(&unescape(name, Part::User)?, Part::User);
            if let Some(password) = password {
                text = format!(
                    "{text}:{}",
                    escape(&unescape(password, Part::User)?, Part::User)
                );
            }
            self.user = Some(text);
        }
        Ok(())
    }

    fn text(&self, escaped_path: &str) -> String {
        let mut text = String::new();
        if !self.scheme.is_empty() {
            text = format!("{}:", self.scheme);
        }
        if let Some(opaque) = self.opaque.filter(|opaque| !opaque.is_empty()) {
            text.push_str(opaque);
        } else {
            let bare = self.host.is_empty() && self.user.is_none();
            if !bare || (!self.scheme.is_empty() && !self.without_host && !self.path.is_empty()) {
                text.push_str("//");
            }
            if let Some(user) = &self.user {
                text.push_str(user);
                text.push('@');
            }
            text.push_str(&escape(self.host.as_bytes(), Part::Host));
            if !escaped_path.is_empty() && !escaped_path.starts_with('/') && !self.host.is_empty() {
                text.push('/');
            }
            if text.is_empty()
                && escaped_path
                    .split('/')
                    .next()
                    .is_some_and(|segment| segment.contains(':'))
            {
                text.push_str("./");
            }
            text.push_str(escaped_path);
        }
        if self.empty_query || !self.query.is_empty() {
            text.push('?');
            text.push_str(self.query);
        }
        text
    }
}

fn split_scheme(text: &str) -> Read<(&str, &str)> {
    for (at, c) in text.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if at > 0 => {}
            ':' if at == 0 => return Err("the scheme is missing"),
            ':' => return Ok((&text[..at], &text[at + 1..])),
            _ => break,
        }
    }
    Ok(("", text))
}

fn read_host(scheme: &str, host: &str) -> Read<String> {
    match host.rfind('[') {
        Some(0) => {
            let close = host.rfind(']').ok_or("a ] is missing")?;
            let port = &host[close + 1..];
            if !is_port(port) {
                return Err("the port is not a number");
            }
            let name = &host[1..close];
            let (address, zone) = name.split_at(name.find("%25").unwrap_or(name.len()));
            let mut bytes = unescape(address, Part::Host)?;
            bytes.extend(unescape(zone, Part::Zone)?);
            let name = String::from_utf8(bytes).map_err(|_| "the address is not UTF-8")?;
            let address = match name.split_once('%') {
                Some((_, "")) => return Err("the zone is empty"),
                Some((address, _)) => address,
                None => name.as_str(),
            };
            match super::net::parse_address(address) {
                Some(IpAddr::V6(_)) => Ok(format!("[{name}]{port}")),
                _ => Err("only an IPv6 address can be in brackets"),
            }
        }
        Some(_) => Err("brackets are allowed only around the whole host"),
        None => {
            if let (Some(first), Some(last)) = (host.find(':'), host.rfind(':')) {
                let strict = matches!(scheme, "http" | "https");
                if !is_port(&host[if strict { first } else { last }..]) {
                    return Err("the port is not a number");
                }
            }
            String::from_utf8(unescape(host, Part::Host)?).map_err(|_| "the host is not UTF-8")
        }
    }
}

/// Whether the text is empty, or a colon and digits.
fn is_port(text: &str) -> bool {
    text.is_empty()
        || text
            .strip_prefix(':')
            .is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_digit()))
}
