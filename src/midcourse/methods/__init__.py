"""Algorithms, one file each; the settings loader imports every file, so that its decorator names the method."""
