"""The engines: how each server is planned, started, spoken to and stopped."""
