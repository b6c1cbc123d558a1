"""The run folder: what is written while a run goes, and how it is read back."""
