//! Semantic versions, strictly as semver 2.0.0 writes them: no leading v, no leading zeros, three numbers.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// A version. Build metadata has no part in its order (semver 2.0.0, rule 10).
#[derive(Debug, Clone)]
pub struct Version(semver::Version);

#[derive(Debug, thiserror::Error)]
#[error("{text:?} is not a semantic version such as \"1.2.3\": {source}")]
pub struct VersionError {
    text: String,
    source: semver::Error,
}

impl FromStr for Version {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        semver::Version::parse(text)
            .map(Self)
            .map_err(|source| VersionError {
                text: text.to_owned(),
                source,
            })
    }
}

impl Version {
    pub fn major(&self) -> u64 {
        self.0.major
    }

    pub fn minor(&self) -> u64 {
        self.0.minor
    }

    pub fn patch(&self) -> u64 {
        self.0.patch
    }

    pub fn prerelease(&self) -> &str {
        self.0.pre.as_str()
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Version {}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.cmp_precedence(&other.0)
    }
}
