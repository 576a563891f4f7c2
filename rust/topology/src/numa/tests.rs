use super::*;

fn node(id: u32, cpus: &str) -> NumaNode {
    NumaNode {
        id,
        socket: None,
        cpus: cpus.into(),
        memory_bytes: None,
        distances: vec![],
    }
}

#[test]
fn a_cpu_list_belongs_to_a_node_only_if_it_touches_no_other() {
    let nodes = [node(0, "0-7,16-23"), node(1, "8-15,24-31"), node(2, "")];
    assert_eq!(only_node("0-7,16-23", &nodes), Some(0));
    assert_eq!(only_node("9", &nodes), Some(1));
    assert_eq!(only_node("0-31", &nodes), None);
    assert_eq!(only_node("7-8", &nodes), None);
    assert_eq!(only_node("", &nodes), None);
    assert_eq!(only_node("99", &nodes), None);
    assert_eq!(only_node("nonsense", &nodes), None);
    assert_eq!(only_node("0-3", &[]), None);
}

#[test]
fn memory_is_in_bytes() {
    assert_eq!(
        memory_bytes("Node 0 MemTotal:       98304 kB\nNode 0 MemFree: 1 kB"),
        Some(98304 * 1024)
    );
    assert_eq!(memory_bytes("Node 0 MemTotal: lots"), None);
    assert_eq!(memory_bytes("MemTotal: 18446744073709551615 kB"), None);
}
