"""Widgets and drawing that know nothing of GPUs."""
