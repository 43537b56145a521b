"""FedStale as a Flower Baseline."""
