"""Does a direction call visit the reference route, under the order the user asked for?"""

from collections.abc import Sequence

from midcourse.environments.navigation.places import Point

ORDER_LEVELS = (0, 1, 2, 3, 4)
ORDER_LEVEL_MEANINGS = (
    "any order",
    "start fixed, the rest in any order",
    "end fixed, the rest in any order",
    "start and end fixed, the middle in any order",
    "strict order",
)


def route_matches(route: Sequence[Point], reference: Sequence[Point], *, order_level: int) -> bool:
    """Return whether `route` (origin, waypoints, destination) is the reference route under an order level.

    Differs from the paper (RTI, App. C.2.1): at level 0 it speaks of permuted waypoints; here all places may be
    permuted, ends included, as its name "free ordering among all waypoints" says. The travel mode is not compared.

    Args:
        route: exact points in the order of the call.
        reference: exact points in reference order.
        order_level: 0 any order, 1 fixed start, 2 fixed end, 3 both fixed, 4 strict.

    Raises:
        ValueError: no such order level.
    """
    if order_level not in ORDER_LEVELS:
        raise ValueError(f"order level must be one of {ORDER_LEVELS}: got {order_level}")
    if order_level == 4:
        return list(route) == list(reference)
    if sorted(route) != sorted(reference):
        return False
    start_fits = order_level not in (1, 3) or route[0] == reference[0]
    end_fits = order_level not in (2, 3) or route[-1] == reference[-1]
    return start_fits and end_fits
