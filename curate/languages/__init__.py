"""Languages of documents: identified by a model that a package ships, and which of them a source may have."""
