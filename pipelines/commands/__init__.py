"""The commands of ``gristmill`` by the group that help shows them in: each reads its options and calls the module that does the work."""
