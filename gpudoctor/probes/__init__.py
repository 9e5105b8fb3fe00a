"""Measurements under load. The only packages that import torch, and only inside rank processes."""
