//! Character classes.

use std::fmt::Write;

use super::{NONE, Translator, push_code, push_literal};

mod names;

/// The class of every character.
const ANY: &str = "[\\x{0}-\\x{10FFFF}]";

impl Translator<'_> {
    /// The content of the class of `\d`, `\s` and `\w`, ASCII only.
    pub(super) fn perl_class(&mut self) -> Option<&'static str> {
        let class = match self.rest.peek()? {
            'd' => "0-9",
            'D' => "^0-9",
            'w' => "0-9A-Za-z_",
            'W' => "^0-9A-Za-z_",
            's' => "\\t\\n\\x0C\\r ",
            'S' => "^\\t\\n\\x0C\\r ",
            _ => return None,
        };
        self.rest.next();
        Some(class)
    }

    /// `\pL`, `\p{Greek}`, `\p{^Greek}`.
    pub(super) fn unicode_class(&mut self) -> Result<Option<String>, String> {
        let Some(kind) = self.rest.next_if(|c| matches!(c, 'p' | 'P')) else {
            return Ok(None);
        };
        let missing = || "the name of a class is missing".to_owned();
        let name: String = match self.rest.next().ok_or_else(missing)? {
            '{' => {
                let name: String = self.rest.clone().take_while(|c| *c != '}').collect();
                if self.rest.nth(name.chars().count()) != Some('}') {
                    return Err(missing());
                }
                name
            }
            c => c.to_string(),
        };
        let (negated, name) = name
            .strip_prefix('^')
            .map_or((false, name.as_str()), |name| (true, name));
        let plain = name.replace(['_', '-', ' '], "").to_ascii_lowercase();
        if !names::NAMES.contains(&plain.as_str()) {
            return Err(format!("{name:?} is not the name of a class"));
        }
        let excluded = negated == (kind == 'p');
        Ok(Some(match plain.as_str() {
            // Text has no surrogates, and the crate no class for them.
            "cs" | "surrogate" if excluded => ANY.to_owned(),
            "cs" | "surrogate" => NONE.to_owned(),
            name => format!("\\{}{{{name}}}", if excluded { 'P' } else { 'p' }),
        }))
    }

    pub(super) fn class(&mut self) -> Result<(), String> {
        self.out.push('[');
        if self.rest.next_if_eq(&'^').is_some() {
            self.out.push('^');
        }
        let mut first = true;
        loop {
            let missing = || "a ] is missing".to_owned();
            if !first && self.rest.next_if_eq(&']').is_some() {
                self.out.push(']');
                return Ok(());
            }
            first = false;
            if self.posix_class()? {
                continue;
            }
            if *self.rest.peek().ok_or_else(missing)? == '\\' {
                let mut ahead = self.rest.clone();
                ahead.next();
                std::mem::swap(&mut self.rest, &mut ahead);
                if let Some(class) = self.perl_class() {
                    let _ = write!(self.out, "[{class}]");
                    continue;
                }
                if let Some(class) = self.unicode_class()? {
                    self.out.push_str(&class);
                    continue;
                }
                self.rest = ahead;
            }
            let low = self.class_code()?;
            let mut ahead = self.rest.clone();
            let is_range = ahead.next() == Some('-') && ahead.peek().is_some_and(|c| *c != ']');
            if !is_range {
                push_code(&mut self.out, low);
                continue;
            }
            self.rest.next();
            let high = self.class_code()?;
            if high < low {
                return Err(format!(
                    "the range from U+{low:04X} to U+{high:04X} runs backwards"
                ));
            }
            self.range(low, high);
        }
    }

    fn class_code(&mut self) -> Result<u32, String> {
        match self.rest.next() {
            Some('\\') => self.escaped_code(),
            Some(c) => Ok(c as u32),
            None => Err("a ] is missing".to_owned()),
        }
    }

    /// A range of code points, without the surrogates at its ends, which text cannot contain.
    fn range(&mut self, low: u32, high: u32) {
        let first = char::from_u32(low).unwrap_or('\u{E000}');
        let last = char::from_u32(high).unwrap_or('\u{D7FF}');
        if last < first {
            self.out.push_str(NONE);
            return;
        }
        push_literal(&mut self.out, first);
        self.out.push('-');
        push_literal(&mut self.out, last);
    }

    /// `[:alpha:]` and `[:^alpha:]`.
    fn posix_class(&mut self) -> Result<bool, String> {
        let ahead: String = self.rest.clone().collect();
        let Some(inner) = ahead.strip_prefix("[:") else {
            return Ok(false);
        };
        let Some(end) = inner.find(":]") else {
            return Ok(false);
        };
        let name = &inner[..end];
        let known = [
            "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print",
            "punct", "space", "upper", "word", "xdigit",
        ];
        if !known.contains(&name.strip_prefix('^').unwrap_or(name)) {
            return Err(format!("[:{name}:] is not the name of a class"));
        }
        let _ = write!(self.out, "[:{name}:]");
        self.rest.by_ref().take(name.len() + 4).for_each(drop);
        Ok(true)
    }
}
