"""Parallel training strategies, each run for ten steps of one small transformer."""
