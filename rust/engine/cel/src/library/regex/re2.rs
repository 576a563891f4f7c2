//! Translates the syntax of RE2, as in Go, to the syntax of the `regex` crate.
//!
//! The crate accepts more (set operations in classes, Unicode digits, flags) and interprets some syntax differently. The
//! translation rejects the expressions that RE2 rejects. Known difference: `\B` considers all letters, RE2 only those of ASCII.

use std::fmt::Write;
use std::iter::Peekable;
use std::str::Chars;

mod classes;

/// The maximum number of repetitions, and of the product of nested repetitions.
const MAX_REPEAT: u64 = 1000;

/// The class of no character.
const NONE: &str = "[^\\x{0}-\\x{10FFFF}]";

/// Translates a pattern. The error is a message.
pub(super) fn translate(pattern: &str) -> Result<String, String> {
    let mut translator = Translator {
        rest: pattern.chars().peekable(),
        out: String::with_capacity(pattern.len() + 8),
        groups: vec![Group::default()],
    };
    translator.run()?;
    Ok(translator.out)
}

/// An open group.
#[derive(Default)]
struct Group {
    /// The highest product of repetitions in the group.
    repeats: u64,
    /// The operand of a repetition: the highest product of repetitions in it.
    atom: Option<u64>,
    /// The atom already has a repetition.
    repeated: bool,
}

struct Translator<'p> {
    rest: Peekable<Chars<'p>>,
    out: String,
    groups: Vec<Group>,
}

impl Translator<'_> {
    fn run(&mut self) -> Result<(), String> {
        while let Some(c) = self.rest.next() {
            match c {
                '(' => self.open()?,
                ')' => self.close()?,
                '|' => {
                    self.out.push('|');
                    let group = self.group();
                    group.atom = None;
                    group.repeated = false;
                }
                '[' => {
                    self.class()?;
                    self.atom(1);
                }
                '*' | '+' | '?' => self.repeat(&c.to_string(), MAX_REPEAT, false)?,
                '{' => match self.counts()? {
                    Some((text, count)) => self.repeat(&text, count, true)?,
                    None => self.literal('{'),
                },
                '\\' => self.escape()?,
                '.' | '^' | '$' => {
                    self.out.push(c);
                    self.atom(1);
                }
                other => self.literal(other),
            }
        }
        if self.groups.len() == 1 {
            Ok(())
        } else {
            Err("a closing parenthesis is missing".to_owned())
        }
    }

    fn group(&mut self) -> &mut Group {
        if self.groups.is_empty() {
            self.groups.push(Group::default());
        }
        let last = self.groups.len() - 1;
        &mut self.groups[last]
    }

    fn atom(&mut self, repeats: u64) {
        let group = self.group();
        group.atom = Some(repeats);
        group.repeated = false;
        group.repeats = group.repeats.max(repeats);
    }

    fn literal(&mut self, c: char) {
        push_literal(&mut self.out, c);
        self.atom(1);
    }

    fn repeat(&mut self, operator: &str, count: u64, counted: bool) -> Result<(), String> {
        let lazy = self.rest.next_if_eq(&'?').is_some();
        let group = self.group();
        let inner = group
            .atom
            .ok_or_else(|| format!("{operator} has no operand"))?;
        if group.repeated {
            return Err(format!("{operator} repeats a repetition"));
        }
        group.repeated = true;
        if counted {
            let product = inner.saturating_mul(count.max(1));
            if product > MAX_REPEAT {
                return Err(format!("more than {MAX_REPEAT} repetitions"));
            }
            group.repeats = group.repeats.max(product);
            group.atom = Some(product);
        }
        self.out.push_str(operator);
        if lazy {
            self.out.push('?');
        }
        Ok(())
    }

    /// `n}`, `n,}` or `n,m}`; `None` for anything else, which is not a repetition.
    fn counts(&mut self) -> Result<Option<(String, u64)>, String> {
        let ahead: String = self.rest.clone().take_while(|c| *c != '}').collect();
        let closed = self.rest.clone().nth(ahead.chars().count()) == Some('}');
        let (least, most) = match ahead.split_once(',') {
            Some((least, most)) => (least, Some(most)),
            None => (ahead.as_str(), None),
        };
        let number = |text: &str| {
            let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            (plain && (text == "0" || !text.starts_with('0')))
                .then(|| text.parse::<u64>().unwrap_or(u64::MAX))
        };
        let Some(least) = number(least).filter(|_| closed) else {
            return Ok(None);
        };
        let most = match most {
            Some("") => None,
            Some(most) => match number(most) {
                Some(most) => Some(most),
                None => return Ok(None),
            },
            None => Some(least),
        };
        if least > MAX_REPEAT || most.is_some_and(|most| most > MAX_REPEAT || most < least) {
            return Err(format!("{{{ahead}}} is not a valid number of repetitions"));
        }
        for _ in 0..=ahead.chars().count() {
            self.rest.next();
        }
        Ok(Some((format!("{{{ahead}}}"), most.unwrap_or(least))))
    }

    fn open(&mut self) -> Result<(), String> {
        if self.rest.next_if_eq(&'?').is_none() {
            self.out.push('(');
            self.groups.push(Group::default());
            return Ok(());
        }
        let mut ahead = self.rest.clone();
        let named = match (ahead.next(), ahead.next()) {
            (Some('P'), Some('<')) => 2,
            (Some('<'), _) => 1,
            _ => return self.flags(),
        };
        self.rest.by_ref().take(named).for_each(drop);
        let name: String = self.rest.by_ref().take_while(|c| *c != '>').collect();
        if name.is_empty() || !name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric()) {
            return Err(format!("{name:?} is not a valid name of a group"));
        }
        self.out.push('(');
        self.groups.push(Group::default());
        Ok(())
    }

    /// `(?i)` and `(?i:`.
    fn flags(&mut self) -> Result<(), String> {
        let mut flags = String::new();
        loop {
            match self.rest.next() {
                Some(c @ ('i' | 'm' | 's' | 'U')) => flags.push(c),
                Some('-') if !flags.contains('-') => flags.push('-'),
                Some(c @ (')' | ':')) => {
                    if flags.ends_with('-') {
                        return Err("a flag is missing after -".to_owned());
                    }
                    if c == ':' {
                        let _ = write!(self.out, "(?{flags}:");
                        self.groups.push(Group::default());
                    } else if !flags.is_empty() {
                        let _ = write!(self.out, "(?{flags})");
                    }
                    return Ok(());
                }
                Some(c) => return Err(format!("(?{flags}{c} is not known")),
                None => return Err("a closing parenthesis is missing".to_owned()),
            }
        }
    }

    fn close(&mut self) -> Result<(), String> {
        if self.groups.len() == 1 {
            return Err("a closing parenthesis has no opening one".to_owned());
        }
        let repeats = self.groups.pop().map_or(1, |group| group.repeats.max(1));
        self.out.push(')');
        self.atom(repeats);
        Ok(())
    }

    fn escape(&mut self) -> Result<(), String> {
        match self.rest.peek() {
            Some('A' | 'z' | 'B') => {
                self.out.push('\\');
                self.out.extend(self.rest.next());
            }
            Some('b') => {
                self.rest.next();
                self.out.push_str("(?-u:\\b)");
            }
            Some('Q') => {
                self.rest.next();
                return self.quoted();
            }
            _ => {
                if let Some(class) = self.perl_class() {
                    let _ = write!(self.out, "[{class}]");
                } else if let Some(class) = self.unicode_class()? {
                    self.out.push_str(&class);
                } else {
                    let code = self.escaped_code()?;
                    push_code(&mut self.out, code);
                }
            }
        }
        self.atom(1);
        Ok(())
    }

    fn quoted(&mut self) -> Result<(), String> {
        while let Some(c) = self.rest.next() {
            if c == '\\' && self.rest.next_if_eq(&'E').is_some() {
                break;
            }
            self.literal(c);
        }
        Ok(())
    }

    /// The code point of an escape sequence, which may be a surrogate.
    fn escaped_code(&mut self) -> Result<u32, String> {
        let c = self
            .rest
            .next()
            .ok_or("the pattern ends with a backslash")?;
        let unknown = || format!("\\{c} is not known");
        let code = match c {
            '1'..='7' if !matches!(self.rest.peek(), Some('0'..='7')) => return Err(unknown()),
            '0'..='7' => {
                let mut code = c as u32 - '0' as u32;
                for _ in 0..2 {
                    match self.rest.next_if(|c| matches!(c, '0'..='7')) {
                        Some(digit) => code = code * 8 + (digit as u32 - '0' as u32),
                        None => break,
                    }
                }
                code
            }
            'x' => self.hexadecimal().ok_or_else(unknown)?,
            'a' => 7,
            'f' => 12,
            'n' => 10,
            'r' => 13,
            't' => 9,
            'v' => 11,
            c if c.is_ascii() && !c.is_ascii_alphanumeric() => c as u32,
            _ => return Err(unknown()),
        };
        Some(code)
            .filter(|code| *code <= char::MAX as u32)
            .ok_or_else(unknown)
    }

    fn hexadecimal(&mut self) -> Option<u32> {
        let digits: String = if self.rest.next_if_eq(&'{').is_some() {
            let digits: String = self.rest.clone().take_while(|c| *c != '}').collect();
            self.rest
                .nth(digits.chars().count())
                .filter(|c| *c == '}')?;
            digits
        } else {
            self.rest
                .by_ref()
                .take(2)
                .collect::<String>()
                .get(..2)?
                .to_owned()
        };
        let valid = !digits.is_empty() && digits.chars().all(|c| c.is_ascii_hexdigit());
        u32::from_str_radix(&digits, 16).ok().filter(|_| valid)
    }
}

fn push_code(out: &mut String, code: u32) {
    match char::from_u32(code) {
        Some(c) => push_literal(out, c),
        None => out.push_str(NONE),
    }
}

fn push_literal(out: &mut String, c: char) {
    if c.is_ascii() && !c.is_ascii_alphanumeric() {
        let _ = write!(out, "\\x{{{:X}}}", c as u32);
    } else {
        out.push(c);
    }
}
