"""Worlds with tasks, tools, reward and evidence; importing this package registers its environments."""

from midcourse.environments import navigation

__all__ = ["navigation"]
