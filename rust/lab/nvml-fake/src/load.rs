//! Load that a GPU, or a MIG instance of it, plays from a schedule: utilization, memory and power by time.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Deserialize;

use crate::abi::NO_INSTANCE;
use crate::state::Condition;

/// A schedule that is played.
#[derive(Debug, Deserialize)]
pub(crate) struct Load {
    pub(crate) device: String,
    /// The MIG instance, of which memory and activity are played; NO_INSTANCE for the whole GPU.
    pub(crate) gpu_instance: u32,
    /// When the schedule began, in milliseconds since the epoch.
    pub(crate) started_at_ms: u64,
    /// By time, the first at 0. The values of a step hold until the next one; those of the last one stay.
    pub(crate) steps: Vec<Step>,
}

/// Values from a moment of the schedule on.
#[derive(Debug, Deserialize)]
pub(crate) struct Step {
    pub(crate) at_ms: u64,
    pub(crate) utilization: (u32, u32),
    pub(crate) memory_bytes: u64,
    pub(crate) power_milliwatts: u32,
    /// Multiprocessors, tensor operations and bandwidth of memory in percent; None: those of the utilization.
    #[serde(default)]
    pub(crate) activity: Option<(u32, u32, u32)>,
}

/// What GPM counts: in percent, or in percent multiplied by milliseconds as a total.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Activity {
    pub(crate) graphics: f64,
    pub(crate) sm: f64,
    pub(crate) tensor: f64,
    pub(crate) dram: f64,
}

impl Activity {
    /// Without more, multiprocessors work while the GPU does, without tensor operations.
    pub(crate) fn of(utilization: (u32, u32), activity: Option<(u32, u32, u32)>) -> Self {
        let (sm, tensor, dram) = activity.unwrap_or((utilization.0, 0, utilization.1));
        Self {
            graphics: utilization.0.into(),
            sm: sm.into(),
            tensor: tensor.into(),
            dram: dram.into(),
        }
    }

    fn add(&mut self, other: &Self, duration_ms: u64) {
        let factor = duration_ms as f64;
        self.graphics += other.graphics * factor;
        self.sm += other.sm * factor;
        self.tensor += other.tensor * factor;
        self.dram += other.dram * factor;
    }
}

impl Load {
    pub(crate) fn is_of(&self, uuid: &str, instance: u32) -> bool {
        self.device == uuid && self.gpu_instance == instance
    }

    /// Replaces the values that it plays, and adds the energy that it has used.
    pub(crate) fn play(&self, condition: &mut Condition) {
        let elapsed_ms = self.elapsed_ms();
        if let Some(step) = self.step(elapsed_ms) {
            condition.utilization = step.utilization;
            condition.power_milliwatts = step.power_milliwatts;
        }
        condition.energy_millijoules += self.energy_millijoules(elapsed_ms);
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.step(self.elapsed_ms())
            .map_or(0, |step| step.memory_bytes)
    }

    /// Percent now.
    pub(crate) fn activity(&self) -> Activity {
        let step = self.step(self.elapsed_ms());
        step.map_or_else(Activity::default, |step| {
            Activity::of(step.utilization, step.activity)
        })
    }

    /// The sum since the schedule began.
    pub(crate) fn total_activity(&self, elapsed_ms: u64) -> Activity {
        let mut total = Activity::default();
        for (step, duration_ms) in self.durations(elapsed_ms) {
            total.add(&Activity::of(step.utilization, step.activity), duration_ms);
        }
        total
    }

    pub(crate) fn elapsed_ms(&self) -> u64 {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        (now.as_millis() as u64).saturating_sub(self.started_at_ms)
    }

    fn step(&self, elapsed_ms: u64) -> Option<&Step> {
        self.steps
            .iter()
            .rev()
            .find(|step| step.at_ms <= elapsed_ms)
    }

    fn energy_millijoules(&self, elapsed_ms: u64) -> u64 {
        let used: u64 = self
            .durations(elapsed_ms)
            .map(|(step, duration_ms)| u64::from(step.power_milliwatts) * duration_ms)
            .sum();
        used / 1000
    }

    /// For how many milliseconds each step was played.
    fn durations(&self, elapsed_ms: u64) -> impl Iterator<Item = (&Step, u64)> {
        let later = self.steps.iter().skip(1).map(|step| step.at_ms);
        let ends = later.chain([u64::MAX]);
        self.steps
            .iter()
            .zip(ends)
            .map(move |(step, end_ms)| (step, end_ms.min(elapsed_ms).saturating_sub(step.at_ms)))
    }
}

/// The memory that is played on a GPU, or on one of its instances; `None` means on all of it.
pub(crate) fn memory_bytes(loads: &[Load], uuid: &str, instance: Option<u32>) -> u64 {
    loads
        .iter()
        .filter(|load| load.device == uuid && instance.is_none_or(|id| load.is_of(uuid, id)))
        .map(Load::memory_bytes)
        .sum()
}

/// The load of a GPU instance, or of the whole GPU.
pub(crate) fn of<'a>(loads: &'a [Load], uuid: &str, instance: u32) -> Option<&'a Load> {
    loads.iter().find(|load| load.is_of(uuid, instance))
}

/// The load of the whole GPU.
pub(crate) fn of_gpu<'a>(loads: &'a [Load], uuid: &str) -> Option<&'a Load> {
    of(loads, uuid, NO_INSTANCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load() -> Load {
        let step = |at_ms, percent, power_milliwatts| Step {
            at_ms,
            utilization: (percent, percent / 2),
            memory_bytes: u64::from(percent) << 30,
            power_milliwatts,
            activity: None,
        };
        Load {
            device: "GPU-1".into(),
            gpu_instance: NO_INSTANCE,
            started_at_ms: 0,
            steps: vec![
                step(0, 10, 100_000),
                step(2_000, 90, 400_000),
                step(5_000, 0, 50_000),
            ],
        }
    }

    #[test]
    fn a_step_holds_until_the_next_one() {
        let load = load();
        let percent = |elapsed_ms| load.step(elapsed_ms).unwrap().utilization.0;
        assert_eq!(
            [0, 1_999, 2_000, 4_999, 5_000, 1_000_000].map(percent),
            [10, 10, 90, 90, 0, 0]
        );
    }

    #[test]
    fn energy_is_the_integral_of_the_power() {
        let load = load();
        assert_eq!(load.energy_millijoules(0), 0);
        assert_eq!(load.energy_millijoules(1_000), 100_000);
        assert_eq!(load.energy_millijoules(3_000), 200_000 + 400_000);
        assert_eq!(
            load.energy_millijoules(7_000),
            200_000 + 1_200_000 + 100_000
        );
    }

    #[test]
    fn activity_is_the_integral_of_its_percent() {
        let mut load = load();
        load.steps[1].activity = Some((80, 70, 60));
        let total = load.total_activity(4_000);
        assert_eq!(
            [total.graphics, total.sm, total.tensor, total.dram],
            [200_000.0, 180_000.0, 140_000.0, 130_000.0]
        );
    }

    #[test]
    fn a_load_that_begins_later_has_the_values_of_its_first_step() {
        let mut load = load();
        load.started_at_ms = u64::MAX;
        let mut condition = Condition::default();
        load.play(&mut condition);
        assert_eq!(
            (condition.utilization, condition.energy_millijoules),
            ((10, 5), 0)
        );
    }

    #[test]
    fn memory_is_that_of_an_instance_or_of_all() {
        let mut instance = load();
        instance.gpu_instance = 3;
        let loads = [load(), instance];
        // Both are in their last step.
        assert_eq!(memory_bytes(&loads, "GPU-1", None), 0);
        let mut early = load();
        early.started_at_ms = u64::MAX;
        early.gpu_instance = 3;
        let loads = [early];
        assert_eq!(memory_bytes(&loads, "GPU-1", Some(3)), 10 << 30);
        assert_eq!(memory_bytes(&loads, "GPU-1", Some(4)), 0);
        assert_eq!(memory_bytes(&loads, "GPU-2", None), 0);
        assert!(of_gpu(&loads, "GPU-1").is_none());
    }
}
