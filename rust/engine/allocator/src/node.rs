//! Whether a slice or a device can be used on a node.

use dra_api::{Device, Node, NodeSelector, ResourceSlice};

use crate::error::Error;
use crate::node_selector;

/// Whether the node has the name, all nodes are allowed, or the selector matches, in this order.
fn is_selected(
    node: &Node,
    name: Option<&str>,
    all: Option<bool>,
    selector: Option<&NodeSelector>,
) -> Result<bool, String> {
    match (name.unwrap_or_default(), all, selector) {
        ("", Some(true), _) => Ok(true),
        ("", _, Some(selector)) => node_selector::matches(selector, node),
        ("", _, None) => Ok(false),
        (name, _, _) => Ok(name == node.metadata.name),
    }
}

/// Whether the device can be used on the node, for a slice with per-device node selection.
pub(crate) fn device_is_usable_on(
    slice: &ResourceSlice,
    device: &Device,
    node: &Node,
) -> Result<bool, Error> {
    is_selected(
        node,
        device.node_name.as_deref(),
        device.all_nodes,
        device.node_selector.as_ref(),
    )
    .map_err(|message| Error::NodeSelector {
        place: format!("slice {}, device {}", slice.metadata.name, device.name),
        message,
    })
}

/// Whether any device of the slice can be used on the node.
pub(crate) fn slice_is_usable_on(slice: &ResourceSlice, node: &Node) -> Result<bool, Error> {
    let spec = &slice.spec;
    let names_nodes = spec
        .node_name
        .as_deref()
        .is_some_and(|name| !name.is_empty())
        || spec.all_nodes == Some(true)
        || spec.node_selector.is_some();
    if names_nodes {
        return is_selected(
            node,
            spec.node_name.as_deref(),
            spec.all_nodes,
            spec.node_selector.as_ref(),
        )
        .map_err(|message| Error::NodeSelector {
            place: format!("slice {}", slice.metadata.name),
            message,
        });
    }
    if has_per_device_node_selection(slice) {
        for device in &spec.devices {
            if device_is_usable_on(slice, device, node)? {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

pub(crate) fn has_per_device_node_selection(slice: &ResourceSlice) -> bool {
    slice.spec.per_device_node_selection.unwrap_or(false)
}
