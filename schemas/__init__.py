"""The contracts: tables, recipe, settings, the lake and its manifests. Imports nothing."""
