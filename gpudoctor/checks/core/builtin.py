"""Imports every module of built-in checks, so that they register."""
