"""Checkpoints: where a study's model comes from, and the manifest that says which bytes it is."""
