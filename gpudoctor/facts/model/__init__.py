"""The shapes of facts and measurements: data only, nothing is read or judged here."""

# These files do not import annotations from __future__: msgspec would compile the 400 annotations of a node one by one
# at every start, which takes 5 % of a quick check.
