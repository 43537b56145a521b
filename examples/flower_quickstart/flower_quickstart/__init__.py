"""The app flower-quickstart."""
