"""Measuring an engine over HTTP: workload, client, protocol, statistics."""
