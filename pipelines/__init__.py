"""Prefect flows, the command line and the report."""
