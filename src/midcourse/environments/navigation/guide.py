"""What the policy and the roles are told about this domain."""

from midcourse.environments.base import RoleGuide

SYSTEM_PROMPT = (
    "You plan routes. Look up every place the user names with the map tools, then call direction once with origin, "
    "waypoints and destination. Coordinates must be copied from tool answers; never invent them. Call direction only "
    "after all places have been found in earlier turns. Many places share a name: check that all results belong to "
    "one plausible trip, and search again with a region where one does not. Keep the order the user asks for. You "
    "have six turns; the first direction call is final."
)

ERROR_TYPES = (
    "fabricated_coordinates",
    "premature_direction",
    "wrong_region",
    "wrong_order",
    "wrong_stops",
    "redundant_search",
    "repeated_search",
    "no_call",
    "out_of_turns",
)

ROLE_GUIDE = RoleGuide(
    hard_rules=(
        "Coordinates and other key arguments are copied from earlier tool answers, never made up.",
        "direction is called only when every place of the query was found in an earlier turn.",
        "A turn never searches the same thing twice with the same arguments; different searches may run together.",
        "A search that failed or returned an unsuitable place is changed before it is tried again.",
        "The first direction call is final: a wrong stop, a stop too many or too few, or an order that the query "
        "forbids cannot be repaired afterwards.",
        "Slow but repairable steps, another order of searches and style are no errors.",
    ),
    error_types=ERROR_TYPES,
    verifier_rejects=(
        "Speaks of a reference, a label or a known answer, or uses something that nothing visible shows.",
        "Adds or changes coordinates, places or regions found neither in the query nor in earlier tool answers.",
        "Claims the result of a call that was not made or has not answered yet.",
    ),
    verifier_allows=(
        "Writes visible information in another form.",
        "Narrows a search by a region, mode or category that the query or earlier answers mention.",
        "Splits a request into steps that tools can check.",
    ),
    forbidden_phrases=(
        "ground truth",
        "groundtruth",
        "reference answer",
        "reference route",
        "gold call",
        "expected route",
    ),
)
