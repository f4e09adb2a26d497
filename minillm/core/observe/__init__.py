"""What a run did: the event log, metrics, checks of all structures."""
