"""The policy for arithmetic with worked steps: one token a character, turns, demonstrations."""
