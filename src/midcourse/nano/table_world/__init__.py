"""The policy for the table world: words and pieces of SQL, turns, demonstrations."""
