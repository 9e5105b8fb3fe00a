"""What may be shown to strangers."""
