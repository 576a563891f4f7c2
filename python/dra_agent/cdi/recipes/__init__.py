"""What a container needs of a device, one recipe per vendor; nothing of claims."""

from __future__ import annotations

from dra_agent.cdi.recipes.choice import Recipes
from dra_agent.cdi.recipes.recipe import DeviceEdits, Recipe

__all__ = ["DeviceEdits", "Recipe", "Recipes"]
