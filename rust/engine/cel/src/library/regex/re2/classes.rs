//! Character classes.

use std::fmt::Write;

use super::{Translator, push_literal};

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
        let plain = name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | ' ' | '-'));
        if !plain || is_property(name) {
            return Err(format!("{name:?} is not the name of a class"));
        }
        let kind = if negated == (kind == 'p') { 'P' } else { 'p' };
        Ok(Some(format!("\\{kind}{{{name}}}")))
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
            let low = self.class_char()?;
            let mut ahead = self.rest.clone();
            let is_range = ahead.next() == Some('-') && ahead.peek().is_some_and(|c| *c != ']');
            push_literal(&mut self.out, low);
            if is_range {
                self.rest.next();
                let high = self.class_char()?;
                if high < low {
                    return Err(format!("the range {low}-{high} runs backwards"));
                }
                self.out.push('-');
                push_literal(&mut self.out, high);
            }
        }
    }

    fn class_char(&mut self) -> Result<char, String> {
        match self.rest.next() {
            Some('\\') => self.escaped_char(),
            Some(c) => Ok(c),
            None => Err("a ] is missing".to_owned()),
        }
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

/// Whether the name is a property of the crate that RE2 does not support.
fn is_property(name: &str) -> bool {
    let plain: String = name
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .collect::<String>()
        .to_ascii_lowercase();
    [
        "alphabetic",
        "alpha",
        "lowercase",
        "lower",
        "uppercase",
        "upper",
        "whitespace",
        "wspace",
        "space",
        "ascii",
        "assigned",
        "cased",
        "dash",
        "emoji",
        "hexdigit",
        "asciihexdigit",
        "idstart",
        "idcontinue",
        "xidstart",
        "xidcontinue",
        "ideographic",
        "math",
        "numeric",
        "graph",
        "print",
        "word",
        "joincontrol",
        "noncharactercodepoint",
        "patternwhitespace",
        "quotationmark",
        "radical",
        "softdotted",
        "unifiedideograph",
        "variationselector",
        "defaultignorablecodepoint",
        "deprecated",
        "diacritic",
        "extender",
        "graphemebase",
        "graphemeextend",
    ]
    .contains(&plain.as_str())
}
