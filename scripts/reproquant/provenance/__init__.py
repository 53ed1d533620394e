"""Where an artifact comes from: written beside it, checked by anybody."""
