"""Recognises lines of libraries, launchers and schedulers: tables of patterns and readers. No inference."""
