"""Every word the nano profile can say: query words, tool words, place names, regions, two-digit numbers."""

NANO_WORDS = (
    "visit", "see", "from", "then", "to", "by", "start", "end", "begin", "first", "last", "any", "order", "not",
    "poi_search", "around_search", "direction", "none", "error", "done",
    "driving", "walking", "bicycling", "electrobike", "transit", "5000", "20000", "50000",
)  # fmt: skip
"""Words of queries, reasoning, calls and tool answers; names, regions, numbers and punctuation come on top."""

NANO_PUNCTUATION = (" ", ",", ";", "@", ">", "=", "~", "?")
"""Signs between words. `.` and `-` never occur: nano coordinates are whole and positive."""

NANO_NAMES = (
    "Amber", "Azure", "Basil", "Birch", "Cedar", "Coral", "Dahlia", "Dune", "Elm", "Ember",
    "Fern", "Fjord", "Garnet", "Grove", "Haven", "Heron", "Indigo", "Iris", "Jade", "Juniper",
    "Kelp", "Kite", "Lark", "Lotus", "Maple", "Moss", "Nettle", "Nova", "Onyx", "Pearl",
    "Quartz", "Raven", "Sable", "Tidal", "Umber", "Vista", "Willow", "Xenon", "Yarrow", "Zephyr",
)  # fmt: skip
"""Invented place names of one word, the same in every nano atlas."""

NANO_REGIONS = ("Accra", "Cairo", "Delhi", "Lima", "Oslo", "Perth", "Quito", "Turin")
"""Cities of one word, the same in every nano atlas."""

NANO_NUMBERS = tuple(f"{number:02d}" for number in range(100))
"""Every value of a nano longitude or latitude, in units of 1 km."""
