//! A model of several agents that prepare claims from one ledger, checked in every order of steps and crashes.
//!
//! The model covers the protocol of docs/explanation/ledger.md, "Agents that share a ledger": device locks across processes, leases
//! of the ledger, the two phases of a claim, and the rollback of what a crashed agent started. Two claims are allocated
//! the same device, which the API server should have prevented. The kubelet calls either agent, gives up on calls, and
//! retries.
//!
//! A release starts by reading the ledger; a prepare starts with what the agent read in its last lease, which may be
//! outdated. The lease that changes the ledger reads it again. A lease is one step here: the journal's records are
//! complete or missing (`tests/failing_disk.rs`), and a lease ends with its process. Deadlines are `expired`: a call
//! that the kubelet no longer waits for starts nothing.

use stateright::{Checker, Model, Property};

const AGENTS: usize = 2;
const CLAIMS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Started,
    Completed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Prepare,
    Unprepare,
    /// The repair by an agent, at its start and once a minute.
    Repair,
}

/// The next step of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    /// Read in the ledger which locks to take.
    Peek,
    /// Take the device's lock, across processes.
    Lock,
    /// Read the ledger under the lock.
    Read,
    /// Take the device in the ledger.
    Start,
    SetUp,
    Complete,
    WriteSpec,
    /// Roll back a claim: its files, its setup, its entry. Then continue with `Then`.
    UndoSpec(usize, Then),
    UndoSetUp(usize, Then),
    UndoEntry(usize, Then),
    /// Remove the files of a claim that needed no set-up, before the ledger is read.
    RemoveSpec,
    /// Release that claim if its entry is unchanged.
    Release,
    Answer(bool),
}

impl Step {
    /// Whether the step holds the lease, which starts by reading what other agents recorded.
    fn needs_lease(self) -> bool {
        matches!(
            self,
            Step::Peek
                | Step::Read
                | Step::Start
                | Step::Complete
                | Step::UndoEntry(..)
                | Step::Release
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Then {
    Read,
    Start,
    Answer(bool),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Operation {
    kind: Kind,
    step: Step,
    /// The kubelet has given up on the call.
    expired: bool,
    locked: bool,
}

impl Operation {
    fn new(kind: Kind, step: Step) -> Self {
        Operation {
            kind,
            step,
            expired: false,
            locked: false,
        }
    }
}

/// The kubelet's state of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kubelet {
    /// Not requested, or released; the same uid may be allocated again.
    Released,
    /// A call to prepare it failed, or was given up.
    Unknown,
    Prepared,
    /// A call to unprepare it failed, or was given up.
    Releasing,
    Waiting(usize, Kind),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    alive: [bool; AGENTS],
    operations: [[Option<Operation>; CLAIMS]; AGENTS],
    ledger: [Option<Phase>; CLAIMS],
    /// The state that each agent read in its last lease.
    known: [[Option<Phase>; CLAIMS]; AGENTS],
    specs: [bool; CLAIMS],
    /// For which claim the device is set up.
    set_up_for: Option<usize>,
    locked_by: Option<usize>,
    kubelet: [Kubelet; CLAIMS],
    /// Reported as prepared, with no release requested since: containers may run.
    running: [bool; CLAIMS],
    crashes_left: u8,
    /// A device was set up for a claim while it was set up for another.
    overwritten: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Event {
    Ask(usize, usize, Kind),
    Repair(usize, usize),
    GiveUp(usize),
    Step(usize, usize),
    SetUpFails(usize, usize),
    Crash(usize),
    Restart(usize),
}

/// Claims that need a set-up, or claims whose entry is completed in the lease that starts it.
struct Agents {
    with_set_up: bool,
    crashes: u8,
    defect: Defect,
}

/// Defects that the check has to find: a model that cannot fail proves nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Defect {
    None,
    /// The device's lock is not taken.
    NoLock,
    /// A call that the kubelet no longer waits for takes the device.
    StartsLate,
    /// A started claim is rolled back without a check whether its agent still runs.
    UndoesTheLiving,
    /// The entry is released before the device is.
    ReleasesFirst,
    /// The lease that starts a claim does not read whether another agent has the claim.
    StartsUnread,
    /// Files are removed by what the agent knew, and the entry is not read again.
    AnswersUnread,
}

impl Agents {
    fn step(&self, world: &mut World, agent: usize, claim: usize) -> Option<()> {
        let mut operation = world.operations[agent][claim]?;
        let known = world.known[agent][claim];
        let next = match operation.step {
            Step::Peek if world.ledger[claim].is_none() => {
                world.specs[claim] = false;
                Step::Answer(true)
            }
            Step::Peek => Step::Lock,
            Step::Lock if world.locked_by.is_none() || self.defect == Defect::NoLock => {
                if self.defect != Defect::NoLock {
                    world.locked_by = Some(agent);
                    operation.locked = true;
                }
                match operation.kind {
                    Kind::Prepare if known.is_none() => Step::Start,
                    Kind::Unprepare if known == Some(Phase::Completed) && !self.with_set_up => {
                        Step::RemoveSpec
                    }
                    _ => Step::Read,
                }
            }
            Step::Lock => return None,
            Step::RemoveSpec => {
                world.specs[claim] = false;
                Step::Release
            }
            Step::Release if self.defect == Defect::AnswersUnread => Step::Answer(true),
            Step::Release if world.ledger[claim] == Some(Phase::Completed) => {
                world.ledger[claim] = None;
                Step::Answer(true)
            }
            Step::Release => {
                if operation.locked {
                    world.locked_by = None;
                    operation.locked = false;
                }
                // The kubelet no longer waits for it: it must not roll back what another agent has started since.
                if operation.expired {
                    Step::Answer(false)
                } else {
                    Step::Peek
                }
            }
            Step::Read => match (operation.kind, world.ledger[claim]) {
                (Kind::Prepare, None) => Step::Start,
                (Kind::Prepare, Some(Phase::Started)) => self.undo(claim, Then::Read),
                (Kind::Prepare | Kind::Repair, Some(Phase::Completed)) => Step::WriteSpec,
                (Kind::Unprepare, None) => {
                    world.specs[claim] = false;
                    Step::Answer(true)
                }
                (Kind::Unprepare, Some(_)) => self.undo(claim, Then::Answer(true)),
                (Kind::Repair, None) => Step::Answer(false),
                (Kind::Repair, Some(Phase::Started)) => self.undo(claim, Then::Answer(false)),
            },
            Step::Start if operation.expired && self.defect != Defect::StartsLate => {
                Step::Answer(false)
            }
            Step::Start if world.ledger[claim].is_some() && self.defect != Defect::StartsUnread => {
                Step::Read
            }
            Step::Start => {
                let other =
                    (0..CLAIMS).find(|&other| other != claim && world.ledger[other].is_some());
                match other.map(|other| (other, world.ledger[other])) {
                    // This operation holds the device's lock, so the agent that started the other claim has exited.
                    Some((other, Some(Phase::Started))) => self.undo(other, Then::Start),
                    Some(_) => Step::Answer(false),
                    None if self.with_set_up => {
                        world.ledger[claim] = Some(Phase::Started);
                        Step::SetUp
                    }
                    None => {
                        world.ledger[claim] = Some(Phase::Completed);
                        Step::WriteSpec
                    }
                }
            }
            Step::SetUp => {
                world.overwritten |= world.set_up_for.is_some_and(|other| other != claim);
                world.set_up_for = Some(claim);
                Step::Complete
            }
            Step::Complete => {
                world.ledger[claim] = Some(Phase::Completed);
                Step::WriteSpec
            }
            Step::WriteSpec => {
                world.specs[claim] = true;
                Step::Answer(operation.kind == Kind::Prepare)
            }
            Step::UndoSpec(target, then) => {
                world.specs[target] = false;
                if self.defect == Defect::ReleasesFirst {
                    Step::UndoEntry(target, then)
                } else {
                    Step::UndoSetUp(target, then)
                }
            }
            Step::UndoSetUp(target, then) => {
                if world.set_up_for == Some(target) {
                    world.set_up_for = None;
                }
                if self.defect == Defect::ReleasesFirst {
                    then.step()
                } else {
                    Step::UndoEntry(target, then)
                }
            }
            Step::UndoEntry(target, then) => {
                world.ledger[target] = None;
                if self.defect == Defect::ReleasesFirst {
                    Step::UndoSetUp(target, then)
                } else {
                    then.step()
                }
            }
            Step::Answer(done) => {
                if operation.locked {
                    world.locked_by = None;
                }
                world.operations[agent][claim] = None;
                answer(world, agent, claim, operation.kind, done);
                return Some(());
            }
        };
        if operation.step.needs_lease() {
            world.known[agent] = world.ledger;
        }
        operation.step = next;
        world.operations[agent][claim] = Some(operation);
        Some(())
    }

    fn undo(&self, target: usize, then: Then) -> Step {
        Step::UndoSpec(target, then)
    }
}

impl Then {
    fn step(self) -> Step {
        match self {
            Then::Read => Step::Read,
            Then::Start => Step::Start,
            Then::Answer(done) => Step::Answer(done),
        }
    }
}

fn answer(world: &mut World, agent: usize, claim: usize, kind: Kind, done: bool) {
    if world.kubelet[claim] != Kubelet::Waiting(agent, kind) {
        return;
    }
    world.kubelet[claim] = match (kind, done) {
        (Kind::Prepare, true) => Kubelet::Prepared,
        (Kind::Prepare, false) => Kubelet::Unknown,
        (_, true) => Kubelet::Released,
        (_, false) => Kubelet::Releasing,
    };
    world.running[claim] |= kind == Kind::Prepare && done;
}

fn give_up(world: &mut World, claim: usize) {
    let Kubelet::Waiting(agent, kind) = world.kubelet[claim] else {
        return;
    };
    match &mut world.operations[agent][claim] {
        // An operation that waits has the same deadline, and ends without having done anything.
        Some(operation) if !operation.locked => world.operations[agent][claim] = None,
        Some(operation) => operation.expired = true,
        None => {}
    }
    world.kubelet[claim] = if kind == Kind::Prepare {
        Kubelet::Unknown
    } else {
        Kubelet::Releasing
    };
}

impl Model for Agents {
    type State = World;
    type Action = Event;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            alive: [true; AGENTS],
            operations: Default::default(),
            ledger: [None; CLAIMS],
            known: [[None; CLAIMS]; AGENTS],
            specs: [false; CLAIMS],
            set_up_for: None,
            locked_by: None,
            kubelet: [Kubelet::Released; CLAIMS],
            running: [false; CLAIMS],
            crashes_left: self.crashes,
            overwritten: false,
        }]
    }

    fn actions(&self, world: &World, events: &mut Vec<Event>) {
        for agent in 0..AGENTS {
            if !world.alive[agent] {
                events.push(Event::Restart(agent));
                continue;
            }
            if world.crashes_left > 0 {
                events.push(Event::Crash(agent));
            }
            for claim in 0..CLAIMS {
                match world.operations[agent][claim] {
                    None => {
                        // One at a time for a claim in each agent: the claim's own lock, within the process.
                        match world.kubelet[claim] {
                            Kubelet::Released => {
                                events.push(Event::Ask(agent, claim, Kind::Prepare))
                            }
                            Kubelet::Unknown | Kubelet::Prepared => {
                                events.push(Event::Ask(agent, claim, Kind::Prepare));
                                events.push(Event::Ask(agent, claim, Kind::Unprepare));
                            }
                            Kubelet::Releasing => {
                                events.push(Event::Ask(agent, claim, Kind::Unprepare))
                            }
                            Kubelet::Waiting(..) => {}
                        }
                        let free =
                            world.locked_by.is_none() || self.defect == Defect::UndoesTheLiving;
                        if free && world.ledger[claim].is_some() {
                            events.push(Event::Repair(agent, claim));
                        }
                    }
                    Some(operation) => {
                        events.push(Event::Step(agent, claim));
                        if operation.step == Step::SetUp {
                            events.push(Event::SetUpFails(agent, claim));
                        }
                    }
                }
            }
        }
        events.extend(
            (0..CLAIMS)
                .filter(|&claim| matches!(world.kubelet[claim], Kubelet::Waiting(..)))
                .map(Event::GiveUp),
        );
    }

    fn next_state(&self, before: &World, event: Event) -> Option<World> {
        let mut world = before.clone();
        match event {
            Event::Ask(agent, claim, kind) => {
                let step = if kind == Kind::Prepare {
                    Step::Lock
                } else {
                    Step::Peek
                };
                world.operations[agent][claim] = Some(Operation::new(kind, step));
                world.kubelet[claim] = Kubelet::Waiting(agent, kind);
                world.running[claim] &= kind == Kind::Prepare;
            }
            Event::Repair(agent, claim) => {
                // Repair does not wait: it skips locked claims.
                let mut operation = Operation::new(Kind::Repair, Step::Read);
                if self.defect == Defect::UndoesTheLiving {
                    operation.step = match world.ledger[claim]? {
                        Phase::Started => self.undo(claim, Then::Answer(false)),
                        Phase::Completed => return None,
                    };
                } else {
                    operation.locked = true;
                    world.locked_by = Some(agent);
                }
                world.operations[agent][claim] = Some(operation);
            }
            Event::GiveUp(claim) => give_up(&mut world, claim),
            Event::Step(agent, claim) => self.step(&mut world, agent, claim)?,
            Event::SetUpFails(agent, claim) => {
                let operation = world.operations[agent][claim].as_mut()?;
                operation.step = self.undo(claim, Then::Answer(false));
            }
            Event::Crash(agent) => {
                world.alive[agent] = false;
                world.known[agent] = [None; CLAIMS];
                world.crashes_left -= 1;
                for claim in 0..CLAIMS {
                    world.operations[agent][claim] = None;
                    if matches!(world.kubelet[claim], Kubelet::Waiting(asked, _) if asked == agent)
                    {
                        give_up(&mut world, claim);
                    }
                }
                if world.locked_by == Some(agent) {
                    world.locked_by = None;
                }
            }
            Event::Restart(agent) => world.alive[agent] = true,
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("a device has one holder", |_, world: &World| {
                world.running.iter().filter(|&&running| running).count() <= 1
                    && world.ledger.iter().flatten().count() <= 1
                    && !world.overwritten
            }),
            Property::always(
                "what was reported as prepared is held and usable",
                |agents: &Agents, world: &World| {
                    (0..CLAIMS)
                        .filter(|&claim| world.running[claim])
                        .all(|claim| {
                            world.ledger[claim] == Some(Phase::Completed)
                                && world.specs[claim]
                                && (!agents.with_set_up || world.set_up_for == Some(claim))
                        })
                },
            ),
            Property::always(
                "what was reported as released is free",
                |_, world: &World| {
                    (0..CLAIMS)
                        .filter(|&claim| world.kubelet[claim] == Kubelet::Released)
                        .filter(|&claim| {
                            (0..AGENTS).all(|agent| world.operations[agent][claim].is_none())
                        })
                        .all(|claim| {
                            world.ledger[claim].is_none()
                                && !world.specs[claim]
                                && world.set_up_for != Some(claim)
                        })
                },
            ),
            Property::always("nothing is set up without an entry", |_, world: &World| {
                world
                    .set_up_for
                    .is_none_or(|claim| world.ledger[claim].is_some())
            }),
            Property::sometimes(
                "a claim is prepared after an agent crashed",
                |_, world: &World| world.crashes_left == 0 && world.running[1],
            ),
            Property::sometimes(
                "a claim is left incomplete by an agent that crashed",
                |agents: &Agents, world: &World| {
                    let idle = world.operations.iter().flatten().all(Option::is_none);
                    !agents.with_set_up
                        || (idle
                            && world.ledger[0] == Some(Phase::Started)
                            && world.set_up_for == Some(0))
                },
            ),
        ]
    }
}

#[test]
fn claims_with_a_set_up_survive_every_order_of_steps_and_crashes() {
    let checker = Agents {
        with_set_up: true,
        crashes: 2,
        defect: Defect::None,
    }
    .checker()
    .threads(2)
    .spawn_bfs()
    .join();
    eprintln!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

#[test]
fn claims_without_a_set_up_survive_every_order_of_steps_and_crashes() {
    let checker = Agents {
        with_set_up: false,
        crashes: 2,
        defect: Defect::None,
    }
    .checker()
    .threads(2)
    .spawn_bfs()
    .join();
    eprintln!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

#[test]
fn the_model_finds_each_defect_that_is_put_into_it() {
    for (defect, property) in [
        (Defect::NoLock, "a device has one holder"),
        (Defect::StartsLate, "what was reported as released is free"),
        (
            Defect::UndoesTheLiving,
            "what was reported as prepared is held and usable",
        ),
        (Defect::ReleasesFirst, "nothing is set up without an entry"),
        (
            Defect::StartsUnread,
            "what was reported as prepared is held and usable",
        ),
        (
            Defect::AnswersUnread,
            "what was reported as released is free",
        ),
    ] {
        let checker = Agents {
            with_set_up: defect != Defect::AnswersUnread,
            crashes: 2,
            defect,
        }
        .checker()
        .threads(2)
        .spawn_bfs()
        .join();
        assert!(
            checker.discovery(property).is_some(),
            "a defect does not break {property:?}"
        );
    }
}
