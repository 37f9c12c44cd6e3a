"""Plans over a device mesh: which space a question belongs to, the plan that a user spells out, the search, and its answers."""
