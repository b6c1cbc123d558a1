"""Advantages within and between trees (Tree-GRPO, arXiv:2509.21240, Sec. 3.3). Letters: G members of one group."""

from collections.abc import Hashable, Sequence

from midcourse.advantages.group import group_advantages


def tree_advantages(
    rewards: Sequence[float | None], trees: Sequence[Hashable], *, std_ddof: int = 0, epsilon: float = 1e-6
) -> list[float | None]:
    """Return [G] how far each reward lies above its tree's mean, plus how far above all trees', in deviations.

    A = A_intra-tree + A_inter-tree, each by `group_advantages`: among members of the same tree, and among all. Differs
    from the authors' code: a member that is alone in its tree has 0 within it (there: its reward); the population
    deviation unless `std_ddof` is 1. Rewards that are all equal give exactly 0.

    Args:
        rewards: [G] task units; None where the member could not be scored: it stays None and moves nothing.
        trees: [G] the tree of each member, by any name (`Lineage.root`).
        std_ddof: as `group_advantages`.
        epsilon: as `group_advantages`.

    Raises:
        ValueError: lists of different lengths, or as `group_advantages`.
    """
    if len(rewards) != len(trees):
        raise ValueError(f"each member needs its tree: got {len(rewards)} rewards, {len(trees)} trees")
    places: dict[Hashable, list[int]] = {}
    for place, tree in enumerate(trees):
        places.setdefault(tree, []).append(place)
    within: list[float | None] = [None] * len(rewards)
    for members in places.values():
        found = group_advantages([rewards[place] for place in members], std_ddof=std_ddof, epsilon=epsilon)
        for place, advantage in zip(members, found, strict=True):
            within[place] = advantage
    between = group_advantages(rewards, std_ddof=std_ddof, epsilon=epsilon)
    return [None if one is None or other is None else one + other for one, other in zip(within, between, strict=True)]
