//! The status of a claim: allocated devices and consumers.

use super::path::{Path, Report};
use super::{claim, names};
use crate::claim::{AllocationResult, ResourceClaimStatus};

const MAX_RESULTS: usize = 32;
const MAX_CONFIGS: usize = 64;
const MAX_RESERVED_FOR: usize = 256;
const MAX_CONDITIONS: usize = 8;

pub(super) fn validate(status: &ResourceClaimStatus, path: &Path<'_>, report: &mut Report) {
    let reserved = path.member("reservedFor");
    report.at_most(MAX_RESERVED_FOR, status.reserved_for.len(), &reserved);
    report.unique(
        status
            .reserved_for
            .iter()
            .map(|consumer| consumer.uid.as_str()),
        &reserved,
    );
    if status.allocation.is_none() && !status.reserved_for.is_empty() {
        report.fail(&reserved, "must be empty while nothing is allocated");
    }
    if let Some(allocation) = &status.allocation {
        results(
            allocation,
            &path.member("allocation").member("devices"),
            report,
        );
    }
    for (index, device) in status.devices.iter().enumerate() {
        let devices = path.member("devices");
        let conditions = devices.index(index);
        report.at_most(
            MAX_CONDITIONS,
            device.conditions.len(),
            &conditions.member("conditions"),
        );
    }
}

fn results(allocation: &AllocationResult, path: &Path<'_>, report: &mut Report) {
    let results = path.member("results");
    if report.at_most(MAX_RESULTS, allocation.devices.results.len(), &results) {
        for (index, result) in allocation.devices.results.iter().enumerate() {
            let path = results.index(index);
            names::driver(&result.driver, &path.member("driver"), report);
            names::pool(&result.pool, &path.member("pool"), report);
            names::label(&result.device, &path.member("device"), report);
            claim::tolerations(&result.tolerations, &path.member("tolerations"), report);
            if let Some(share) = &result.share_id {
                names::uuid(share, &path.member("shareID"), report);
            }
        }
    }
    report.at_most(
        MAX_CONFIGS,
        allocation.devices.config.len(),
        &path.member("config"),
    );
}
