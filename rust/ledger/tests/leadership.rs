//! A model of which agent writes to the API server while agents of a rolling update share one state directory.
//!
//! The rule is that of `agent/rolling_update.py`: each running instance publishes its standing, and the newest of those
//! with the highest standing leads. What the API server accepts changes at any time and is noticed later; instances
//! start, stop and crash.

use stateright::{Checker, Model, Property};

const INSTANCES: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Standing {
    Stopping,
    Unable,
    Able,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Instance {
    /// The standing that it has published.
    standing: Standing,
    /// Whether the API server would accept its writes now.
    accepted: bool,
    stopping: bool,
}

impl Instance {
    fn truth(self) -> Standing {
        match (self.stopping, self.accepted) {
            (true, _) => Standing::Stopping,
            (false, true) => Standing::Able,
            (false, false) => Standing::Unable,
        }
    }
}

/// Oldest first; None: not started yet, or stopped.
type World = [Option<Instance>; INSTANCES];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Event {
    Start(usize),
    /// Credentials expire, are refused, or are accepted again; a network partition starts or ends.
    Turn(usize),
    /// An instance notices, and publishes it.
    Report(usize),
    Stop(usize),
    Die(usize),
}

struct RollingUpdate {
    /// The rule of older versions, in which the check has to find a defect: the newest instance leads.
    newest_leads: bool,
}

impl RollingUpdate {
    fn leader(&self, world: &World) -> Option<usize> {
        let living = (0..INSTANCES)
            .filter_map(|order| world[order].map(|instance| (instance.standing, order)));
        if self.newest_leads {
            living.map(|(_, order)| order).max()
        } else {
            living.max().map(|(_, order)| order)
        }
    }
}

fn is_settled(world: &World) -> bool {
    world
        .iter()
        .flatten()
        .all(|instance| instance.standing == instance.truth())
}

impl Model for RollingUpdate {
    type State = World;
    type Action = Event;

    fn init_states(&self) -> Vec<World> {
        vec![[None; INSTANCES]]
    }

    fn actions(&self, world: &World, events: &mut Vec<Event>) {
        for (order, instance) in world.iter().enumerate() {
            match instance {
                None => events.push(Event::Start(order)),
                Some(_) => events.extend([
                    Event::Turn(order),
                    Event::Report(order),
                    Event::Stop(order),
                    Event::Die(order),
                ]),
            }
        }
    }

    fn next_state(&self, before: &World, event: Event) -> Option<World> {
        let mut world = *before;
        match event {
            Event::Start(order) => {
                world[order] = Some(Instance {
                    standing: Standing::Unable,
                    accepted: false,
                    stopping: false,
                });
            }
            Event::Turn(order) => world[order].as_mut()?.accepted ^= true,
            Event::Report(order) => {
                let instance = world[order].as_mut()?;
                instance.standing = instance.truth();
            }
            Event::Stop(order) => world[order].as_mut()?.stopping = true,
            Event::Die(order) => world[order] = None,
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "there is a leader while an instance runs",
                |model: &Self, world: &World| {
                    world.iter().all(Option::is_none) || model.leader(world).is_some()
                },
            ),
            Property::always(
                "the leader can write where an instance can",
                |model: &Self, world: &World| {
                    let able = |instance: &Option<Instance>| {
                        instance.is_some_and(|it| it.truth() == Standing::Able)
                    };
                    !is_settled(world)
                        || !world.iter().any(able)
                        || model
                            .leader(world)
                            .is_some_and(|leader| able(&world[leader]))
                },
            ),
            Property::always(
                "an older one yields only to one that has shown that it can write",
                |model: &Self, world: &World| {
                    let able = |order: usize| {
                        world[order].is_some_and(|instance| instance.standing == Standing::Able)
                    };
                    let Some(leader) = model.leader(world) else {
                        return true;
                    };
                    able(leader) || !(0..INSTANCES).any(able)
                },
            ),
            Property::sometimes(
                "a newer instance takes over",
                |model: &Self, world: &World| {
                    model.leader(world) == Some(1)
                        && world[0].is_some_and(|older| older.standing == Standing::Able)
                },
            ),
            Property::sometimes(
                "an older one leads while a newer one is refused",
                |model: &Self, world| model.leader(world) == Some(0) && world[1].is_some(),
            ),
        ]
    }
}

#[test]
fn an_instance_that_can_write_leads_in_every_order_of_events() {
    let checker = RollingUpdate {
        newest_leads: false,
    }
    .checker()
    .spawn_bfs()
    .join();
    checker.assert_properties();
}

#[test]
fn the_model_finds_that_the_newest_must_not_lead_because_it_runs() {
    let checker = RollingUpdate { newest_leads: true }
        .checker()
        .spawn_bfs()
        .join();
    assert!(
        checker
            .discovery("the leader can write where an instance can")
            .is_some()
    );
}
