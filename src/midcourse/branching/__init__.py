"""Where and how to branch: the parts of RAIL's controller that need no rollouts. See docs/branching.md."""
