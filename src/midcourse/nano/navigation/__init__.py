"""The policy for Navigation's nano profile: words, turns, demonstrations."""
